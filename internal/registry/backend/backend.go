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

// MaxUnforwarded limits the bytes that a backend may send while nothing is sent to the client. It is larger than a
// response header, and than the buffer of upstream's proxies.
const MaxUnforwarded = 16 << 20

// ErrUnforwarded is the error of reads from a backend that has sent more than MaxUnforwarded.
var ErrUnforwarded = errors.New("backend: the backend sent too much while the client received nothing")

// Request is a proxied request. Its methods are safe for concurrent use.
type Request struct {
	unforwarded atomic.Int64 // bytes that the backend has sent since something was last sent to the client
	forwarded   atomic.Bool  // something was sent to the client
}

// Forwarded resets the limit, because something is sent to the client.
func (r *Request) Forwarded() {
	r.unforwarded.Store(0)
	r.forwarded.Store(true)
}

// receive counts n bytes and reports whether the limit is exceeded.
func (r *Request) receive(n int) bool { return r.unforwarded.Add(int64(n)) > MaxUnforwarded }

type requestKey struct{}

// NewContext returns a context for a request that may be proxied. The caller must call r.Forwarded whenever it sends
// something to the client.
func NewContext(ctx context.Context, r *Request) context.Context {
	return context.WithValue(ctx, requestKey{}, r)
}

// Transport wraps rt, so that code that dials connections for upgrades gets a dialer with limits. If the dialer of rt
// is unknown, Transport returns rt.
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
				Conn: c, request: request, passes: request != nil && !request.forwarded.Load(),
				stop: context.AfterFunc(ctx, func() { c.Close() }),
			}, nil
		},
	}
}

// conn is a connection that ends with its request.
type conn struct {
	net.Conn

	request *Request    // nil if unknown
	passes  bool        // the bytes of the connection are forwarded to the client unchanged
	stop    func() bool // of the context.AfterFunc of the request's context
}

// Read implements net.Conn.
func (c *conn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	if c.request != nil && c.request.receive(n) {
		return 0, ErrUnforwarded
	}
	return n, err
}

// Write implements net.Conn. After a proxy has begun to forward the response, Write ignores that the backend has closed
// the connection: upstream's proxy stops at the first error in either direction, and would lose the backend's last
// bytes. Upstream's translator of WebSockets to SPDY responds to the client before it connects, and needs the error.
func (c *conn) Write(p []byte) (int, error) {
	n, err := c.Conn.Write(p)
	closed := errors.Is(err, syscall.EPIPE) || errors.Is(err, syscall.ECONNRESET)
	if closed && c.passes && c.request.forwarded.Load() {
		return len(p), nil
	}
	return n, err
}

// Close implements net.Conn.
func (c *conn) Close() error {
	c.stop()
	return c.Conn.Close()
}
