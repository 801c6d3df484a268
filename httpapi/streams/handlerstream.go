package streams

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net/http"

	"k8s.io/klog/v2"

	"github.com/larder-io/larder/httpapi/costs"
	"github.com/larder-io/larder/httpapi/exchange"
	"github.com/larder-io/larder/internal/registry/backend"
)

// HandlerStream is a request whose net/http handler has the connection to itself.
type HandlerStream struct {
	Handler http.Handler
	Request *http.Request
	Header  http.Header // of the response, before the handler runs
	Whole   bool        // the client takes no chunks

	// Context adds the values that handlers need to a context.
	Context func(context.Context) context.Context

	Audit   *exchange.AuditRecord
	Account *costs.Account // is charged for what is written
	Right   Right          // the right that the request depends on; may be nil
	Leave   func()         // is called when the request is over
	Log     []any          // names the request in the log
}

// Serve runs h on the connection of t, on a goroutine that shutdown waits for, and then closes the
// connection. During shutdown it only releases what h holds.
func (ss *Streams) Serve(base context.Context, t exchange.Hijacked, h *HandlerStream) {
	started := ss.start(base, t, h, func(ctx context.Context, st *Stream) { h.serve(ctx, st, t) })
	if !started {
		h.leave()
		h.Audit.End()
	}
}

// leave releases what h holds.
func (h *HandlerStream) leave() {
	h.Leave()
	if h.Right != nil {
		h.Right.Leave()
	}
}

// serve runs the handler on st.
func (h *HandlerStream) serve(ctx context.Context, st *Stream, t exchange.Hijacked) {
	w := &streamWriter{
		ctx: ctx, st: st, req: h.Request, header: h.Header, out: bufio.NewWriterSize(deadlineWriter{st}, 4<<10), left: -1,
		audit: h.Audit, to: t, whole: h.Whole || t.Begin != nil,
	}
	defer h.leave()
	defer func() {
		switch p := recover(); {
		case p != nil && exchange.IsAbort(p) && st.revoked(): // a proxying handler can end in no other way
			h.Audit.End()
			_ = w.finish()
		case p != nil:
			h.Audit.Panicked(p)
			w.recovered(p, h.Log)
		}
	}()
	req := h.Request.WithContext(backend.NewContext(h.Context(h.Audit.Context(ctx)), &st.passes))
	if body := t.Body; body != nil {
		_ = body.Proceed(deadlineWriter{st}) // an error comes from the body too
		st.setReadsBody(true)
		req.Body = &streamBody{Reader: body, st: st}
	}
	if t.Begin != nil {
		h.Handler.ServeHTTP(w, req)
	} else {
		h.Handler.ServeHTTP(hijackable{w}, req)
	}
	h.Audit.End()
	if err := w.finish(); err != nil {
		klog.V(4).InfoS("Stream ended early", append(h.Log, "err", fmt.Sprint(err))...)
	}
}

// streamBody is the body of a request whose handler has the connection to itself.
type streamBody struct {
	io.Reader
	st *Stream
}

// Read implements io.Reader. After the end of the body, Sweep probes the connection again.
func (b *streamBody) Read(p []byte) (int, error) {
	n, err := b.Reader.Read(p)
	if err != nil {
		b.st.setReadsBody(false)
	}
	return n, err
}

// Close does nothing: the connection ends with its request.
func (b *streamBody) Close() error { return nil }
