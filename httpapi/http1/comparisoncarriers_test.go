package http1

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"iter"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/valyala/fasthttp"

	"github.com/larder-io/larder/httpapi/exchange"
	"github.com/larder-io/larder/httpapi/socket"
)

// The carriers below run an exchange on servers of other libraries. They check less than a Session does and have no state
// of a connection. They set the deadlines of a Session as far as the library can.

// handler responds to the request of a Carrier.
type handler func(c exchange.Carrier, received time.Time) *exchange.Exchange

// newFastServer returns fasthttp's server. Its buffers have 4 KiB, and it rejects longer headers. With lean set, it
// releases the buffers of idle connections.
func newFastServer(handle handler, lean bool) *fasthttp.Server {
	return &fasthttp.Server{
		Handler:               func(ctx *fasthttp.RequestCtx) { serveFast(ctx, handle) },
		ReadTimeout:           headerTimeout,
		IdleTimeout:           idleTimeout,
		WriteTimeout:          time.Minute,
		NoDefaultServerHeader: true,
		NoDefaultContentType:  true,
		KeepHijackedConns:     true,
		ReduceMemoryUsage:     lean,
	}
}

func serveFast(ctx *fasthttp.RequestCtx, handle handler) {
	x := handle(&fastCarrier{ctx: ctx}, time.Now())
	if x.Streamed {
		x.Close()
		return
	}
	setHeader(&ctx.Response, &x.Response)
	if x.Body != nil {
		ctx.Response.SetBodyStream(fastBody{x}, x.Size)
		return
	}
	ctx.Response.SetBodyRaw(x.Bytes)
	x.Close()
}

// fastBody is the body of an exchange. fasthttp calls WriteTo, and Close closes the exchange.
type fastBody struct{ x *exchange.Exchange }

func (b fastBody) Read([]byte) (int, error)           { return 0, errors.ErrUnsupported }
func (b fastBody) WriteTo(w io.Writer) (int64, error) { return b.x.Body.WriteTo(w) }
func (b fastBody) Close() error                       { b.x.Close(); return nil }

// fastCarrier carries a request of fasthttp's server.
type fastCarrier struct {
	ctx    *fasthttp.RequestCtx
	fields [usualFields]exchange.Field
}

func (c *fastCarrier) Method() []byte           { return c.ctx.Method() }
func (c *fastCarrier) Target() []byte           { return c.ctx.Request.Header.RequestURI() }
func (c *fastCarrier) Host() []byte             { return c.ctx.Request.Header.Host() }
func (c *fastCarrier) Peek(name string) []byte  { return c.ctx.Request.Header.Peek(name) }
func (c *fastCarrier) Fields() []exchange.Field { return c.fields[:0] }
func (c *fastCarrier) Chunks() bool             { return c.ctx.Request.Header.IsHTTP11() }
func (c *fastCarrier) BodyLength() int64        { return int64(c.ctx.Request.Header.ContentLength()) }
func (c *fastCarrier) RemoteAddr() net.Addr     { return c.ctx.RemoteAddr() }
func (c *fastCarrier) Internal() bool           { return false }
func (c *fastCarrier) Slot() *atomic.Value      { return nil }
func (c *fastCarrier) Major() int               { return 1 }

func (c *fastCarrier) OnEnd(func()) {}

func (c *fastCarrier) Lines() iter.Seq2[[]byte, []byte] {
	return headerLines(c.ctx.Request.Header.RawHeaders())
}

func (c *fastCarrier) TLS() *tls.ConnectionState          { return c.ctx.TLSConnectionState() }
func (c *fastCarrier) ReadBody(time.Time) ([]byte, error) { return c.ctx.PostBody(), nil }

// Inspect checks a header that fasthttp has accepted.
func (c *fastCarrier) Inspect() exchange.Facts {
	facts, _ := inspect(c.ctx.Request.Header.RawHeaders())
	return facts
}

// StartStream hijacks the connection. fasthttp's goroutine ends.
func (c *fastCarrier) StartStream(code int, header []exchange.Field) exchange.BodyStream {
	c.ctx.HijackSetNoResponse(true)
	c.ctx.Hijack(func(net.Conn) {})
	return exchange.BodyStream{Conn: c.ctx.Conn(), Head: streamHead(code, header, true, true), Chunked: true}
}

// lateListener accepts connections that wait for their first bytes outside TLS, as in a Session.
type lateListener struct {
	net.Listener
	config *tls.Config
}

func (l lateListener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return &lateConn{tlsConn: &tlsConn{Conn: tls.Server(socket.NewTCP(c.(*net.TCPConn)), l.config)}}, nil
}

type lateConn struct {
	*tlsConn
	handshaken bool
}

func (c *lateConn) Read(p []byte) (int, error) {
	if !c.handshaken {
		if err := c.handshake(); err != nil {
			return 0, err
		}
		c.handshaken = true
	}
	return c.AwaitRead(p)
}

func (c *lateConn) Close() error { return c.Conn.Close() }

// newStdServer returns net/http's server. With flushes set, a streamed response keeps the goroutine of its
// handler, which flushes. Otherwise the connection is hijacked.
func newStdServer(handle handler, flushes bool) *http.Server {
	serve := func(w http.ResponseWriter, req *http.Request) {
		c := &stdCarrier{w: w, req: req, flushes: flushes}
		x := handle(c, time.Now())
		defer x.Close()
		switch {
		case x.Streamed && c.flushed != nil:
			c.flushed.wait(req.Context())
		case x.Streamed:
		default:
			c.send(&x.Response)
		}
	}
	return &http.Server{
		Handler:           http.HandlerFunc(serve),
		ReadHeaderTimeout: headerTimeout,
		IdleTimeout:       idleTimeout,
		WriteTimeout:      time.Minute,
	}
}

// stdCarrier carries a request of net/http's server.
type stdCarrier struct {
	w       http.ResponseWriter
	req     *http.Request
	fields  [usualFields]exchange.Field
	flushes bool
	flushed *flushedConn // of a streamed response that is flushed
}

func (c *stdCarrier) Method() []byte            { return []byte(c.req.Method) }
func (c *stdCarrier) Target() []byte            { return []byte(c.req.RequestURI) }
func (c *stdCarrier) Host() []byte              { return []byte(c.req.Host) }
func (c *stdCarrier) Peek(name string) []byte   { return []byte(c.req.Header.Get(name)) }
func (c *stdCarrier) Fields() []exchange.Field  { return c.fields[:0] }
func (c *stdCarrier) Chunks() bool              { return c.req.ProtoAtLeast(1, 1) }
func (c *stdCarrier) BodyLength() int64         { return c.req.ContentLength }
func (c *stdCarrier) TLS() *tls.ConnectionState { return c.req.TLS }
func (c *stdCarrier) Internal() bool            { return false }
func (c *stdCarrier) Slot() *atomic.Value       { return nil }
func (c *stdCarrier) Major() int                { return c.req.ProtoMajor }

func (c *stdCarrier) OnEnd(func()) {}

func (c *stdCarrier) RemoteAddr() net.Addr {
	addr, _ := net.ResolveTCPAddr("tcp", c.req.RemoteAddr)
	return addr
}

func (c *stdCarrier) Lines() iter.Seq2[[]byte, []byte] {
	return func(yield func(name, value []byte) bool) {
		for name, values := range c.req.Header {
			for _, value := range values {
				if !yield([]byte(name), []byte(value)) {
					return
				}
			}
		}
	}
}

// Inspect relies on net/http to reject ambiguous headers.
func (c *stdCarrier) Inspect() exchange.Facts {
	var facts exchange.Facts
	for name := range c.req.Header {
		facts.Impersonates = facts.Impersonates || strings.HasPrefix(name, "Impersonate-")
		facts.OtherCredentials = facts.OtherCredentials || strings.HasPrefix(name, "X-Remote-") || name == "Sec-Websocket-Protocol"
	}
	return facts
}

func (c *stdCarrier) ReadBody(time.Time) ([]byte, error) { return io.ReadAll(c.req.Body) }

func (c *stdCarrier) head(code int, header []exchange.Field) {
	h := c.w.Header()
	for _, f := range header {
		if f.Added {
			h.Add(f.Name, f.Value)
		} else {
			h.Set(f.Name, f.Value)
		}
	}
	c.w.WriteHeader(code)
}

func (c *stdCarrier) send(r *exchange.Response) {
	if r.Body == nil {
		c.w.Header().Set("Content-Length", strconv.Itoa(len(r.Bytes)))
		c.head(r.StatusCode(), r.Header)
		_, _ = c.w.Write(r.Bytes) // the client is gone
		return
	}
	if r.Size != exchange.UnknownSize {
		c.w.Header().Set("Content-Length", strconv.Itoa(r.Size))
	}
	c.head(r.StatusCode(), r.Header)
	_, _ = r.Body.WriteTo(c.w)
}

// StartStream hijacks the connection, or begins a response that is flushed.
func (c *stdCarrier) StartStream(code int, header []exchange.Field) exchange.BodyStream {
	if c.flushes {
		control := http.NewResponseController(c.w)
		_ = control.SetWriteDeadline(time.Time{})
		c.head(code, header)
		_ = control.Flush()
		c.flushed = &flushedConn{w: c.w, over: make(chan struct{})}
		return exchange.BodyStream{Conn: c.flushed}
	}
	raw, _, err := http.NewResponseController(c.w).Hijack()
	if err != nil {
		panic(err)
	}
	_ = raw.SetDeadline(time.Time{})
	return exchange.BodyStream{Conn: raw, Head: streamHead(code, header, true, true), Chunked: true}
}

// flushedConn writes a streamed response. Its handler waits until it is closed.
type flushedConn struct {
	net.Conn
	w    http.ResponseWriter
	once sync.Once
	over chan struct{}
}

func (c *flushedConn) Write(p []byte) (int, error) {
	n, err := c.w.Write(p)
	if err == nil {
		err = http.NewResponseController(c.w).Flush()
	}
	return n, err
}

func (c *flushedConn) Close() error {
	c.once.Do(func() { close(c.over) })
	return nil
}

func (c *flushedConn) wait(gone context.Context) {
	select {
	case <-c.over:
	case <-gone.Done():
	}
}
