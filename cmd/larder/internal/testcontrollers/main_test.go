package testcontrollers_test

import (
	"fmt"
	"os"
	"testing"

	"github.com/larder-io/larder/cmd/larder/internal/server/servertest"
	"github.com/larder-io/larder/internal/proctest"
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
	proctest.Main(m)
}
