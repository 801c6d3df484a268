package loopback

import (
	"context"
	"errors"
	"net"
	"net/http"
	"strings"
	"testing"
)

// roundTripper is a function.
type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// TestEarlyRequestsWait checks that a request before the server serves waits until its context ends.
func TestEarlyRequestsWait(t *testing.T) {
	transport := NewTransport()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "https://x/", strings.NewReader("body"))
	if err != nil {
		t.Fatal(err)
	}
	if resp, err := transport.RoundTrip(req); !errors.Is(err, context.Canceled) {
		t.Errorf("answered %v, %v", resp, err)
	}
	answered := make(chan error, 1)
	go func() {
		_, err := transport.RoundTrip(req.WithContext(t.Context()))
		answered <- err
	}()
	transport.Attach(roundTripper(func(*http.Request) (*http.Response, error) { return nil, net.ErrClosed }))
	if err := <-answered; !errors.Is(err, net.ErrClosed) {
		t.Errorf("not answered by what was attached: %v", err)
	}
}

// idler is a RoundTripper that counts calls of CloseIdleConnections.
type idler struct {
	http.RoundTripper
	closed int
}

func (i *idler) CloseIdleConnections() { i.closed++ }

// TestIdleConnectionsAreClosed checks that the server's transport is asked to close its idle connections.
func TestIdleConnectionsAreClosed(t *testing.T) {
	transport, next := NewTransport(), new(idler)
	transport.Attach(next)
	transport.CloseIdleConnections()
	if next.closed != 1 {
		t.Errorf("called %d times", next.closed)
	}
}
