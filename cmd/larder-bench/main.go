// Command larder-bench puts load on a Kubernetes API server and reports its cost. It runs against any
// server that a kubeconfig names. With the server's process id it also reports CPU time and memory. Its
// compare command starts the servers itself and writes the table of BENCHMARKS.md.
//
// The exit status is 1 after a failure, 2 if only a threshold was crossed, and 130 after an interrupt. The first
// interrupt ends the run gracefully, the second at once.
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
	exitInterrupted = 130 // 128 plus the number of the signal, as in shells
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

// packages removes the package names from errors, which mean nothing to users.
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
