package http1

import (
	"fmt"
	"os"
	"testing"

	"github.com/larder-io/larder/internal/proctest"
)

func TestMain(m *testing.M) {
	if role := os.Getenv(serverVariable); role != "" {
		fmt.Fprintln(os.Stderr, runServer(role))
		os.Exit(1)
	}
	proctest.Main(m)
}
