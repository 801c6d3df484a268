// Command larder-bench puts load on a Kubernetes API server and reports its cost. It runs against any
// server that a kubeconfig names. With the server's process id it reports CPU time and memory, too. Its
// compare command starts the servers itself and writes the table of BENCHMARKS.md.
//
// It exits with status 1 when something failed, with 2 when everything worked but a threshold was
// crossed, and with 130 when it was interrupted: the first interrupt ends the run gracefully, the second
// at once.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/larder-io/larder/bench/thresholds"
)

// Exit codes.
const (
	exitFailed      = 1
	exitCrossed     = 2
	exitInterrupted = 130 // as in shells: 128 and the number of the signal
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, func() {
		second := make(chan os.Signal, 1)
		signal.Notify(second, os.Interrupt, syscall.SIGTERM)
		stop()
		fmt.Fprintln(os.Stderr, "larder-bench: ending gracefully; a second signal ends at once")
		<-second
		os.Exit(exitInterrupted)
	})
	os.Exit(exitCode(command(os.Args[1:]).ExecuteContext(ctx)))
}

// packages removes the names of packages from errors: they mean nothing to users.
var packages = strings.NewReplacer("bench: ", "", "thresholds: ", "", "testservers: ", "", "compare: ", "", "cluster: ", "", "crds: ", "", "rollout: ", "", "report: ", "", "scenario: ", "", "stages: ", "", "starts: ", "", "process: ", "")

// exitCode prints an error, with a hint, and returns the exit code.
func exitCode(err error) int {
	if err == nil {
		return 0
	}
	fmt.Fprintln(os.Stderr, "larder-bench:", packages.Replace(strings.TrimSpace(err.Error())))
	if text := hint(err.Error()); text != "" {
		fmt.Fprintln(os.Stderr, "larder-bench: what to do:", text)
	}
	switch {
	case errors.Is(err, errInterrupted) || errors.Is(err, context.Canceled):
		return exitInterrupted
	case errors.Is(err, thresholds.ErrThreshold):
		return exitCrossed
	}
	return exitFailed
}
