package http1

import (
	"bufio"
	"io"

	"github.com/valyala/fasthttp"

	"github.com/larder-io/larder/internal/invariants"
)

// Builds that check invariants overwrite buffers before another client uses them.

// overwriteMessages overwrites fasthttp's copies of a request, and of the header of a response. Bodies may
// be shared bytes.
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

// overwriteValue overwrites the value of a header, unless it may be one of fasthttp's constants.
func overwriteValue(key, value []byte) {
	if string(key) != "Connection" {
		invariants.Overwrite(value[:len(value):len(value)])
	}
}

// overwriteWriter overwrites w's buffer.
func overwriteWriter(w *bufio.Writer) {
	w.Reset(io.Discard)
	invariants.Overwrite(w.AvailableBuffer())
}
