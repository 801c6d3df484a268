package streams

import (
	"context"
	"fmt"
	"io"
	"net/http"

	"k8s.io/klog/v2"

	"github.com/larder-io/larder/httpapi/costs"
	"github.com/larder-io/larder/httpapi/exchange"
	"github.com/larder-io/larder/internal/registry/backend"
)

// HandlerStream is a request that a net/http handler serves on a connection that it has to
// itself.
type HandlerStream struct {
	Handler http.Handler
	Request *http.Request
	Header  http.Header // that the response begins with
	Whole   bool        // the client takes no chunks

	// Context adds to a context what handlers look for there.
	Context func(context.Context) context.Context

	Trail   *exchange.Trail
	Account *costs.Account // is charged for what is written
	Right   Right          // nil if that is not looked after
	Leave   func()         // is called when the request is over
	Log     []any          // says in the log which request it is
}

// Serve runs h on the connection of t, on a goroutine that shutdown waits for, and closes the
// connection after that. During shutdown it only releases what h holds.
func (ss *Streams) Serve(base context.Context, t exchange.Takeover, h *HandlerStream) {
	started := ss.start(base, t, h, func(ctx context.Context, st *Stream) { h.serve(ctx, st, t) })
	if !started {
		h.leave()
		h.Trail.End()
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
func (h *HandlerStream) serve(ctx context.Context, st *Stream, t exchange.Takeover) {
	w := newStreamWriter(ctx, st, h.Request, h.Header)
	w.trail, w.to, w.whole = h.Trail, t, h.Whole || t.Begin != nil
	defer h.leave()
	defer func() {
		switch p := recover(); {
		case p != nil && exchange.IsAbort(p) && st.revoked(): // a proxying handler can end in no other way
			h.Trail.End()
			_ = w.finish()
		case p != nil:
			h.Trail.Panicked(p)
			w.recovered(p, h.Log)
		}
	}()
	req := h.Request.WithContext(backend.NewContext(h.Context(h.Trail.Context(ctx)), &st.passes))
	if body := t.Body; body != nil {
		_ = body.Proceed(deadlineWriter{st}) // an error comes from the body too
		req.Body = st.openBody(body)
	}
	if t.Begin != nil {
		h.Handler.ServeHTTP(w, req)
	} else {
		h.Handler.ServeHTTP(hijackable{w}, req)
	}
	h.Trail.End()
	if err := w.finish(); err != nil {
		klog.V(4).InfoS("Stream ended early", append(h.Log, "err", fmt.Sprint(err))...)
	}
}

// streamBody is the body of a request whose handler has the connection to itself. The handler
// reads it as it comes and without a bound.
type streamBody struct {
	io.Reader
	st *Stream
}

// openBody returns the body of the request of st.
func (st *Stream) openBody(b io.Reader) *streamBody {
	st.listen(true)
	return &streamBody{Reader: b, st: st}
}

// Read implements io.Reader. After the body's end the handler does not read the connection any
// more, so it is probed again.
func (b *streamBody) Read(p []byte) (int, error) {
	n, err := b.Reader.Read(p)
	if err != nil {
		b.st.listen(false)
	}
	return n, err
}

// Close does nothing: the connection ends with its request.
func (b *streamBody) Close() error { return nil }
