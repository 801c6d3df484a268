package httpapi

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"sync"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/klog/v2"

	"github.com/larder-io/larder/httpapi/exchange"
	"github.com/larder-io/larder/httpapi/streams"
	"github.com/larder-io/larder/internal/registry/storage"
)

// maxBuffered is the size up to which an answer of a net/http handler is held back,
// so that it leaves with its length known. What is longer leaves in chunks.
const maxBuffered = 4 << 20

// serveHTTP serves the request by a net/http handler. The handler runs on its own
// goroutine with copies of everything, so that it may outlive its deadline and even
// the connection: shutdown waits for it.
func (x *chain) serveHTTP(h http.Handler) {
	if x.LongRunning() {
		x.serveStream(h)
		return
	}
	x.serveHandler(h, false)
}

// serveHandler is serveHTTP. If prompt, what the handler flushes leaves at once, and it
// sees the headers that are set already.
func (x *chain) serveHandler(h http.Handler, prompt bool) {
	ctx, cancel := context.WithDeadline(x.Trail.Context(x.Base()), x.Deadline)
	req := x.http().WithContext(handlerContext(ctx, x.RequestInfo(), x.User, x.Received))
	w := newBuffered(cancel)
	if w.prompt = prompt; prompt {
		x.HeaderTo(w.header)
	}
	w.trail, w.place = x.TakeTrail(), x.TakePlace()
	x.s.work.Go(func() {
		defer cancel()
		storage.ReserveStack()
		w.finish(x.logged(), h, req)
	})
	defer x.endBody()
	if x.wait(ctx, w) {
		x.answer(ctx, w)
	} else {
		x.timedOut()
	}
}

// wait reads the body if the handler wants it and waits until it has answered. It
// reports whether that was in time.
func (x *chain) wait(ctx context.Context, w *buffered) bool {
	wanted := x.wanted()
	for {
		select {
		case <-wanted:
			wanted = nil
			if !x.supply() {
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

// timedOut answers for a handler that took too long.
func (x *chain) timedOut() {
	x.Reset()
	x.Fail(apierrors.NewTimeoutError("request did not complete within the allotted timeout", 0))
}

// answer sends what a handler wrote that has ended or written too much to hold. One
// that gave up at the deadline without a word has not answered.
func (x *chain) answer(ctx context.Context, w *buffered) {
	select {
	case <-w.overflowed:
		x.CopyHeader(w.sent)
		x.SendReader(w.status, w.pipe)
		return
	default:
		<-w.done
	}
	switch {
	case w.panicked != nil:
		panic(http.ErrAbortHandler)
	case w.crashed:
		x.Panicked()
	case w.status == 0 && errors.Is(ctx.Err(), context.DeadlineExceeded):
		x.timedOut()
	default:
		x.sendRecorded(&w.recorder)
	}
}

// logged is what a log line about the request says of it, for code that outlives
// the exchange.
func (x *chain) logged() []any {
	return []any{"method", x.Method, "path", x.Path, "auditID", x.AuditID}
}

// sendRecorded answers with what w recorded.
func (x *chain) sendRecorded(w *recorder) {
	w.WriteHeader(http.StatusOK)
	if w.sent.Get("Content-Type") == "" && w.body.Len() > 0 {
		w.sent.Set("Content-Type", http.DetectContentType(w.body.Bytes()))
	}
	x.CopyHeader(w.sent)
	x.Send(w.status, "", w.body.Bytes())
}

// recorder is a http.ResponseWriter that keeps what it is given.
type recorder struct {
	header http.Header
	sent   http.Header // header as it was when the status was written
	status int
	body   bytes.Buffer
}

func newRecorder() *recorder { return &recorder{header: make(http.Header)} }

// Header implements http.ResponseWriter.
func (w *recorder) Header() http.Header { return w.header }

// WriteHeader implements http.ResponseWriter. The first call counts.
func (w *recorder) WriteHeader(status int) {
	if w.status == 0 && status >= 200 {
		w.status = status
		w.sent = w.header.Clone()
	}
}

// Write implements http.ResponseWriter.
func (w *recorder) Write(p []byte) (int, error) {
	w.WriteHeader(http.StatusOK)
	return w.body.Write(p)
}

// buffered records up to maxBuffered bytes. Beyond them it turns into a pipe whose
// reading end the connection gets.
type buffered struct {
	prompt     bool            // Flush is heeded
	trail      *exchange.Trail // that the handler ends
	place      exchange.Place  // that it has until it ends
	cancel     context.CancelFunc
	done       chan struct{} // closed when the handler has ended
	overflowed chan struct{} // closed when pipe is to be read

	mu        sync.Mutex
	abandoned bool // guarded by mu: nobody reads the answer
	recorder       // guarded by mu until done or overflowed
	out       *io.PipeWriter
	pipe      *pipeBody
	panicked  any  // the handler asked to cut the connection
	crashed   bool // the handler panicked
}

// pipeBody is the reading end of an answer that did not fit.
type pipeBody struct {
	io.Reader
	end    *io.PipeReader
	cancel context.CancelFunc
}

// Close tells the handler that nobody reads any more.
func (b *pipeBody) Close() error {
	b.cancel()
	return b.end.Close()
}

func newBuffered(cancel context.CancelFunc) *buffered {
	return &buffered{
		cancel:     cancel,
		done:       make(chan struct{}),
		overflowed: make(chan struct{}),
		recorder:   recorder{header: make(http.Header)},
	}
}

// finish runs h to its end.
func (w *buffered) finish(log []any, h http.Handler, req *http.Request) {
	defer func() {
		if p := recover(); p != nil {
			w.trail.Panicked(p)
			w.recovered(p, log)
		}
		w.mu.Lock()
		out := w.out
		w.mu.Unlock()
		if out != nil {
			out.CloseWithError(w.ending())
		}
		w.place.Release()
		close(w.done)
	}()
	h.ServeHTTP(w, req)
	w.record()
}

// record records the answer, whether anybody reads it or not.
func (w *buffered) record() {
	if w.trail == nil {
		return
	}
	w.mu.Lock()
	status := w.status
	w.mu.Unlock()
	if status != 0 {
		w.trail.Answer(status)
	}
	w.trail.End()
}

// recovered takes note of a panic.
func (w *buffered) recovered(p any, log []any) {
	if exchange.IsAbort(p) {
		w.panicked = p
		return
	}
	w.crashed = true
	klog.ErrorS(nil, "Request panicked", append(log, "panic", p, "stack", exchange.Stack())...)
}

// ending is what ends the pipe: an error cuts the connection.
func (w *buffered) ending() error {
	if w.crashed || w.panicked != nil {
		return http.ErrAbortHandler
	}
	return nil
}

// abandon makes further writes fail and reports whether that came before the
// handler ended or overflowed.
func (w *buffered) abandon() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	select {
	case <-w.done:
		return false
	default:
	}
	if w.out != nil {
		return false
	}
	w.abandoned = true
	return true
}

// WriteHeader implements http.ResponseWriter.
func (w *buffered) WriteHeader(status int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.recorder.WriteHeader(status)
}

// Write implements http.ResponseWriter.
func (w *buffered) Write(p []byte) (int, error) {
	w.mu.Lock()
	switch {
	case w.abandoned:
		w.recorder.WriteHeader(http.StatusOK) // as the record has it
		w.mu.Unlock()
		return 0, http.ErrHandlerTimeout
	case w.out == nil && w.body.Len()+len(p) <= maxBuffered:
		defer w.mu.Unlock()
		return w.recorder.Write(p)
	case w.out == nil:
		w.overflowLocked()
	}
	out := w.out
	w.mu.Unlock()
	return out.Write(p)
}

// overflowLocked lets what was held back leave, and what follows when it is written.
func (w *buffered) overflowLocked() {
	w.recorder.WriteHeader(http.StatusOK)
	end, out := io.Pipe()
	w.out = out
	w.pipe = &pipeBody{Reader: io.MultiReader(bytes.NewReader(w.body.Bytes()), end), end: end, cancel: w.cancel}
	close(w.overflowed)
}

// Flush implements http.Flusher: as a rule what is held back leaves when the handler ends.
func (w *buffered) Flush() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.prompt && !w.abandoned && w.out == nil {
		w.overflowLocked()
	}
}

// serveStream serves a request that may take long and wants to be heard at once,
// or takes the connection over, by a net/http handler on the bare connection.
func (x *chain) serveStream(h http.Handler) {
	info, who, received, seat := x.RequestInfo(), x.User, x.Received, x.takeStreamPlace()
	handed := &streams.Handed{
		Handler: h,
		Request: x.http(),
		Header:  make(http.Header),
		Context: func(ctx context.Context) context.Context {
			return handlerContext(seat.Context(ctx), info, who, received)
		},
		Trail: x.TakeTrail(),
		Right: x.join(),
		Leave: seat.Leave,
		Log:   x.logged(),
	}
	x.HeaderTo(handed.Header)
	s := x.s
	x.Taken = func(c net.Conn, body exchange.TakenBody) { s.streams.Serve(s.base, c, body, handed) }
}

// join returns by what right the request's stream is open; nil if that is not looked after.
func (x *chain) join() streams.Right {
	if held := x.s.rights.join(x); held != nil {
		return held
	}
	return nil
}
