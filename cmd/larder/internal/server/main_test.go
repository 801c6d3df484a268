package server_test

import (
	"fmt"
	"os"
	"testing"

	"github.com/larder-io/larder/cmd/larder/internal/server/servertest"
	"github.com/larder-io/larder/internal/proctest"
)

// roleVariable makes the test binary be a Larder server, configured by its value.
const roleVariable = "LARDER_SERVER_TEST"

func TestMain(m *testing.M) {
	if role := os.Getenv(roleVariable); role != "" {
		if err := servertest.Run(role); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	proctest.Main(m)
}
