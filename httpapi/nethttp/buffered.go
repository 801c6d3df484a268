package nethttp

import (
	"bytes"
	"context"
	"io"
	"net/http"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"k8s.io/apiserver/pkg/endpoints/metrics"
	apirequest "k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/klog/v2"

	"github.com/larder-io/larder/httpapi/costs"
	"github.com/larder-io/larder/httpapi/exchange"
)

// MaxBuffered is the size up to which a response of a net/http handler is buffered and sent with its length. A longer
// response is sent in chunks.
const MaxBuffered = 4 << 20

// maxFlushed is MaxBuffered for a response that may be flushed: it comes from another server.
const maxFlushed = 64 << 10

// buffered records a response. A response of more than MaxBuffered or maxFlushed bytes goes through a pipe, from which
// the connection reads.
type buffered struct {
	flushes    bool                  // Flush sends the buffered bytes
	audit      *exchange.AuditRecord // ends with the handler
	account    *costs.Account        // is charged for the handler's work; nil if it waits for another server
	asked      *body                 // of the request; nil if it has none
	waited     atomic.Int64          // nanoseconds in which the handler waited for the client to read
	seat       exchange.Seat         // is released when the handler ends, unless its response is then sent as a whole
	cancel     context.CancelFunc
	done       chan struct{} // closed when the handler has ended
	overflowed chan struct{} // closed when pipe must be read

	mu        sync.Mutex
	abandoned bool // guarded by mu: the response will not be sent
	Recorder       // guarded by mu until done or overflowed
	out       *io.PipeWriter
	pipe      *pipeBody
	panicked  any // of the handler; nil if it returned
}

// pipeBody is the reading end of a response that was too large to buffer.
type pipeBody struct {
	io.Reader
	end    *io.PipeReader
	cancel context.CancelFunc
}

// Close cancels the handler: its response is no longer read.
func (b *pipeBody) Close() error {
	b.cancel()
	return b.end.Close()
}

// finish runs h to its end.
func (b *buffered) finish(log []any, h http.Handler, req *http.Request) {
	defer func() {
		outcome, ending := metrics.PostTimeoutHandlerOK, error(nil)
		if b.panicked = recover(); b.panicked != nil {
			outcome, ending = metrics.PostTimeoutHandlerPanic, http.ErrAbortHandler // which cuts the connection
			b.audit.Panicked(b.panicked)
			if !exchange.IsAbort(b.panicked) {
				klog.ErrorS(nil, "Request panicked", append(log, "panic", b.panicked, "stack", exchange.Stack())...)
			}
		}
		b.mu.Lock()
		out, abandoned := b.out, b.abandoned
		close(b.done)
		b.mu.Unlock()
		if abandoned {
			metrics.RecordRequestPostTimeout(metrics.PostTimeoutSourceTimeoutHandler, outcome)
			b.seat.Release()
		}
		if out != nil {
			out.CloseWithError(ending)
			b.seat.Release()
		}
	}()
	began := time.Now()
	defer func() { b.charge(req, time.Since(began)) }()
	h.ServeHTTP(b, req)
	b.record()
}

// charge charges the account for a handler that took so long, without its waits for the store, for
// webhooks and for its client.
func (b *buffered) charge(req *http.Request, took time.Duration) {
	if b.account == nil {
		return
	}
	took -= time.Duration(b.waited.Load())
	if b.asked != nil {
		took -= time.Duration(b.asked.waited.Load())
	}
	if t, ok := apirequest.LatencyTrackersFrom(req.Context()); ok {
		took -= t.StorageTracker.GetLatency() + t.MutatingWebhookTracker.GetLatency() + t.ValidatingWebhookTracker.GetLatency()
	}
	b.account.Add(costs.Usage{costs.CPU: int64(max(0, took))})
}

// record records the response, whether it is sent or not.
func (b *buffered) record() {
	b.mu.Lock()
	status := b.status
	b.mu.Unlock()
	if status != 0 {
		b.audit.RecordStatus(status)
	}
	b.audit.End()
}

// abandon makes further writes fail. It reports false if the handler has ended or overflowed.
func (b *buffered) abandon() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	select {
	case <-b.done:
		return false
	default:
	}
	if b.out != nil {
		return false
	}
	b.abandoned = true
	return true
}

func (b *buffered) WriteHeader(status int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.Recorder.WriteHeader(status)
}

func (b *buffered) Write(p []byte) (int, error) {
	defer b.audit.Wrote(time.Now())
	b.mu.Lock()
	switch {
	case b.abandoned:
		b.Recorder.WriteHeader(http.StatusOK) // for the audit record
		b.mu.Unlock()
		return 0, http.ErrHandlerTimeout
	case b.out == nil && b.body.Len()+len(p) <= b.most:
		defer b.mu.Unlock()
		return b.Recorder.Write(p)
	case b.out == nil:
		b.overflowLocked()
	}
	out := b.out
	b.mu.Unlock()
	began := time.Now()
	defer func() { b.waited.Add(int64(time.Since(began))) }()
	return out.Write(p)
}

// overflowLocked sends the buffered bytes, and then the handler's further writes.
func (b *buffered) overflowLocked() {
	b.Recorder.WriteHeader(http.StatusOK)
	end, out := io.Pipe()
	b.out = out
	b.pipe = &pipeBody{Reader: io.MultiReader(bytes.NewReader(b.body.Bytes()), end), end: end, cancel: b.cancel}
	close(b.overflowed)
}

// Flush implements http.Flusher. Without b.flushes it does nothing.
func (b *buffered) Flush() {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.flushes && !b.abandoned && b.out == nil {
		b.overflowLocked()
	}
}

// Recorder is a http.ResponseWriter that records a response.
type Recorder struct {
	header http.Header
	sent   http.Header // header as it was when the status was written
	status int
	body   bytes.Buffer
	most   int // limits the allocation for an announced length, and the size that a buffered keeps
}

// NewRecorder returns an empty Recorder.
func NewRecorder() *Recorder { return &Recorder{header: make(http.Header), most: MaxBuffered} }

// Header implements http.ResponseWriter.
func (r *Recorder) Header() http.Header { return r.header }

// WriteHeader implements http.ResponseWriter. The first call counts.
func (r *Recorder) WriteHeader(status int) {
	if r.status == 0 && status >= 200 {
		r.status = status
		r.sent = r.header.Clone()
	}
}

// Write implements http.ResponseWriter.
func (r *Recorder) Write(p []byte) (int, error) {
	r.WriteHeader(http.StatusOK)
	if r.body.Cap() == 0 {
		if length, err := strconv.Atoi(r.sent.Get("Content-Length")); err == nil && length > 0 {
			r.body.Grow(min(length, r.most)) // the length may be wrong
		}
	}
	return r.body.Write(p)
}

// SendTo responds with the recorded status, header and body.
func (r *Recorder) SendTo(x *exchange.Response) {
	r.WriteHeader(http.StatusOK)
	if r.sent.Get("Content-Type") == "" && r.body.Len() > 0 {
		r.sent.Set("Content-Type", http.DetectContentType(r.body.Bytes()))
	}
	x.CopyHeader(r.sent)
	length, err := strconv.Atoi(r.sent.Get("Content-Length"))
	if err == nil && length > 0 && r.body.Len() == 0 && r.status != http.StatusNotModified {
		x.SendFrom(r.status, "", length, headBody{})
		return
	}
	x.Send(r.status, "", r.body.Bytes())
}

// headBody is the body of a response to HEAD whose length the handler has set.
type headBody struct{}

// WriteTo writes nothing: a response that is not to HEAD is cut.
func (headBody) WriteTo(io.Writer) (int64, error) { return 0, nil }

// Close implements io.Closer.
func (headBody) Close() error { return nil }

// Filter is one of upstream's filters, which passes the requests that it lets through to a handler.
type Filter struct{ handler http.Handler }

// passedKey is the context key of the *http.Request that a Filter stores the request in.
type passedKey struct{}

// NewFilter returns a Filter that runs the handler that wrap returns.
func NewFilter(wrap func(http.Handler) http.Handler) *Filter {
	return &Filter{wrap(http.HandlerFunc(func(_ http.ResponseWriter, req *http.Request) {
		*req.Context().Value(passedKey{}).(**http.Request) = req
	}))}
}

// Run returns the request that the filter passes on. It returns nil if the filter has responded to req.
func (f *Filter) Run(w http.ResponseWriter, req *http.Request) (passed *http.Request) {
	f.handler.ServeHTTP(w, req.WithContext(context.WithValue(req.Context(), passedKey{}, &passed)))
	return passed
}
