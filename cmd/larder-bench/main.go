// Command larder-bench puts load on a Kubernetes API server and says what it
// cost. It runs against any server that a kubeconfig names; given the server's
// process id it accounts for CPU and memory too. Its compare command starts the
// servers itself and writes the table of BENCHMARKS.md.
//
// It exits with status 1 when something failed and with 2 when everything worked but
// a threshold was crossed.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/larder-io/larder/bench"
)

// Exit codes.
const (
	exitFailed  = 1
	exitCrossed = 2
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	os.Exit(exitCode(command().ExecuteContext(ctx)))
}

// exitCode prints an error and returns what to exit with.
func exitCode(err error) int {
	if err == nil {
		return 0
	}
	fmt.Fprintln(os.Stderr, "larder-bench:", err)
	if errors.Is(err, bench.ErrThreshold) {
		return exitCrossed
	}
	return exitFailed
}
