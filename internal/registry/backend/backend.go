package backend

import (
	"context"
	"errors"
	"net"
	"net/http"
	"sync/atomic"
	"syscall"

	utilnet "k8s.io/apimachinery/pkg/util/net"
)

// MaxUnheard limits the bytes that a backend may send while nothing is sent to the client. It is larger
// than a response header, and than upstream's proxies' buffer for a slow client.
const MaxUnheard = 16 << 20

// ErrUnheard is the error of reads from a backend that has sent more than MaxUnheard.
var ErrUnheard = errors.New("backend: the backend sent too much while the client received nothing")

// Request is a proxied request. Its methods are safe for concurrent use.
type Request struct {
	unheard  atomic.Int64 // bytes that the backend has sent since something was last sent to the client
	answered atomic.Bool  // something was sent to the client
}

// Heard resets the limit, because something is sent to the client.
func (r *Request) Heard() {
	r.unheard.Store(0)
	r.answered.Store(true)
}

// receive counts n bytes and reports whether the limit is exceeded.
func (r *Request) receive(n int) bool { return r.unheard.Add(int64(n)) > MaxUnheard }

type requestKey struct{}

// NewContext returns a context for a request that may be proxied. The caller calls r.Heard whenever it
// sends something to the client.
func NewContext(ctx context.Context, r *Request) context.Context {
	return context.WithValue(ctx, requestKey{}, r)
}

// Transport wraps rt. Code that opens connections for upgrades itself then finds a dialer with limits. If
// the dialer of rt is not known, Transport changes nothing.
func Transport(rt http.RoundTripper) http.RoundTripper {
	if rt == nil {
		return nil
	}
	return transport{rt}
}

// transport implements utilnet.RoundTripperWrapper.
type transport struct{ http.RoundTripper }

// RoundTrip implements http.RoundTripper. If a backend upgrades a connection unasked, RoundTrip closes it
// when the request ends: net/http leaves such a connection to the reader of the body.
func (t transport) RoundTrip(req *http.Request) (*http.Response, error) {
	resp, err := t.RoundTripper.RoundTrip(req)
	if err == nil && resp.StatusCode == http.StatusSwitchingProtocols {
		body := resp.Body
		context.AfterFunc(req.Context(), func() { body.Close() })
	}
	return resp, err
}

// WrappedRoundTripper implements utilnet.RoundTripperWrapper, by which callers find the dialer.
func (t transport) WrappedRoundTripper() http.RoundTripper {
	dial, err := utilnet.DialerFor(t.RoundTripper)
	if err != nil {
		return t.RoundTripper
	}
	config, err := utilnet.TLSClientConfig(t.RoundTripper)
	if err != nil {
		return t.RoundTripper
	}
	if dial == nil {
		dial = new(net.Dialer).DialContext
	}
	return &http.Transport{
		TLSClientConfig: config,
		DialContext: func(ctx context.Context, network, address string) (net.Conn, error) {
			c, err := dial(ctx, network, address)
			if err != nil {
				return nil, err
			}
			request, _ := ctx.Value(requestKey{}).(*Request)
			return &conn{
				Conn: c, request: request, passes: request != nil && !request.answered.Load(),
				stop: context.AfterFunc(ctx, func() { c.Close() }),
			}, nil
		},
	}
}

// conn is a connection that ends with its request.
type conn struct {
	net.Conn

	request *Request    // nil if unknown
	passes  bool        // the bytes of the connection are passed on to the client as they are
	stop    func() bool // the watch over the request's context
}

// Read implements net.Conn.
func (c *conn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	if c.request != nil && c.request.receive(n) {
		return 0, ErrUnheard
	}
	return n, err
}

// Write implements net.Conn. Once a proxy passes the response on to the client, Write ignores that the backend has
// closed the connection. Upstream's proxy stops at the first error in either direction, and would lose what the
// backend sent last. Read returns these bytes and then ends, too. Upstream's translator of WebSockets to SPDY
// answers the client before it connects. It needs the error: it would wait for replies to what it wrote.
func (c *conn) Write(p []byte) (int, error) {
	n, err := c.Conn.Write(p)
	closed := errors.Is(err, syscall.EPIPE) || errors.Is(err, syscall.ECONNRESET)
	if closed && c.passes && c.request.answered.Load() {
		return len(p), nil
	}
	return n, err
}

// Close implements net.Conn.
func (c *conn) Close() error {
	c.stop()
	return c.Conn.Close()
}
