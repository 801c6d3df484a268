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
	"regexp"
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
	if text := adviceOn(err.Error()); text != "" {
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

// hints gives advice about errors whose text matches. The first match counts.
var hints = []struct {
	text   *regexp.Regexp
	advice string
}{
	{regexp.MustCompile(`pods that seeding makes`), "create them with larder-bench seed and the same --kubeconfig, --pods, --namespaces and --nodes, or reduce these numbers"},
	{regexp.MustCompile(`signed by unknown authority`), "the kubeconfig's certificate-authority did not sign the server's certificate: use the kubeconfig of this server"},
	{regexp.MustCompile(`x509: certificate is (not )?valid for|cannot validate certificate for`), "set tls-server-name in the kubeconfig to a name that the certificate has"},
	{regexp.MustCompile(`x509: certificate `), "the server's certificate is not valid at this time: renew it, or correct the clock"},
	{regexp.MustCompile(`does not look like a TLS handshake|gave HTTP response to HTTPS client`), "the server does not use TLS at this port: check the port of the kubeconfig's server, or make it http://"},
	{regexp.MustCompile(`does not support HTTP/2`), "omit --http2-streams"},
	{regexp.MustCompile(`tls: (certificate required|bad certificate|unknown certificate)`), "the server does not accept the kubeconfig's client certificate: use one that the server's client CA signed"},
	{regexp.MustCompile(`: lookup `), "the host name of the kubeconfig's server cannot be resolved: check it"},
	{regexp.MustCompile(`connection refused`), "no process listens at this address: check that the server is running, and the port in the kubeconfig"},
	{regexp.MustCompile(`HTTP request to an HTTPS server|: EOF|connection reset by peer|broken pipe`), "the server closed the connection: check that it is still running, and whether it uses TLS (https:// in the kubeconfig)"},
	{regexp.MustCompile(`bench: timeout|deadline exceeded`), "allow more time with --timeout, or find out why the server takes so long"},
	{regexp.MustCompile(`: 401 |Unauthorized`), "the server does not know the kubeconfig's user: its token or certificate may have expired"},
	{regexp.MustCompile(`: 403 |is forbidden`), "the kubeconfig's user may not do this: bind a role to it, or use an administrator's kubeconfig"},
	{regexp.MustCompile(`/pods/.*: 404 `), "the server has fewer pods than --pods: run larder-bench seed with the same --pods, --namespaces and --nodes, or reduce these numbers"},
	{regexp.MustCompile(`: 406 `), "the server has no protobuf at this path: use --accept application/json"},
	{regexp.MustCompile(`: 404 `), "the server does not serve this path: check it with kubectl get --raw"},
	{regexp.MustCompile(`: 429 `), "the server is too busy for these requests: lower the rate, or retry with --retry-after"},
	{regexp.MustCompile(`process: .*(invalid argument|no such)`), "no process has this id, or it has ended: check --pid and --etcd-pid"},
}

// adviceOn returns advice about an error, "" if there is none.
func adviceOn(text string) string {
	for _, h := range hints {
		if h.text.MatchString(text) {
			return h.advice
		}
	}
	return ""
}
