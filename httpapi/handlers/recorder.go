package handlers

import (
	"bytes"
	"net/http"

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
	return w.body.Write(p)
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
