package streams

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/http/httputil"
	"strconv"
	"strings"
	"time"

	"golang.org/x/net/http/httpguts"
	"k8s.io/klog/v2"

	"github.com/larder-io/larder/httpapi/costs"
	"github.com/larder-io/larder/httpapi/exchange"
	"github.com/larder-io/larder/httpapi/socket"
	"github.com/larder-io/larder/internal/registry/backend"
)

// streamWriter is the http.ResponseWriter of a handler that has taken over a connection or an HTTP/2
// stream. Over HTTP/1 it frames the body by Content-Length if the handler sets it or ends early. Otherwise
// it sends chunks, or ends the connection if the client does not accept chunks.
//
// It implements http.Flusher and http.CloseNotifier: upstream's decorators hide Flusher if the
// writer does not implement CloseNotifier (apiserver pkg/endpoints/responsewriter/wrapper.go).
type streamWriter struct {
	ctx    context.Context // ends when the client has left
	st     *Stream
	to     exchange.Hijacked // its Begin is nil over HTTP/1
	req    *http.Request
	header http.Header
	sent   http.Header // header as it was when the status was written
	out    *bufio.Writer
	audit  *exchange.AuditRecord
	whole  bool // the body is not framed in chunks

	status   int
	started  bool // the head is written
	chunked  bool
	bodyless bool
	left     int64    // of Content-Length; -1 if there is none
	held     []byte   // body written before the head
	trailers []string // the names that the head announces
	hijacked bool
	late     *time.Timer // ends the handler's context; nil if nothing does
}

// maxHeld is how much of a body waits for the handler's end or a flush.
const maxHeld = 4 << 10

// deadlineWriter gives each write to a stream its own deadline.
type deadlineWriter struct{ st *Stream }

func (w deadlineWriter) Write(p []byte) (int, error) {
	if err := w.st.SetWriteDeadline(time.Now().Add(socket.WriteTimeout)); err != nil {
		return 0, err
	}
	return w.st.write(p)
}

// write writes p, and charges the account for it.
func (st *Stream) write(p []byte) (int, error) {
	began := time.Now()
	n, err := st.Conn.Write(p)
	busy := max(0, time.Since(began)-socket.TakeWaited(st.Conn))
	st.charge(costs.Usage{costs.CPU: int64(busy), costs.Bytes: int64(n)})
	return n, err
}

func (w *streamWriter) Header() http.Header { return w.header }

func (w *streamWriter) WriteHeader(status int) {
	if w.hijacked || w.status != 0 {
		return
	}
	if status >= 100 && status < 200 && status != http.StatusSwitchingProtocols {
		w.writeAhead(status)
		return
	}
	status = exchange.ValidStatus(status)
	w.status, w.sent = status, w.header.Clone()
	w.audit.RecordStatus(status)
	if status == http.StatusSwitchingProtocols && w.to.Begin == nil {
		w.started, w.bodyless = true, true
		_ = w.writeHead() // the next flush of out returns the error
		_ = w.out.Flush()
	}
}

// writeAhead writes an informational response (1xx) before the final one.
func (w *streamWriter) writeAhead(status int) {
	frame := map[string]bool{"Content-Length": true, "Transfer-Encoding": true}
	if w.to.Begin != nil {
		_ = w.to.Begin(status, without(w.header, frame)) // the first write returns the error
		return
	}
	writeStatus(w.out, status)
	_ = w.header.WriteSubset(w.out, frame)
	_, _ = w.out.WriteString("\r\n")
	_ = w.out.Flush()
}

func (w *streamWriter) Write(p []byte) (int, error) {
	if w.hijacked {
		return 0, http.ErrHijacked
	}
	w.WriteHeader(http.StatusOK)
	if !w.started {
		if len(w.held)+len(p) <= maxHeld {
			w.held = append(w.held, p...)
			return len(p), nil
		}
		if err := w.start(); err != nil {
			return 0, err
		}
	}
	return len(p), w.writeBody(p)
}

// start writes the head and the part of the body that was held back.
func (w *streamWriter) start() error {
	w.started = true
	w.bodyless = w.req.Method == http.MethodHead || !w.allowsBody()
	w.trailers = announcedTrailers(w.sent)
	if length := w.sent.Get("Content-Length"); length != "" {
		n, err := strconv.ParseInt(length, 10, 64)
		if err != nil || n < 0 {
			w.sent.Del("Content-Length")
		} else {
			w.left = n
		}
	}
	w.sent.Del("Transfer-Encoding")
	if w.left < 0 && !w.bodyless && !w.whole {
		w.chunked = true
		w.sent.Set("Transfer-Encoding", "chunked")
	}
	if w.to.Begin == nil {
		w.sent.Set("Connection", "close")
	}
	if w.sent.Get("Content-Type") == "" && len(w.held) > 0 {
		w.sent.Set("Content-Type", http.DetectContentType(w.held))
	}
	if err := w.writeHead(); err != nil {
		return err
	}
	held := w.held
	w.held = nil
	return w.writeBody(held)
}

// allowsBody reports whether a response with the status may have a body.
func (w *streamWriter) allowsBody() bool {
	return w.status != http.StatusNoContent && w.status != http.StatusNotModified
}

// writeHead writes status line and header.
func (w *streamWriter) writeHead() error {
	if w.to.Begin != nil {
		return w.to.Begin(w.status, without(w.sent, w.trailerNames()))
	}
	if w.sent.Get("Date") == "" {
		w.sent.Set("Date", time.Now().UTC().Format(http.TimeFormat))
	}
	writeStatus(w.out, w.status)
	_ = w.sent.WriteSubset(w.out, w.trailerNames())
	_, err := w.out.WriteString("\r\n")
	return err
}

// without returns a copy of header without the fields of those names.
func without(header http.Header, names map[string]bool) http.Header {
	rest := header.Clone()
	maps.DeleteFunc(rest, func(name string, _ []string) bool { return names[name] })
	return rest
}

func writeStatus(out io.Writer, status int) {
	text := http.StatusText(status)
	if text == "" {
		text = "status code " + strconv.Itoa(status)
	}
	fmt.Fprintf(out, "HTTP/1.1 %03d %s\r\n", status, text)
}

func (w *streamWriter) writeBody(p []byte) error {
	switch {
	case len(p) == 0 || w.bodyless:
		return nil
	case w.whole && w.left < 0:
		_, err := w.out.Write(p)
		return err
	case w.chunked:
		_, err := httputil.NewChunkedWriter(w.out).Write(p)
		return err
	case int64(len(p)) > w.left:
		return http.ErrContentLength
	}
	w.left -= int64(len(p))
	_, err := w.out.Write(p)
	return err
}

func (w *streamWriter) Flush() { _ = w.FlushError() }

// FlushError is Flush for http.ResponseController.
func (w *streamWriter) FlushError() error {
	if w.hijacked {
		return http.ErrHijacked
	}
	w.WriteHeader(http.StatusOK)
	if !w.started {
		if err := w.start(); err != nil {
			return err
		}
	}
	return w.out.Flush()
}

// SetReadDeadline serves http.ResponseController.
func (w *streamWriter) SetReadDeadline(t time.Time) error { return w.st.SetReadDeadline(t) }

// SetWriteDeadline serves http.ResponseController.
func (w *streamWriter) SetWriteDeadline(t time.Time) error { return w.st.SetWriteDeadline(t) }

// hijackable is a streamWriter that lets the handler take the connection over.
//
// It implements http.Hijacker.
type hijackable struct{ *streamWriter }

// Hijack implements http.Hijacker. The handler's reads begin with the bytes that had been
// read ahead.
func (h hijackable) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	if h.hijacked {
		return nil, nil, http.ErrHijacked
	}
	if h.started && h.status != http.StatusSwitchingProtocols {
		return nil, nil, errors.New("httpapi: the response has begun")
	}
	if h.late != nil && !h.late.Stop() {
		return nil, nil, context.DeadlineExceeded
	}
	h.audit.RecordStatus(http.StatusSwitchingProtocols)
	h.hijacked = true
	h.st.own()
	if err := h.st.SetDeadline(time.Time{}); err != nil {
		return nil, nil, err
	}
	c := &hijackedConn{Conn: h.st.Conn, st: h.st}
	return c, bufio.NewReadWriter(bufio.NewReader(c), bufio.NewWriter(c)), nil
}

func (w *streamWriter) CloseNotify() <-chan bool {
	gone := make(chan bool, 1)
	context.AfterFunc(w.ctx, func() { gone <- true })
	return gone
}

// hijackedConn is a connection that a handler has taken over. Its first bytes may have been read
// before that.
type hijackedConn struct {
	net.Conn
	st *Stream
}

func (c *hijackedConn) Read(p []byte) (int, error) {
	n, err := c.st.ahead.Read(p)
	if err != nil && !socket.IsTimeout(err) {
		c.st.stop(clientLeft) // for a handler that waits for its backend and ignores this error
	}
	return n, err
}

func (c *hijackedConn) Write(p []byte) (int, error) {
	c.st.backend.Forwarded()
	return c.st.write(p)
}

// NetConn returns the underlying connection.
func (c *hijackedConn) NetConn() net.Conn { return c.Conn }

// finish ends the response after the handler has.
func (w *streamWriter) finish() error {
	if w.hijacked || w.status == http.StatusSwitchingProtocols && w.to.Begin == nil {
		return nil
	}
	w.WriteHeader(http.StatusOK)
	if !w.started {
		if w.lengthIsKnown() {
			w.sent.Set("Content-Length", strconv.Itoa(len(w.held)))
		}
		if err := w.start(); err != nil {
			return err
		}
	}
	if w.chunked { // Flush returns the first error
		_, _ = w.out.WriteString("0\r\n")
		_ = w.trailer().Write(w.out)
		_, _ = w.out.WriteString("\r\n")
	}
	if err := w.out.Flush(); err != nil || w.to.End == nil {
		return err
	}
	return w.to.End(w.trailer())
}

// lengthIsKnown reports whether the held bytes are the whole body of a handler that has ended. For a
// HEAD they are not if the handler wrote nothing.
func (w *streamWriter) lengthIsKnown() bool {
	return w.sent.Get("Content-Length") == "" && w.allowsBody() && (w.req.Method != http.MethodHead || len(w.held) > 0) && len(w.sent["Trailer"]) == 0 && len(w.trailerNames()) == 0
}

// recovered ends the response after the handler panicked. If the head was sent, the
// client sees a body cut short.
func (w *streamWriter) recovered(p any, log []any) {
	if exchange.IsAbort(p) {
		return
	}
	klog.ErrorS(nil, "Request panicked", append(log, "panic", p, "stack", exchange.Stack())...)
	if w.hijacked || w.started {
		return
	}
	w.held = []byte("This request caused apiserver to panic. Look in the logs for details.\n")
	w.status = http.StatusInternalServerError
	w.sent = http.Header{"Content-Type": {"text/plain; charset=utf-8"}, "Cache-Control": {"no-cache, private"}}
	for _, name := range [...]string{"Audit-Id", "Strict-Transport-Security"} {
		if values := w.header[name]; values != nil {
			w.sent[name] = values
		}
	}
	_ = w.finish()
}

// A handler has two ways to set trailers, as with net/http's server: it announces their names
// in the header Trailer before its body, or it sets fields with the prefix
// http.TrailerPrefix at any time.

// announcedTrailers returns the canonical names that header announces.
func announcedTrailers(header http.Header) []string {
	var names []string
	for _, list := range header["Trailer"] {
		for name := range strings.SplitSeq(list, ",") {
			name = http.CanonicalHeaderKey(strings.TrimSpace(name))
			if httpguts.ValidTrailerHeader(name) {
				names = append(names, name)
			}
		}
	}
	return names
}

// trailerNames returns the names of the fields that are trailers and not in the head.
func (w *streamWriter) trailerNames() map[string]bool {
	out := make(map[string]bool)
	for _, name := range w.trailers {
		out[name] = true
	}
	for name := range w.sent {
		if strings.HasPrefix(name, http.TrailerPrefix) {
			out[name] = true
		}
	}
	return out
}

// trailer returns the fields that come after the body.
func (w *streamWriter) trailer() http.Header {
	after := make(http.Header)
	for name, values := range w.header {
		if late, is := strings.CutPrefix(name, http.TrailerPrefix); is && httpguts.ValidTrailerHeader(http.CanonicalHeaderKey(late)) {
			after[late] = values
		}
	}
	for _, name := range w.trailers {
		if values := w.header[name]; len(values) > 0 {
			after[name] = append(after[name], values...)
		}
	}
	return after
}

// HandlerStream is a request whose net/http handler takes over the connection.
type HandlerStream struct {
	Handler http.Handler
	Request *http.Request
	Header  http.Header // of the response, before the handler runs
	Whole   bool        // the client does not accept chunks

	// Deadline ends the handler's context, unless the handler has hijacked the connection before; zero: never.
	Deadline time.Time

	// Context adds the values that handlers need to a context.
	Context func(context.Context) context.Context

	Audit   *exchange.AuditRecord
	Account *costs.Account // is charged for written bytes
	Right   Right          // the right that the request depends on; may be nil
	Leave   func()         // is called when the request is over
	Log     []any          // names the request in the log
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
	if !h.Deadline.IsZero() {
		var cancel context.CancelCauseFunc
		ctx, cancel = context.WithCancelCause(ctx)
		w.late = time.AfterFunc(time.Until(h.Deadline), func() { cancel(context.DeadlineExceeded) })
		defer w.late.Stop()
		defer cancel(nil)
	}
	req := h.Request.WithContext(backend.NewContext(h.Context(h.Audit.Context(ctx)), &st.backend))
	if body := t.Body; body != nil {
		_ = body.SendContinue(deadlineWriter{st}) // an error comes from the body too
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

// streamBody is the body of a request whose handler has taken over the connection.
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
