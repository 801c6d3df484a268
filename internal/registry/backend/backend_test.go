package backend

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"testing"

	utilnet "k8s.io/apimachinery/pkg/util/net"
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

// TestConnectionsEndWithTheirRequest: one that is read from when the request ends, too.
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

// TestUnheardBytesAreBounded: what nobody is sent comes to an end; what is passed on does not.
func TestUnheardBytesAreBounded(t *testing.T) {
	for _, heard := range []bool{false, true} {
		var r Request
		near, far := dialed(t, NewContext(t.Context(), &r))
		const size = 2 * MaxUnheard
		go func() {
			_, _ = io.Copy(far, bytes.NewReader(make([]byte, size)))
			far.Close()
		}()
		sum, part := 0, make([]byte, 1<<20)
		var err error
		for err == nil {
			var n int
			n, err = near.Read(part)
			if sum += n; heard {
				r.Heard()
			}
		}
		if heard && (sum != size || !errors.Is(err, io.EOF)) || !heard && (sum > MaxUnheard || !errors.Is(err, ErrUnheard)) {
			t.Errorf("heard %v: %d bytes, %v", heard, sum, err)
		}
		near.Close()
	}
}

// TestTransportsAreFound: who connects by itself finds what the transport connects with.
func TestTransportsAreFound(t *testing.T) {
	if Transport(nil) != nil {
		t.Error("a transport came of none")
	}
	unknown := utilnet.RoundTripperWrapper(struct{ opaque }{})
	if _, err := utilnet.DialerFor(Transport(unknown)); err == nil {
		t.Error("a transport that does not tell how it connects is bound")
	}
}

type opaque struct{ http.RoundTripper }

// WrappedRoundTripper implements utilnet.RoundTripperWrapper.
func (o opaque) WrappedRoundTripper() http.RoundTripper { return hidden{} }

type hidden struct{ http.RoundTripper }

// TestUnaskedUpgradesEndWithTheirRequest: what a backend says that has changed protocols
// unasked is read no longer than its request lasts.
func TestUnaskedUpgradesEndWithTheirRequest(t *testing.T) {
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
