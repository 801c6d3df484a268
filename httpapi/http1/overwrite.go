package http1

import (
	"bufio"
	"io"

	"github.com/valyala/fasthttp"

	"github.com/larder-io/larder/internal/invariants"
)

// These functions overwrite buffers before they are used for another client, in builds that
// check invariants.

// overwriteMessages overwrites what fasthttp has copied of a request, and the values of
// the response's header, which are fasthttp's as well. A body may be shared bytes.
func overwriteMessages(fast *fasthttp.RequestCtx) {
	in, out := &fast.Request.Header, &fast.Response.Header
	for key, value := range in.All() {
		overwriteValue(key, value)
	}
	for key, value := range out.All() {
		overwriteValue(key, value)
	}
	invariants.Overwrite(in.RawHeaders())
	if uri := in.RequestURI(); string(uri) != "/" { // may be a constant
		invariants.Overwrite(uri)
	}
}

// overwriteValue overwrites the value of a header, unless it may be a constant of
// fasthttp's.
func overwriteValue(key, value []byte) {
	if string(key) != "Connection" {
		invariants.Overwrite(value[:len(value):len(value)])
	}
}

// overwriteReader overwrites r's buffer.
func overwriteReader(r *bufio.Reader) {
	r.Reset(patternReader{})
	_, _ = r.Peek(r.Size())
}

// overwriteWriter overwrites w's buffer.
func overwriteWriter(w *bufio.Writer) {
	w.Reset(io.Discard)
	invariants.Overwrite(w.AvailableBuffer())
}

// patternReader gives the pattern without end.
type patternReader struct{}

// Read implements io.Reader.
func (patternReader) Read(p []byte) (int, error) {
	invariants.Overwrite(p[:len(p):len(p)])
	return len(p), nil
}
