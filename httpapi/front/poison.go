package front

import (
	"bufio"
	"io"

	"github.com/valyala/fasthttp"

	"github.com/larder-io/larder/internal/invariants"
)

// What is here overwrites buffers that are about to be used for another client, in
// builds that check invariants.

// poisonMessages overwrites what fasthttp has copied of a request, and the values of
// the response's header, which are fasthttp's as well. A body may be shared bytes.
func poisonMessages(fast *fasthttp.RequestCtx) {
	in, out := &fast.Request.Header, &fast.Response.Header
	for key, value := range in.All() {
		poisonValue(key, value)
	}
	for key, value := range out.All() {
		poisonValue(key, value)
	}
	invariants.Overwrite(in.RawHeaders())
	if uri := in.RequestURI(); string(uri) != "/" { // may be a constant
		invariants.Overwrite(uri)
	}
}

// poisonValue overwrites the value of a header, unless it may be a constant of
// fasthttp's.
func poisonValue(key, value []byte) {
	if string(key) != "Connection" {
		invariants.Overwrite(value[:len(value):len(value)])
	}
}

// poisonReader overwrites r's buffer.
func poisonReader(r *bufio.Reader) {
	r.Reset(poison{})
	_, _ = r.Peek(r.Size())
}

// poisonWriter overwrites w's buffer.
func poisonWriter(w *bufio.Writer) {
	w.Reset(io.Discard)
	invariants.Overwrite(w.AvailableBuffer())
}

// poison never ends.
type poison struct{}

// Read implements io.Reader.
func (poison) Read(p []byte) (int, error) {
	invariants.Overwrite(p[:len(p):len(p)])
	return len(p), nil
}
