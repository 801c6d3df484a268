package nethttp

import (
	"context"
	"io"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apiserver/pkg/audit"
	"k8s.io/apiserver/pkg/server/httplog"

	"github.com/larder-io/larder/httpapi/exchange"
	"github.com/larder-io/larder/httpapi/socket"
	"github.com/larder-io/larder/httpapi/streams"
	"github.com/larder-io/larder/internal/flow"
)

// Config configures [Handlers].
type Config struct {
	// Streams serves the requests that take over a connection.
	Streams *streams.Streams
	// Flow counts watches; it may be nil.
	Flow *flow.Control
	// Join returns the right that the stream of a request depends on; nil if there is none.
	Join func(*exchange.Exchange) streams.Right
	// Credential reports whether a header, named in its canonical form, holds credentials.
	Credential func(name string) bool
}

// Handlers is the state that all calls of one server share.
type Handlers struct {
	config Config
	work   sync.WaitGroup // handlers that run on goroutines of their own
}

// New returns the Handlers of a server, with no handler running.
func New(config Config) *Handlers { return &Handlers{config: config} }

// Wait blocks until every handler on a goroutine of its own has ended. No further call may be served.
func (h *Handlers) Wait() { h.work.Wait() }

// streamSeat moves the seat of x to the stream that the request becomes. Flow control counts a watch.
func (h *Handlers) streamSeat(x *exchange.Exchange) *exchange.StreamSeat {
	watch, forget := x.Verb == "watch", func() {}
	if watch && h.config.Flow != nil {
		forget = h.config.Flow.RegisterWatch(x.RequestInfo(), x.RawQuery)
	}
	return exchange.NewStreamSeat(x.TakeSeat(), watch, forget)
}

// withLogLine makes upstream's filter log the requests that h serves, if requests are logged. The
// filter sees the stack of a failing handler, and whether it hijacks the connection.
func (x *Call) withLogLine(h http.Handler) http.Handler {
	if !exchange.Lines() || x.Logged || x.Carrier.Internal() {
		return h
	}
	x.Logged = true
	said, info, seated := x.LogValues, x.Info, x.Seated
	return x.withAuditID(httplog.WithLogging(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		for i := 0; i+1 < len(said); i += 2 {
			httplog.AddKeyValue(req.Context(), said[i].(string), said[i+1])
		}
		if info != "" {
			httplog.AddInfof(req.Context(), "%s", info)
		}
		if !seated.IsZero() {
			defer func() { httplog.AddKeyValue(req.Context(), "apf_execution_time", time.Since(seated)) }()
		}
		h.ServeHTTP(w, req)
	}), httplog.DefaultStacktracePred))
}

// withAuditID returns h with the audit ID in the request's context, where upstream's log and proxies look for it.
func (x *Call) withAuditID(h http.Handler) http.Handler {
	id := types.UID(x.AuditID)
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		audit.WithAuditID(req.Context(), id)
		h.ServeHTTP(w, req)
	})
}

// Call is an exchange that net/http code may read or serve.
//
// It belongs to the goroutine that serves the exchange and ends with it.
type Call struct {
	exchange.Exchange

	handlers *Handlers
	detached *http.Request
	body     *body // of detached; nil if it has none
}

// Init makes x the call that c carries. Its contexts end with server.
func (h *Handlers) Init(x *Call, c exchange.Carrier, received time.Time, server context.Context) {
	x.handlers = h
	x.Exchange.Init(c, received, server)
}

// HTTP returns the request for net/http code. It refers to no memory of the connection. Its context is that of Base.
func (x *Call) HTTP() *http.Request {
	if x.detached == nil {
		x.detached = x.copyRequest()
	}
	return x.detached
}

// Replace makes HTTP return req from now on, with x's own context.
func (x *Call) Replace(req *http.Request) { x.detached = req.WithContext(x.Base()) }

// HideCredential removes the credentials from the request, so that no handler sees or forwards them.
func (x *Call) HideCredential() {
	for name := range x.HTTP().Header {
		if x.handlers.config.Credential(name) {
			x.detached.Header.Del(name)
		}
	}
}

// copyRequest builds a request for net/http code from the client's parsed request.
func (x *Call) copyRequest() *http.Request {
	req := &http.Request{
		Method: x.Method, URL: x.URL(), Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1,
		Header: x.copyHeaders(), Body: http.NoBody, ContentLength: x.Carrier.BodyLength(), Host: x.Host,
		RemoteAddr: x.Carrier.RemoteAddr().String(), TLS: x.Carrier.TLS(),
	}
	if x.Carrier.Major() == 2 {
		req.Proto, req.ProtoMajor, req.ProtoMinor = "HTTP/2.0", 2, 0
	}
	req.RequestURI = req.URL.RequestURI()
	if req.Host == "" {
		req.Host = string(x.Carrier.Host())
	}
	if req.ContentLength != 0 {
		x.body = &body{asked: make(chan struct{}), given: make(chan struct{})}
		req.Body = x.body
	}
	return req.WithContext(x.Base())
}

// copyHeaders copies the request's headers, except the connection's and, once the client is authenticated, fields
// that hold credentials.
func (x *Call) copyHeaders() http.Header {
	length := x.Carrier.BodyLength()
	return x.CopyHeaders(func(key string) bool {
		switch {
		case key == "Host" || key == "Transfer-Encoding" || key == "Trailer": // are of this connection
			return false
		case key == "Content-Length" && length < 0:
			return false
		}
		return x.User == nil || !x.handlers.config.Credential(key)
	})
}

// readBody reads the body for the handler and reports whether it came in time.
func (x *Call) readBody() bool {
	data, err := x.Carrier.ReadBody(x.Deadline)
	if socket.IsTimeout(err) {
		return false
	}
	if err == nil {
		err = io.EOF
	}
	x.body.give(data, err)
	return true
}

// endBody makes the handler's Read fail: the body is no longer read.
func (x *Call) endBody() {
	if x.body != nil {
		x.body.give(nil, http.ErrBodyReadAfterClose)
	}
}

// body is the body of a request for a net/http handler. The handler may outlive its request, so it does
// not read the connection: its first Read asks the connection's goroutine for the whole body.
type body struct {
	asked  chan struct{} // closed by the first Read
	given  chan struct{} // closed when data and err are set
	ask    sync.Once
	reply  sync.Once
	waited atomic.Int64 // nanoseconds in which Read waited
	data   []byte
	err    error // after data
}

// Read waits for the body.
func (b *body) Read(p []byte) (int, error) {
	b.ask.Do(func() {
		began := time.Now()
		close(b.asked)
		<-b.given
		b.waited.Add(int64(time.Since(began)))
	})
	if len(b.data) == 0 {
		return 0, b.err
	}
	n := copy(p, b.data)
	b.data = b.data[n:]
	return n, nil
}

// Close does nothing: the connection discards the unread rest.
func (b *body) Close() error { return nil }

// give sets the body and lets Read continue. Only the first call has an effect.
func (b *body) give(data []byte, err error) {
	b.reply.Do(func() {
		b.data, b.err = data, err
		close(b.given)
	})
}
