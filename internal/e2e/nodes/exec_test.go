package nodes

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/remotecommand"
	"k8s.io/client-go/util/exec"
	"k8s.io/streaming/pkg/httpstream"

	"github.com/larder-io/larder/internal/proctest"
)

// transports are the protocols for streams to containers, by name.
var transports = []string{"SPDY v4", "SPDY v3", "SPDY v2", "WebSocket v5", "WebSocket v4", "fallback"}

// executor returns an executor that uses a transport.
func (s *server) executor(t testing.TB, transport, token, path string, query url.Values) remotecommand.Executor {
	t.Helper()
	u, err := url.Parse(s.url() + path)
	if err != nil {
		t.Fatal(err)
	}
	u.RawQuery = query.Encode()
	config := s.config(token)
	spdy := func(version string) (remotecommand.Executor, error) {
		rt, upgrader, err := spdyTransport(config)
		if err != nil {
			return nil, err
		}
		return remotecommand.NewSPDYExecutorForProtocols(rt, upgrader, "POST", u, version)
	}
	var x remotecommand.Executor
	kind, version, _ := strings.Cut(transport, " ")
	version += ".channel.k8s.io"
	switch kind {
	case "SPDY":
		x, err = spdy(version)
	case "WebSocket":
		x, err = remotecommand.NewWebSocketExecutorForProtocols(config, "GET", u.String(), version)
	default:
		var first, second remotecommand.Executor
		if first, err = remotecommand.NewWebSocketExecutor(config, "GET", u.String()); err == nil {
			if second, err = spdy("v4.channel.k8s.io"); err == nil {
				x, err = remotecommand.NewFallbackExecutor(first, second, func(err error) bool {
					return httpstream.IsUpgradeFailure(err) || httpstream.IsHTTPSProxyError(err)
				})
			}
		}
	}
	if err != nil {
		t.Fatal(err)
	}
	return x
}

func podPath(pod, subresource string) string {
	return "/api/v1/namespaces/default/pods/" + pod + "/" + subresource
}

// execQuery returns the query for a command in container c, with the streams of o.
func execQuery(o *remotecommand.StreamOptions, command ...string) url.Values {
	query, err := scheme.ParameterCodec.EncodeParameters(&corev1.PodExecOptions{
		Container: "c", Command: command, Stdin: o.Stdin != nil, Stdout: o.Stdout != nil, Stderr: o.Stderr != nil, TTY: o.Tty,
	}, corev1.SchemeGroupVersion)
	if err != nil {
		panic(err)
	}
	return query
}

// exec runs a command in a pod and returns its output, and how it ended.
func (s *server) exec(t testing.TB, ctx context.Context, transport, pod string, o remotecommand.StreamOptions, command ...string) error {
	return s.executor(t, transport, admin, podPath(pod, "exec"), execQuery(&o, command...)).StreamWithContext(ctx, o)
}

// TestExec runs commands in pods with each protocol, on kubelets that serve WebSockets and on others.
func TestExec(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.terminalPod(t, "p", nil)
	c.terminalPod(t, "declares", func(k *kubelet) { k.declares = true })
	for _, pod := range []string{"p", "declares"} {
		for _, transport := range transports {
			t.Run(pod+" "+transport, func(t *testing.T) { execInPod(t, c.server, transport, pod) })
		}
	}
}

func execInPod(t *testing.T, s *server, transport, pod string) {
	codes := transport != "SPDY v2" && transport != "SPDY v3" // the protocol has exit codes
	closes := transport != "WebSocket v4"                     // the protocol can end stdin before the command
	t.Run("streams and code", func(t *testing.T) {
		var out, errs bytes.Buffer
		err := s.exec(t, t.Context(), transport, pod, remotecommand.StreamOptions{Stdout: &out, Stderr: &errs}, "sh", "-c", "echo out; echo errors >&2; exit 7")
		var code exec.CodeExitError
		if codes && (!errors.As(err, &code) || code.Code != 7) || err == nil {
			t.Errorf("ended with %v, want code 7", err)
		}
		if out.String() != "out\n" || errs.String() != "errors\n" {
			t.Errorf("out %q, errors %q", &out, &errs)
		}
	})
	t.Run("no such command", func(t *testing.T) {
		err := s.exec(t, t.Context(), transport, pod, remotecommand.StreamOptions{Stdout: io.Discard}, "/no/such/command")
		if err == nil || !strings.Contains(err.Error(), "no such file") {
			t.Errorf("ended with %v, want that the file is missing", err)
		}
	})
	if closes {
		t.Run("the end of stdin", func(t *testing.T) {
			var out bytes.Buffer
			o := remotecommand.StreamOptions{Stdin: strings.NewReader("b\na\n"), Stdout: &out}
			if err := s.exec(t, t.Context(), transport, pod, o, "sort"); err != nil || out.String() != "a\nb\n" {
				t.Errorf("output %q, error %v", &out, err)
			}
		})
	}
	t.Run("terminal", func(t *testing.T) {
		in, keys := io.Pipe()
		defer keys.Close()
		out, sizes := newWatched(), make(sizeQueue, 2)
		sizes <- remotecommand.TerminalSize{Width: 101, Height: 33}
		var g errgroup.Group
		g.Go(func() error {
			return s.exec(t, t.Context(), transport, pod, remotecommand.StreamOptions{Stdin: in, Stdout: out, Tty: true, TerminalSizeQueue: sizes}, "sh")
		})
		typing, responses := "stty size\n", []string{"33 101", "24 80"}
		if transport == "SPDY v2" { // which has no terminal sizes
			typing, responses = "expr 40 + 2\n", []string{"42"}
		}
		for i, want := range responses {
			proctest.Eventually(t, "the terminal prints "+want, func() error {
				if _, err := io.WriteString(keys, typing); err != nil {
					return err
				}
				return out.has(want)
			})
			if i == 0 {
				sizes <- remotecommand.TerminalSize{Width: 80, Height: 24}
			}
		}
		io.WriteString(keys, "exit 3\n")
		var code exec.CodeExitError
		if err := g.Wait(); codes && (!errors.As(err, &code) || code.Code != 3) {
			t.Errorf("ended with %v, want code 3", err)
		}
		close(sizes)
	})
}

// sizeQueue delivers the new sizes of a terminal.
type sizeQueue chan remotecommand.TerminalSize

// Next implements remotecommand.TerminalSizeQueue.
func (q sizeQueue) Next() *remotecommand.TerminalSize {
	if size, ok := <-q; ok {
		return &size
	}
	return nil
}

// noise returns n bytes that do not compress. They are always the same.
func noise(n int64) io.Reader {
	return io.LimitReader(rand.NewChaCha8([32]byte{}), n)
}

// TestLargeDataArrivesWhole checks that input and output arrive complete and in order.
func TestLargeDataArrivesWhole(t *testing.T) {
	t.Parallel()
	const size = 50 << 20
	c := newCluster(t)
	c.terminalPod(t, "p", nil)
	want := sha256.New()
	if _, err := io.Copy(want, noise(size)); err != nil {
		t.Fatal(err)
	}
	for _, transport := range []string{"SPDY v4", "WebSocket v5", "WebSocket v4"} {
		t.Run(transport, func(t *testing.T) {
			got := sha256.New()
			o := remotecommand.StreamOptions{Stdin: noise(size), Stdout: got}
			if err := c.exec(t, t.Context(), transport, "p", o, "head", "-c", fmt.Sprint(size)); err != nil {
				t.Fatal(err)
			}
			if !bytes.Equal(got.Sum(nil), want.Sum(nil)) {
				t.Error("the output is not the input")
			}
		})
	}
}

// TestConcurrentExecsKeepTheirInput runs two hundred commands concurrently. Each must receive its own input.
func TestConcurrentExecsKeepTheirInput(t *testing.T) {
	t.Parallel()
	const many = 200
	c := newCluster(t)
	k := c.terminalPod(t, "p", nil)
	before := c.goroutines(t)
	var g errgroup.Group
	var most atomic.Int64
	ready := make(chan struct{})
	for i := range many {
		g.Go(func() error {
			in, keys := io.Pipe()
			transport := []string{"SPDY v4", "WebSocket v5"}[i%2]
			var out bytes.Buffer
			text := strings.Repeat(fmt.Sprintf("line of %d\n", i), 1000)
			go func() {
				io.WriteString(keys, text[:len(text)/2])
				if most.Add(1) == many {
					close(ready)
				}
				select { // until all are open
				case <-ready:
				case <-t.Context().Done():
				}
				io.WriteString(keys, text[len(text)/2:])
				keys.Close()
			}()
			err := c.exec(t, t.Context(), transport, "p", remotecommand.StreamOptions{Stdin: in, Stdout: &out}, "cat")
			if err == nil && out.String() != text {
				err = fmt.Errorf("exec %d received %.40q", i, out.String())
			}
			return err
		})
	}
	if err := g.Wait(); err != nil {
		t.Fatal(err)
	}
	c.settles(t, k, before)
}

// TestDisconnectEndsStreams checks that the streams of a client that disconnects end, also at the kubelet.
func TestDisconnectEndsStreams(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	k := c.terminalPod(t, "p", nil)
	before := c.goroutines(t)
	for _, transport := range transports {
		ctx, cancel := context.WithCancel(t.Context())
		out, in := newWatched(), typed(t, "y\n")
		done := make(chan error, 1)
		go func() {
			done <- c.exec(t, ctx, transport, "p", remotecommand.StreamOptions{Stdin: in, Stdout: out}, "cat")
		}()
		proctest.Eventually(t, transport+" is echoed", func() error { return out.has("y\n") })
		cancel()
		if err := <-done; !errors.Is(err, context.Canceled) {
			t.Errorf("%s: error %v", transport, err)
		}
	}
	c.settles(t, k, before)
}

// TestShutdownEndsStreams checks that a stopping server does not wait for open terminals.
func TestShutdownEndsStreams(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	k := c.terminalPod(t, "p", nil)
	var streams sync.WaitGroup
	for _, transport := range transports {
		out := newWatched()
		streams.Go(func() {
			// SPDY cannot report that a connection ended too early.
			_ = c.exec(t, t.Context(), transport, "p", remotecommand.StreamOptions{Stdin: typed(t, "y\n"), Stdout: out}, "cat")
		})
		proctest.Eventually(t, transport+" is echoed", func() error { return out.has("y\n") })
	}
	if err := c.Terminate(t); err != nil {
		t.Error(err)
	}
	streams.Wait()
	proctest.Eventually(t, "the kubelet has no streams", func() error { return none(k.serving()) })
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	c.Await(t, "ready after")
}

// TestUnknownExecProtocolsAreRejected checks that unknown versions of the protocol are rejected.
func TestUnknownExecProtocolsAreRejected(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.terminalPod(t, "p", nil)
	for _, transport := range []string{"SPDY v9", "WebSocket v9"} {
		err := c.exec(t, t.Context(), transport, "p", remotecommand.StreamOptions{Stdout: io.Discard}, "true")
		if err == nil {
			t.Errorf("%s: succeeded", transport)
		}
	}
}
