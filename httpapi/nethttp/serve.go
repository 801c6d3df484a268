package nethttp

import (
	"context"
	"errors"
	"net/http"
	"time"

	"k8s.io/apiserver/pkg/endpoints/metrics"
	"k8s.io/streaming/pkg/httpstream"

	"github.com/larder-io/larder/httpapi/exchange"
	"github.com/larder-io/larder/httpapi/streams"
	"github.com/larder-io/larder/internal/registry/storage"
)

// Serve serves the request by a net/http handler. The handler runs on its own goroutine with copies of
// everything, so that it may outlive its deadline and the connection. Shutdown waits for it.
func (x *Call) Serve(h http.Handler) {
	if x.LongRunning() {
		x.serveStream(h, time.Time{})
		return
	}
	x.serveBuffered(h, false)
}

// serveBuffered is Serve for a request that is not long-running. If prompt is set, flushed bytes are sent at once,
// and the handler sees the headers that are already set.
func (x *Call) serveBuffered(h http.Handler, prompt bool) {
	h = x.withLogLine(h)
	ctx, cancel := context.WithCancel(x.Audit.Context(x.Base()))
	req := x.HTTP().WithContext(exchange.Context(ctx, x.RequestInfo(), x.User, x.Received))
	w := &buffered{
		flushes: prompt, audit: x.TakeAudit(), asked: x.body, seat: x.TakeSeat(), cancel: cancel,
		done: make(chan struct{}), overflowed: make(chan struct{}), Recorder: Recorder{header: make(http.Header), most: MaxBuffered},
	}
	if prompt {
		w.most = maxFlushed
		x.HeaderTo(w.header)
	} else {
		w.account = x.Account
	}
	x.handlers.work.Go(func() {
		defer cancel()
		storage.ReserveStack()
		w.finish(x.logged(), h, req)
	})
	defer x.endBody()
	if x.wait(ctx, w) {
		x.respond(ctx, w)
	} else {
		x.TimeOut()
	}
}

// wait reads the body if the handler wants it and waits until it has responded. It reports whether that was in time.
func (x *Call) wait(ctx context.Context, w *buffered) bool {
	var wanted <-chan struct{} // closed when the handler asks for the body; nil if there is none
	began := time.Now()
	defer func() { x.Waited += time.Since(began) }() // the handler has an account of its time
	if x.body != nil {
		wanted = x.body.asked
	}
	for {
		select {
		case <-wanted:
			wanted = nil
			if !x.readBody() {
				return !w.abandon()
			}
		case <-w.done:
			return true
		case <-w.overflowed:
			return true
		case <-ctx.Done():
			return !w.abandon()
		}
	}
}

// TimeOut responds in place of a handler that took too long.
func (x *Call) TimeOut() {
	metrics.RecordRequestTermination(x.HTTP(), x.RequestInfo(), metrics.APIServerComponent, http.StatusGatewayTimeout)
	x.Reset()
	x.Fail(exchange.ErrTimeout)
}

// respond sends the response of the handler, which has ended or overflowed. If it ended after the deadline without a
// response or with a server error, the request timed out: upstream's timeout filter would have responded earlier.
func (x *Call) respond(ctx context.Context, w *buffered) {
	select {
	case <-w.overflowed:
		x.CopyHeader(w.sent)
		x.SendReader(w.status, w.pipe)
		x.HeldBytes = w.body.Cap()
		return
	default:
		<-w.done
		x.Seat = w.seat // a large response keeps it until it is sent
	}
	switch {
	case exchange.IsAbort(w.panicked):
		panic(http.ErrAbortHandler)
	case w.panicked != nil:
		x.Panicked()
	case (w.status == 0 || w.status >= http.StatusInternalServerError) && errors.Is(ctx.Err(), context.DeadlineExceeded):
		x.TimeOut()
	default:
		w.SendTo(&x.Response)
	}
}

// logged returns the log fields of the request, for code that outlives the exchange.
func (x *Call) logged() []any {
	return []any{"method", x.Method, "path", x.Path, "auditID", x.AuditID}
}

// serveStream gives the handler the connection until the deadline, or without a limit if that is zero. The handler's
// writes are sent at once, and it may hijack the connection.
func (x *Call) serveStream(h http.Handler, deadline time.Time) {
	h = x.withLogLine(h)
	info, who, received, seat := x.RequestInfo(), x.User, x.Received, x.handlers.streamSeat(&x.Exchange)
	handed := &streams.HandlerStream{
		Handler:  abortable(h),
		Request:  x.HTTP(),
		Header:   make(http.Header),
		Whole:    !x.Carrier.Chunks(),
		Deadline: deadline,
		Context: func(ctx context.Context) context.Context {
			return exchange.Context(seat.Context(ctx), info, who, received)
		},
		Audit:   x.TakeAudit(),
		Account: x.Account,
		Right:   x.handlers.config.Join(&x.Exchange),
		Leave:   seat.Leave,
		Log:     x.logged(),
	}
	x.HeaderTo(handed.Header)
	to, lasting := x.handlers.config.Streams, x.Server
	x.Hijack = func(t exchange.Hijacked) { to.Serve(lasting, t, handed) }
}

// abortable sets http.ServerContextKey, as an http.Server does. net/http's proxy then panics when a response ends too
// early, so that the client can see that.
func abortable(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		h.ServeHTTP(w, req.WithContext(context.WithValue(req.Context(), http.ServerContextKey, h)))
	})
}

// Forward serves the request by h, which proxies it to another server. A request that is long-running,
// asks for an upgrade, has a long body or is a HEAD takes over the connection. Others do not.
func (x *Call) Forward(h http.Handler) {
	req := x.HTTP()
	h = x.withAuditID(h)
	switch length := req.ContentLength; {
	case x.LongRunning():
		x.serveStream(h, time.Time{})
	case httpstream.IsUpgradeRequest(req), length < 0, length > maxHandedWhole, x.Method == http.MethodHead:
		x.serveStream(h, x.Deadline)
	default:
		x.serveBuffered(abortable(h), true)
	}
}

// maxHandedWhole is the length up to which a body is read before a handler gets it.
const maxHandedWhole = 64 << 10
