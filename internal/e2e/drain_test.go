package e2e_test

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"k8s.io/client-go/rest"

	"github.com/larder-io/larder/internal/proctest"
)

// TestServerServesWhileItDrains checks that after SIGTERM the server reports that it is not ready, but serves during
// the delay. After the delay, a request in flight completes, a watch ends like a complete response, and the process
// exits with 0.
func TestServerServesWhileItDrains(t *testing.T) {
	t.Parallel() // mostly waits for the delay
	// On a machine that is too slow for the delay, the test tries again with a longer one.
	for _, delay := range []time.Duration{10 * time.Second, 40 * time.Second, 2 * time.Minute} {
		p := serve(t, "--unsafe-no-fsync", "--shutdown-delay-duration="+delay.String(), "--request-timeout=10m", "--authorization-mode=RBAC")
		watched, created, finish := p.occupy()
		began := time.Now()
		p.signal(syscall.SIGTERM)
		if err := p.servesOn(watched); time.Since(began) < delay {
			if err != nil {
				t.Error(err)
			}
			p.awaitDrained(watched, created, finish)
			return
		}
		p.Kill()
		finish.Close()
	}
	t.Error("this machine is too slow for the longest delay")
}

// servesOn returns an error if a server that has received a signal does not serve normally during its delay. Only
// /readyz may fail.
func (p *process) servesOn(watched <-chan error) error {
	p.t.Helper()
	code, err := 0, error(nil)
	proctest.Eventually(p.t, "/readyz fails", func() error {
		if code, err = p.status("/readyz", ""); code == http.StatusOK {
			return errors.New("it does not report that it is not ready")
		}
		return nil
	})
	if code != http.StatusInternalServerError {
		return fmt.Errorf("/readyz while draining: %d %w", code, err)
	}
	if code, err := p.status("/livez", ""); code != http.StatusOK {
		return fmt.Errorf("/livez while draining: %d %w", code, err)
	}
	select {
	case err := <-watched:
		return fmt.Errorf("the watch ended within the delay: %w", err)
	default:
		return nil
	}
}

// awaitDrained checks that the server exits with 0 and that all requests in flight have finished.
func (p *process) awaitDrained(watched, created <-chan error, finish io.WriteCloser) {
	t := p.t
	t.Helper()
	proctest.Eventually(t, "connections are refused", func() error {
		_, err := p.status("/livez", "")
		if errors.Is(err, syscall.ECONNREFUSED) {
			return nil
		}
		return fmt.Errorf("got %v", err)
	})
	if _, err := io.WriteString(finish, `{"name":"in-flight"}}`); err != nil {
		t.Error(err)
	}
	finish.Close()
	if err := <-created; err != nil {
		t.Errorf("the request in flight: %v", err)
	}
	if err := <-watched; err != nil {
		t.Errorf("the watch: %v", err)
	}
	if err := p.Wait(t); err != nil {
		t.Errorf("exit: %v\n%s", err, p.Output())
	}
	if !strings.HasSuffix(p.Output(), "stopped\n") {
		t.Errorf("output:\n%s", p.Output())
	}
	p.start()
	p.awaitReady()
	k := newKubectl(t, p.kubeconfig(), "default")
	k.must(t, "", "get", "configmap", "in-flight")
}

// TestDrainInterruptsNoRequest has readers that send requests until no connection can be opened. No response may be
// incomplete or wrong.
func TestDrainInterruptsNoRequest(t *testing.T) {
	p := serve(t, "--unsafe-no-fsync")
	const tries = 5
	for try := 1; ; try++ {
		slow, err := p.drainUnderReaders()
		if err == nil {
			return
		}
		if !slow || try == tries {
			t.Fatal(err)
		}
		t.Logf("the machine is too slow: %v", err)
		p.start()
		p.awaitReady()
	}
}

// drainUnderReaders stops the server under readers, and returns the errors of interrupted requests. slow says that no
// request was interrupted within a second. The server then closes connections whose clients have not acknowledged the
// GOAWAY, because they or the server did not run.
func (p *process) drainUnderReaders() (slow bool, interrupted error) {
	t, config := p.t, p.config()
	t.Helper()
	ended := make(chan error)
	const readers = 8
	var reads atomic.Int64
	for range readers {
		transport, err := rest.TransportFor(config)
		if err != nil {
			t.Fatal(err)
		}
		go func() {
			var err error
			for err == nil {
				err = readAll(transport, p.url()+"/apis/rbac.authorization.k8s.io/v1/clusterroles")
				reads.Add(1)
			}
			ended <- err
		}()
	}
	p.Eventually(t, "serves all readers", func() error {
		select {
		case err := <-ended:
			t.Fatalf("before the drain: %v", err)
		default:
		}
		if n := reads.Load(); n < 20*readers {
			return fmt.Errorf("%d reads", n)
		}
		return nil
	})
	began := time.Now()
	p.signal(syscall.SIGTERM)
	slow = true
	for range readers {
		if err := <-ended; !errors.Is(err, syscall.ECONNREFUSED) && !errors.Is(err, errHandshake) {
			after := time.Since(began)
			slow = slow && after > time.Second
			interrupted = errors.Join(interrupted, fmt.Errorf("a reader got %w after %v", err, after))
		}
	}
	if err := p.Wait(t); err != nil {
		t.Errorf("exit: %v\n%s", err, p.Output())
	}
	return slow, interrupted
}

// errHandshake is the error of readAll if the connection was reset before its TLS handshake, so that no request was
// sent. The kernel resets the connections that it has accepted and the server has not when the listener is closed.
var errHandshake = errors.New("reset before the TLS handshake")

// readAll reads a response completely.
func readAll(transport http.RoundTripper, url string) error {
	var reset atomic.Bool
	ctx := httptrace.WithClientTrace(context.Background(), &httptrace.ClientTrace{
		TLSHandshakeDone: func(_ tls.ConnectionState, err error) { reset.Store(errors.Is(err, syscall.ECONNRESET)) },
	})
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	resp, err := transport.RoundTrip(req)
	switch {
	case err != nil && reset.Load():
		return errHandshake
	case err != nil:
		return err
	}
	defer resp.Body.Close()
	return readOK(resp)
}

// readOK reads a response, which must be 200, completely.
func readOK(resp *http.Response) error {
	if resp.StatusCode != http.StatusOK {
		return errors.New(resp.Status)
	}
	_, err := io.Copy(io.Discard, resp.Body)
	return err
}

// TestSignalDuringStart checks that a signal during the start stops the server cleanly, and that the next start works.
func TestSignalDuringStart(t *testing.T) {
	p := newProcess(t, "--unsafe-no-fsync")
	for _, stage := range []string{"store:", "loaded:", "serving:"} {
		p.start()
		p.Await(t, stage)
		if err := p.Terminate(t); err != nil || !strings.HasSuffix(p.Output(), "stopped\n") {
			t.Errorf("a signal at %q: exit: %v\n%s", stage, err, p.Output())
		}
	}
}

// TestSecondSignalStopsImmediately checks that a second signal stops the server immediately.
func TestSecondSignalStopsImmediately(t *testing.T) {
	t.Parallel()
	p := serve(t, "--unsafe-no-fsync", "--shutdown-delay-duration=1h")
	p.signal(syscall.SIGTERM)
	p.Await(t, "stopping")
	p.signal(syscall.SIGTERM)
	// The server handles the signal itself, because the kernel ignores it for the first process of a container.
	var exit *exec.ExitError
	if err := p.Wait(t); !errors.As(err, &exit) || exit.ExitCode() != 1 { // without the delay of an hour
		t.Errorf("exit: %v, want 1: %s", err, p.Output())
	}
}

// occupy opens a watch and sends a request with an incomplete body. When it returns, the server has begun to serve
// both. It returns how they end, and the writer of the rest of the body.
func (p *process) occupy() (watched, created <-chan error, finish *io.PipeWriter) {
	p.t.Helper()
	transport, err := rest.TransportFor(p.config())
	if err != nil {
		p.t.Fatal(err)
	}
	begin := func(method, path string, body io.Reader, read func(*http.Response) error) <-chan error {
		ended, begun := make(chan error, 1), make(chan struct{})
		trace := &httptrace.ClientTrace{GotFirstResponseByte: sync.OnceFunc(func() { close(begun) })}
		req, err := http.NewRequestWithContext(httptrace.WithClientTrace(p.t.Context(), trace), method, p.url()+path, body)
		if err != nil {
			p.t.Fatal(err)
		}
		if body != nil {
			req.Header.Set("Content-Type", "application/json")
			req.Header.Set("Expect", "100-continue") // the server sends 100 when it reads the body
		}
		go func() {
			resp, err := (&http.Client{Transport: transport}).Do(req)
			if err == nil {
				err = read(resp)
				resp.Body.Close()
			}
			ended <- err
		}()
		select {
		case <-begun:
		case err := <-ended:
			p.t.Fatalf("the server did not begin to serve %s %s: %v", method, path, err)
		}
		return ended
	}
	watched = begin(http.MethodGet, "/api/v1/namespaces?watch=1", nil, readOK)
	body, finish := io.Pipe()
	go func() { _, _ = io.WriteString(finish, `{"metadata":`) }() // the write returns when the server has read it
	created = begin(http.MethodPost, "/api/v1/namespaces/default/configmaps", body, func(resp *http.Response) error {
		text, err := io.ReadAll(resp.Body)
		if err == nil && resp.StatusCode != http.StatusCreated {
			err = fmt.Errorf("%s: %s", resp.Status, text)
		}
		return err
	})
	return watched, created, finish
}

// TestStoppingServersSendRetryAfter checks that a stopping server rejects new requests with 429, except probes, until
// the requests in flight are complete.
func TestStoppingServersSendRetryAfter(t *testing.T) {
	t.Parallel()
	p := serve(t, "--unsafe-no-fsync", "--shutdown-send-retry-after", "--shutdown-watch-termination-grace-period=1s")
	watched, created, finish := p.occupy()
	p.signal(syscall.SIGTERM)
	proctest.Eventually(t, "new requests are rejected", func() error {
		resp, text := p.fetch("GET", "/api/v1/namespaces", nil, nil)
		if resp.StatusCode != http.StatusTooManyRequests {
			return fmt.Errorf("%d %s", resp.StatusCode, text)
		}
		if want := "The apiserver is shutting down, please try again later.\n"; string(text) != want || resp.Header.Get("Retry-After") != "5" || resp.ProtoMajor == 1 && !resp.Close {
			t.Errorf("%v %s", resp.Header, text)
		}
		return nil
	})
	if err := <-watched; err != nil {
		t.Errorf("the watch: %v", err)
	}
	for path, code := range map[string]int{"/readyz": 500, "/livez": 200, "/healthz/ping": 200, "/metrics": 200, "/version": 429} {
		if resp, text := p.fetch("GET", path, nil, nil); resp.StatusCode != code {
			t.Errorf("%s: %d %s", path, resp.StatusCode, text)
		}
	}
	if _, err := io.WriteString(finish, `{"name":"in-flight"}}`); err != nil {
		t.Error(err)
	}
	finish.Close()
	if err := <-created; err != nil {
		t.Errorf("the request in flight: %v", err)
	}
	if err := p.Wait(t); err != nil {
		t.Errorf("exit: %v\n%s", err, p.Output())
	}
}

// TestServiceManagerIsNotified checks that the service manager is notified when the server is ready and when it stops.
func TestServiceManagerIsNotified(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "notify")
	l, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: socket, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	p := newProcess(t, "--unsafe-no-fsync")
	p.Process = proctest.New(t, "the server", func() *exec.Cmd {
		cmd := exec.Command(binaries.larder, "serve", "--data-dir", p.dir, "--secure-port", strconv.Itoa(p.port), "--unsafe-no-fsync")
		cmd.Env = append(os.Environ(), "NOTIFY_SOCKET="+socket)
		return cmd
	})
	p.start()
	hear := func(want string) {
		t.Helper()
		if err := l.SetReadDeadline(time.Now().Add(proctest.Patience)); err != nil {
			t.Fatal(err)
		}
		var state [64]byte
		if n, err := l.Read(state[:]); err != nil || string(state[:n]) != want {
			t.Fatalf("got %q, error %v, want %q\n%s", state[:n], err, want, p.Output())
		}
	}
	hear("READY=1")
	p.want(http.StatusOK, "/api/v1/namespaces")
	p.signal(syscall.SIGTERM)
	hear("STOPPING=1")
	if err := p.Wait(t); err != nil {
		t.Error(err)
	}
}
