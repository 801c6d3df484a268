package backend

import (
	"context"
	"errors"
	"net"
	"net/http"
	"sync/atomic"

	utilnet "k8s.io/apimachinery/pkg/util/net"
)

// MaxUnheard is how much a backend may send without the client being sent anything: more
// than the head of an answer has, and than upstream's proxies hold of a stream that is read
// slowly.
const MaxUnheard = 16 << 20

// ErrUnheard fails reads from a backend that sends what no client is sent.
var ErrUnheard = errors.New("backend: it has sent too much before its answer")

// Request is what is known of a request while it is handed on. All methods may be called
// from any goroutine.
type Request struct {
	unheard atomic.Int64 // bytes that have come since the client was last sent something
}

// Heard says that the client is sent something.
func (r *Request) Heard() { r.unheard.Store(0) }

// come counts n bytes and reports whether they are too many.
func (r *Request) come(n int) bool { return r.unheard.Add(int64(n)) > MaxUnheard }

type requestKey struct{}

// NewContext returns a context of a request that may be handed on, which ends with it. What
// the client is sent is told to r.
func NewContext(ctx context.Context, r *Request) context.Context {
	return context.WithValue(ctx, requestKey{}, r)
}

// Transport returns rt for those who open connections themselves, to change protocols over
// them: they find a dialer whose connections the package bounds. Where rt does not tell how
// it connects, it is returned as it is.
func Transport(rt http.RoundTripper) http.RoundTripper {
	if rt == nil {
		return nil
	}
	return transport{rt}
}

// transport implements utilnet.RoundTripperWrapper.
type transport struct{ http.RoundTripper }

// RoundTrip implements http.RoundTripper. A backend that changes protocols unasked keeps
// nobody who reads what it says longer than the request: net/http leaves such a connection
// to whoever reads from it.
func (t transport) RoundTrip(req *http.Request) (*http.Response, error) {
	resp, err := t.RoundTripper.RoundTrip(req)
	if err == nil && resp.StatusCode == http.StatusSwitchingProtocols {
		body := resp.Body
		context.AfterFunc(req.Context(), func() { body.Close() })
	}
	return resp, err
}

// WrappedRoundTripper implements utilnet.RoundTripperWrapper: who asks for it wants to know
// how to connect.
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
			return bind(ctx, c), nil
		},
	}
}

// conn is a connection that ends with its request.
type conn struct {
	net.Conn

	request *Request    // nil if nobody knows it
	stop    func() bool // the watch over the request's context
}

// bind has c end with the request of ctx.
func bind(ctx context.Context, c net.Conn) net.Conn {
	request, _ := ctx.Value(requestKey{}).(*Request)
	return &conn{Conn: c, request: request, stop: context.AfterFunc(ctx, func() { c.Close() })}
}

// Read implements net.Conn.
func (c *conn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	if c.request != nil && c.request.come(n) {
		return 0, ErrUnheard
	}
	return n, err
}

// Close implements net.Conn.
func (c *conn) Close() error {
	c.stop()
	return c.Conn.Close()
}
