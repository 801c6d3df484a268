package nethttp

import (
	"bytes"
	"context"
	"net/http"
	"strconv"

	"github.com/larder-io/larder/httpapi/exchange"
)

// Recorder is a http.ResponseWriter that keeps what it is given.
type Recorder struct {
	header http.Header
	sent   http.Header // header as it was when the status was written
	status int
	body   bytes.Buffer
}

// NewRecorder returns an empty Recorder.
func NewRecorder() *Recorder { return &Recorder{header: make(http.Header)} }

// Header implements http.ResponseWriter.
func (w *Recorder) Header() http.Header { return w.header }

// WriteHeader implements http.ResponseWriter. The first call counts.
func (w *Recorder) WriteHeader(status int) {
	if w.status == 0 && status >= 200 {
		w.status = status
		w.sent = w.header.Clone()
	}
}

// Write implements http.ResponseWriter.
func (w *Recorder) Write(p []byte) (int, error) {
	w.WriteHeader(http.StatusOK)
	if w.body.Cap() == 0 {
		w.makeRoom()
	}
	return w.body.Write(p)
}

// makeRoom allocates the memory for a body whose length the handler has set, up to MaxBuffered: the
// length may be wrong.
func (w *Recorder) makeRoom() {
	if length, err := strconv.Atoi(w.sent.Get("Content-Length")); err == nil && length > 0 {
		w.body.Grow(min(length, MaxBuffered))
	}
}

// SendTo answers with what w was given.
func (w *Recorder) SendTo(x *exchange.Response) {
	w.WriteHeader(http.StatusOK)
	if w.sent.Get("Content-Type") == "" && w.body.Len() > 0 {
		w.sent.Set("Content-Type", http.DetectContentType(w.body.Bytes()))
	}
	x.CopyHeader(w.sent)
	x.Send(w.status, "", w.body.Bytes())
}

// Filter is one of upstream's filters, which passes the requests that it lets through to a handler.
type Filter struct{ handler http.Handler }

// passedKey is the context key of the *http.Request that a Filter stores the request in.
type passedKey struct{}

// NewFilter returns the filter that wrap makes of a handler.
func NewFilter(wrap func(http.Handler) http.Handler) *Filter {
	return &Filter{wrap(http.HandlerFunc(func(_ http.ResponseWriter, req *http.Request) {
		*req.Context().Value(passedKey{}).(**http.Request) = req
	}))}
}

// Run returns the request that the filter passes on. It returns nil if the filter has answered req.
func (f *Filter) Run(w http.ResponseWriter, req *http.Request) (passed *http.Request) {
	f.handler.ServeHTTP(w, req.WithContext(context.WithValue(req.Context(), passedKey{}, &passed)))
	return passed
}
