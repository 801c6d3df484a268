package http2

import (
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"time"

	"golang.org/x/net/http/httpguts"
	"golang.org/x/net/http2"
	"k8s.io/klog/v2"

	"github.com/larder-io/larder/httpapi/exchange"
)

// send writes the response of x, without its body if that is bodiless.
func (r *request) send(x *exchange.Exchange, bodiless bool) {
	st := r.Stream
	if x.Cut {
		st.abort(http2.ErrCodeInternal)
		return
	}
	st.until = time.Now().Add(r.c.s.config.WriteTimeout)
	st.owned = int64(len(x.Bytes))
	if x.Body != nil || x.Reader != nil {
		st.owned = exchange.ChunkSize
	}
	if err := r.respond(x, bodiless); err != nil {
		klog.V(4).InfoS("Response ended early", "err", err)
		st.abort(http2.ErrCodeInternal)
	}
}

// respond writes head and body.
func (r *request) respond(x *exchange.Exchange, bodiless bool) error {
	code := x.StatusCode()
	bodiless = bodiless || code == http.StatusNoContent || code == http.StatusNotModified
	block := appendStatus(make([]byte, 0, usualBlock), code)
	if x.Closing {
		r.c.goAway(goAwayDone)
	}
	block = r.appendFields(block, x.Header)
	switch size := x.Size; {
	case code == http.StatusNoContent || code == http.StatusNotModified:
	case x.Body == nil && x.Reader == nil:
		block = appendField(block, "Content-Length", strconv.Itoa(len(x.Bytes)))
	case x.Body != nil && size != exchange.UnknownSize:
		block = appendField(block, "Content-Length", strconv.Itoa(size))
	}
	short := bodiless || x.Body == nil && x.Reader == nil
	empty := bodiless || short && len(x.Bytes) == 0
	head := appendHeaders(make([]byte, 0, len(block)+headSize), r.id, block, empty, initialFrame)
	switch {
	case empty:
		_, err := r.Stream.write(head, nil, true)
		return err
	case short:
		_, err := r.Stream.write(head, x.Bytes, true)
		return err
	case x.Reader != nil:
		return r.relay(head, x.Reader)
	}
	return r.stream(head, x)
}

// usualBlock is the room for the header block of a response. Few are longer.
const usualBlock = 512

// stream writes a response with an exchange.Body.
func (r *request) stream(head []byte, x *exchange.Exchange) error {
	w := &bodyWriter{st: r.Stream, head: head, size: int64(x.Size)}
	out := exchange.NewChunkWriter(w)
	defer out.Release()
	if _, err := x.Body.WriteTo(out); err != nil {
		return err
	}
	out.Flush()
	if out.Err != nil {
		return out.Err
	}
	if x.Size != exchange.UnknownSize && out.Written != int64(x.Size) {
		return fmt.Errorf("httpapi: wrote %d bytes of %d", out.Written, x.Size)
	}
	if w.ended {
		return nil
	}
	_, err := r.Stream.write(w.head, nil, true)
	return err
}

// bodyWriter writes a body behind the head of its response. The last piece of a body of known size ends
// the stream, which saves a write.
type bodyWriter struct {
	st    *Stream
	head  []byte
	size  int64 // exchange.UnknownSize if it is not known
	put   int64
	ended bool
}

func (w *bodyWriter) Write(p []byte) (int, error) {
	last := w.put+int64(len(p)) == w.size && len(p) > 0
	n, err := w.st.write(w.head, p, last)
	w.head, w.put, w.ended = nil, w.put+int64(n), last && err == nil
	return n, err
}

// relay writes the bytes that it reads from body. Each piece is sent when it comes.
func (r *request) relay(head []byte, body io.Reader) error {
	buf := make([]byte, relaySize)
	for {
		n, err := body.Read(buf)
		if n > 0 || err == io.EOF {
			if _, err := r.Stream.write(head, buf[:n], err == io.EOF); err != nil {
				return err
			}
			head = nil
		}
		if err != nil {
			if err == io.EOF {
				return nil
			}
			return err
		}
	}
}

// relaySize is how much of a body is handed on at a time.
const relaySize = 32 << 10

// staticName is the number of a name that every HPACK decoder knows, 0 for others (RFC 7541, appendix A).
func staticName(name string) byte {
	switch name {
	case "cache-control":
		return 24
	case "content-encoding":
		return 26
	case "content-length":
		return 28
	case "content-type":
		return 31
	case "date":
		return 33
	case "location":
		return 46
	case "retry-after":
		return 53
	case "vary":
		return 59
	}
	return 0
}

// appendStatus begins a header block. It sets the size of the decoder's dynamic table to 0,
// because the table is not used.
func appendStatus(dst []byte, code int) []byte {
	dst = append(dst, 0x20)
	if at := strings.Index("200 204 206 304 400 404 500 ", strconv.Itoa(code)+" "); at >= 0 {
		return append(dst, 0x80|byte(8+at/4))
	}
	dst = append(dst, 8, 3) // a literal of the eighth name, of three bytes
	return strconv.AppendInt(dst, int64(code), 10)
}

// appendField appends a field that the client's decoder does not put into its table.
func appendField(dst []byte, name, value string) []byte {
	var room [64]byte
	lower := append(room[:0], name...)
	for i, c := range lower {
		if 'A' <= c && c <= 'Z' {
			lower[i] = c + 'a' - 'A'
		}
	}
	if known := staticName(string(lower)); known > 0 {
		dst = appendNumber(dst, 0, 4, int(known))
	} else {
		dst = appendNumber(append(dst, 0), 0, 7, len(lower))
		dst = append(dst, lower...)
	}
	return append(appendNumber(dst, 0, 7, len(value)), value...)
}

// appendNumber appends n in the lowest bits of a byte, and in more where it is too large for
// them (RFC 7541, 5.1).
func appendNumber(dst []byte, high byte, bits, n int) []byte {
	most := 1<<bits - 1
	if n < most {
		return append(dst, high|byte(n))
	}
	dst = append(dst, high|byte(most))
	for n -= most; n >= 0x80; n >>= 7 {
		dst = append(dst, byte(n)|0x80)
	}
	return append(dst, byte(n))
}

func appendValid(dst []byte, f exchange.Field) []byte {
	if httpguts.ValidHeaderFieldName(f.Name) && httpguts.ValidHeaderFieldValue(f.Value) {
		dst = appendField(dst, f.Name, f.Value)
	}
	return dst
}

// appendFields appends the header of a response, and Date. It leaves out the fields of HTTP/1.1
// connections.
func (st *Stream) appendFields(dst []byte, header []exchange.Field) []byte {
	dated := false
	for _, f := range header {
		switch key := http.CanonicalHeaderKey(f.Name); key {
		case "Connection":
			if strings.EqualFold(f.Value, "close") {
				st.c.goAway(goAwayDone)
			}
			continue
		case "Keep-Alive", "Proxy-Connection", "Transfer-Encoding", "Upgrade":
			continue
		case "Date":
			dated = true
		}
		dst = appendValid(dst, f)
	}
	if !dated {
		var room [len(http.TimeFormat)]byte
		dst = appendField(dst, "Date", string(time.Now().UTC().AppendFormat(room[:0], http.TimeFormat)))
	}
	return dst
}
