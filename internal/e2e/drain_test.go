package e2e_test

import (
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

// TestServerServesOnWhileItDrains checks that after SIGTERM the server is not ready but serves for the delay. Then a
// request in flight finishes, a watch ends like a complete response, and the process exits with 0.
func TestServerServesOnWhileItDrains(t *testing.T) {
	t.Parallel() // it takes the delay's time
	// A machine that is too slow for the delay gets a longer one.
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
	t.Error("the longest delay is too short to see anything within")
}

// servesOn returns an error if a server that has received a signal does not serve normally during its delay. Only
// /readyz may fail.
func (p *process) servesOn(watched <-chan error) error {
	p.t.Helper()
	code, err := 0, error(nil)
	proctest.Eventually(p.t, "/readyz fails", func() error {
		if code, err = p.status("/readyz", ""); code == http.StatusOK {
			return errors.New("it does not")
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

// TestDrainCutsOffNoRequest has readers that continue until they are refused. None may be cut off or receive a wrong
// response.
func TestDrainCutsOffNoRequest(t *testing.T) {
	p := serve(t, "--unsafe-no-fsync")
	config := p.config()
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
	p.Eventually(t, "serves all of them", func() error {
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
	p.signal(syscall.SIGTERM)
	for range readers {
		if err := <-ended; !errors.Is(err, syscall.ECONNREFUSED) {
			t.Errorf("a reader ended with %v", err)
		}
	}
	if err := p.Wait(t); err != nil {
		t.Errorf("exit: %v\n%s", err, p.Output())
	}
}

// readAll reads a response to its clean end.
func readAll(transport http.RoundTripper, url string) error {
	resp, err := (&http.Client{Transport: transport}).Get(url)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	return readOK(resp)
}

// readOK reads a response, which must be 200, to its clean end.
func readOK(resp *http.Response) error {
	if resp.StatusCode != http.StatusOK {
		return errors.New(resp.Status)
	}
	_, err := io.Copy(io.Discard, resp.Body)
	return err
}

// TestStartEndsWellOnASignal checks that a signal during the start ends the server cleanly, and that the next start
// works.
func TestStartEndsWellOnASignal(t *testing.T) {
	p := newProcess(t, "--unsafe-no-fsync")
	for _, stage := range []string{"store:", "loaded:", "serving:"} {
		p.start()
		p.Await(t, stage)
		if err := p.Terminate(t); err != nil || !strings.HasSuffix(p.Output(), "stopped\n") {
			t.Errorf("called off at %q: %v\n%s", stage, err, p.Output())
		}
	}
}

// TestSecondSignalEndsAtOnce checks that a second signal ends the server at once.
func TestSecondSignalEndsAtOnce(t *testing.T) {
	t.Parallel()
	p := serve(t, "--unsafe-no-fsync", "--shutdown-delay-duration=1h")
	p.signal(syscall.SIGTERM)
	p.Await(t, "stopping")
	p.signal(syscall.SIGTERM)
	// It is not left to the kernel, which spares the first process of a container.
	var exit *exec.ExitError
	if err := p.Wait(t); !errors.As(err, &exit) || exit.ExitCode() != 1 { // which does not wait an hour
		t.Errorf("%v: %s", err, p.Output())
	}
}

// occupy begins a watch and a request whose body is incomplete. It returns how they end, and the writer of the rest
// of the body. The server has begun to serve both when occupy returns.
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
			req.Header.Set("Expect", "100-continue") // the 100 is sent once the body is read
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
			p.t.Fatalf("%s %s was not begun: %v", method, path, err)
		}
		return ended
	}
	watched = begin(http.MethodGet, "/api/v1/namespaces?watch=1", nil, readOK)
	body, finish := io.Pipe()
	go func() { _, _ = io.WriteString(finish, `{"metadata":`) }() // the rest waits until it is read
	created = begin(http.MethodPost, "/api/v1/namespaces/default/configmaps", body, func(resp *http.Response) error {
		text, err := io.ReadAll(resp.Body)
		if err == nil && resp.StatusCode != http.StatusCreated {
			err = fmt.Errorf("%s: %s", resp.Status, text)
		}
		return err
	})
	return watched, created, finish
}

// TestEndingServersSendRetryAfter checks that a stopping server refuses new requests with 429, except probes, until
// it has completed the requests in flight.
func TestEndingServersSendRetryAfter(t *testing.T) {
	t.Parallel()
	p := serve(t, "--unsafe-no-fsync", "--shutdown-send-retry-after", "--shutdown-watch-termination-grace-period=1s")
	watched, created, finish := p.occupy()
	p.signal(syscall.SIGTERM)
	proctest.Eventually(t, "new requests are refused", func() error {
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

// TestServiceManagerIsNotified checks that the service manager is notified when the server is ready and when it
// stops.
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
			t.Fatalf("%q %v, want %q\n%s", state[:n], err, want, p.Output())
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
