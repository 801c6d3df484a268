package testcontrollers_test

import (
	"fmt"
	"os"
	"testing"

	"go.uber.org/goleak"

	"github.com/larder-io/larder/cmd/larder/internal/server/servertest"
)

// asServer is the environment variable that makes this binary run the server under test.
const asServer = "LARDER_TESTCONTROLLERS_SERVER"

func TestMain(m *testing.M) {
	if raw := os.Getenv(asServer); raw != "" {
		if err := servertest.Run(raw); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	goleak.VerifyTestMain(m)
}
