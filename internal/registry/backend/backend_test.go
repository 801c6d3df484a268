package backend

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"

	"golang.org/x/sync/errgroup"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/apimachinery/pkg/util/proxy"
	translator "k8s.io/apiserver/pkg/util/proxy"
)

// dialed returns the near end of a connection as a proxy opens it, and the far end.
func dialed(t *testing.T, ctx context.Context) (near, far net.Conn) {
	t.Helper()
	there, far := net.Pipe()
	t.Cleanup(func() { far.Close() })
	plain := &http.Transport{DialContext: func(context.Context, string, string) (net.Conn, error) { return there, nil }}
	dial, err := utilnet.DialerFor(Transport(plain))
	if err != nil {
		t.Fatal(err)
	}
	near, err = dial(ctx, "tcp", "nowhere:1")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { near.Close() })
	return near, far
}

// TestConnectionsEndWithTheirRequest checks that a connection ends with its request, even while it is being read.
func TestConnectionsEndWithTheirRequest(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	near, _ := dialed(t, ctx)
	read := make(chan error)
	go func() { _, err := near.Read(make([]byte, 1)); read <- err }()
	cancel()
	if err := <-read; err == nil {
		t.Error("the connection outlives its request")
	}
}

// TestUnforwardedBytesAreBounded checks that the bytes that a backend sends, and that are not forwarded to the client, have
// a limit.
func TestUnforwardedBytesAreBounded(t *testing.T) {
	for _, forwarded := range []bool{false, true} {
		var r Request
		near, far := dialed(t, NewContext(t.Context(), &r))
		const size = 2 * MaxUnforwarded
		go func() {
			_, _ = io.Copy(far, bytes.NewReader(make([]byte, size)))
			far.Close()
		}()
		sum, part := 0, make([]byte, 1<<20)
		var err error
		for err == nil {
			var n int
			n, err = near.Read(part)
			if sum += n; forwarded {
				r.Forwarded()
			}
		}
		if forwarded && (sum != size || !errors.Is(err, io.EOF)) || !forwarded && (sum > MaxUnforwarded || !errors.Is(err, ErrUnforwarded)) {
			t.Errorf("forwarded %v: got %d bytes and error %v", forwarded, sum, err)
		}
		near.Close()
	}
}

// TestClosedBackendsAreReadToTheirEnd checks that bytes that a backend sent before it closed the connection reach the
// client, although the client sends more.
func TestClosedBackendsAreReadToTheirEnd(t *testing.T) {
	const head, last = "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: SPDY/3.1\r\n\r\n", "the last output"
	there := &closedBackend{failed: make(chan struct{}, 2), closed: make(chan struct{}), parts: []string{head, last}}
	plain := &http.Transport{DialContext: func(context.Context, string, string) (net.Conn, error) { return there, nil }}
	var r Request
	near, far := net.Pipe()
	defer far.Close()
	var got []byte
	var g errgroup.Group
	g.Go(func() error { // until the proxy closes the connection
		for range 2 {
			_, _ = io.WriteString(far, "ping")
		}
		return nil
	})
	g.Go(func() (err error) { got, err = io.ReadAll(far); return err })
	req := httptest.NewRequestWithContext(NewContext(t.Context(), &r), http.MethodPost, "/exec", nil)
	req.Header.Set("Connection", "Upgrade")
	req.Header.Set("Upgrade", "SPDY/3.1")
	proxy.NewUpgradeAwareHandler(&url.URL{Scheme: "http", Host: "nowhere:1"}, Transport(plain), false, true, nil).ServeHTTP(taken{httptest.NewRecorder(), near, &r}, req)
	if err := g.Wait(); err != nil || string(got) != head+last {
		t.Errorf("the client got %q and error %v", got, err)
	}
}

// TestClosedBackendsEndTranslatedCommands checks that the client of a command that is translated to SPDY learns at
// once that the backend closed the connection after its response.
func TestClosedBackendsEndTranslatedCommands(t *testing.T) { synctest.Test(t, endTranslated) }

func endTranslated(t *testing.T) {
	const head = "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: SPDY/3.1\r\n\r\n"
	there := &closedBackend{failed: make(chan struct{}, 2), closed: make(chan struct{}), parts: []string{head, ""}}
	plain := &http.Transport{DialContext: func(context.Context, string, string) (net.Conn, error) { return there, nil }}
	var r Request
	near, far := net.Pipe()
	defer far.Close()
	var got []byte
	var g errgroup.Group
	g.Go(func() (err error) { got, err = io.ReadAll(far); return err })
	req := httptest.NewRequestWithContext(NewContext(t.Context(), &r), http.MethodGet, "/exec", nil)
	for name, value := range map[string]string{
		"Connection": "Upgrade", "Upgrade": "websocket", "Sec-WebSocket-Key": "dGhlIHNhbXBsZSBub25jZQ==", "Sec-WebSocket-Version": "13",
		"Sec-WebSocket-Protocol": "v5.channel.k8s.io",
	} {
		req.Header.Set(name, value)
	}
	translator.NewStreamTranslatorHandler(&url.URL{Scheme: "http", Host: "nowhere:1"}, Transport(plain), 0, translator.Options{Stdout: true}).ServeHTTP(taken{httptest.NewRecorder(), near, &r}, req)
	if err := g.Wait(); err != nil || !bytes.Contains(got, []byte(syscall.EPIPE.Error())) {
		t.Errorf("the client got %q and error %v", got, err)
	}
}

// closedBackend is a connection to a backend that has read a request, sent parts and closed the connection.
type closedBackend struct {
	net.Conn

	begun  bool          // the request was written
	failed chan struct{} // has one element for each write that failed, up to its capacity
	closed chan struct{}
	close  sync.Once
	parts  []string // that were not read yet; the last one is read when two writes have failed
}

func (b *closedBackend) Write(p []byte) (int, error) {
	if !b.begun {
		b.begun = true
		return len(p), nil
	}
	select {
	case b.failed <- struct{}{}:
	default:
	}
	return 0, syscall.EPIPE
}

func (b *closedBackend) Read(p []byte) (int, error) {
	if len(b.parts) == 0 {
		return 0, io.EOF
	}
	if len(b.parts) == 1 {
		for range 2 {
			select {
			case <-b.failed:
			case <-b.closed:
				return 0, net.ErrClosed
			}
		}
	}
	n := copy(p, b.parts[0])
	b.parts = b.parts[1:]
	return n, nil
}

func (b *closedBackend) Close() error {
	b.close.Do(func() { close(b.closed) })
	return nil
}

// taken is a response whose handler takes over the connection.
type taken struct {
	*httptest.ResponseRecorder

	conn net.Conn
	r    *Request
}

// Hijack implements http.Hijacker.
func (t taken) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	c := client{t.conn, t.r}
	return c, bufio.NewReadWriter(bufio.NewReader(c), bufio.NewWriter(c)), nil
}

// client is a connection to a client.
type client struct {
	net.Conn

	r *Request
}

func (c client) Write(p []byte) (int, error) {
	c.r.Forwarded()
	return c.Conn.Write(p)
}

// TestFailedWritesOfRequestsAreReported checks that a backend that closes the connection before it has read the
// request causes an error.
func TestFailedWritesOfRequestsAreReported(t *testing.T) {
	there := &closedBackend{begun: true, failed: make(chan struct{}, 1), closed: make(chan struct{})}
	plain := &http.Transport{DialContext: func(context.Context, string, string) (net.Conn, error) { return there, nil }}
	var r Request
	dial, err := utilnet.DialerFor(Transport(plain))
	if err != nil {
		t.Fatal(err)
	}
	near, err := dial(NewContext(t.Context(), &r), "tcp", "nowhere:1")
	if err != nil {
		t.Fatal(err)
	}
	defer near.Close()
	if _, err := near.Write([]byte("GET")); !errors.Is(err, syscall.EPIPE) {
		t.Errorf("write of the request: got error %v, want EPIPE", err)
	}
}

// TestTransport checks that Transport accepts nil, and that a caller that dials by itself gets an error if the dialer
// of a transport cannot be found.
func TestTransport(t *testing.T) {
	if Transport(nil) != nil {
		t.Error("Transport(nil): got a transport, want nil")
	}
	unknown := utilnet.RoundTripperWrapper(struct{ opaque }{})
	if _, err := utilnet.DialerFor(Transport(unknown)); err == nil {
		t.Error("got a dialer of a transport that does not expose one, want an error")
	}
}

type opaque struct{ http.RoundTripper }

// WrappedRoundTripper implements utilnet.RoundTripperWrapper.
func (o opaque) WrappedRoundTripper() http.RoundTripper { return hidden{} }

type hidden struct{ http.RoundTripper }

// TestUnrequestedUpgradesEndWithTheirRequest checks that the connection to a backend that switches protocols without a
// request for it ends with the request.
func TestUnrequestedUpgradesEndWithTheirRequest(t *testing.T) {
	there, far := net.Pipe()
	defer far.Close()
	go func() {
		_, _ = far.Read(make([]byte, 4096))
		_, _ = io.WriteString(far, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: other\r\n\r\n")
	}()
	ctx, cancel := context.WithCancel(t.Context())
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://nowhere/", nil)
	if err != nil {
		t.Fatal(err)
	}
	rt := Transport(&http.Transport{DialContext: func(context.Context, string, string) (net.Conn, error) { return there, nil }})
	resp, err := rt.RoundTrip(req)
	if err != nil {
		t.Fatal(err)
	}
	read := make(chan error)
	go func() { _, err := resp.Body.Read(make([]byte, 1)); read <- err }()
	cancel()
	if err := <-read; err == nil {
		t.Error("the connection outlives its request")
	}
}
