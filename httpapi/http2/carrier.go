package http2

import (
	"bytes"
	"crypto/tls"
	"fmt"
	"io"
	"iter"
	"net/http"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"golang.org/x/net/http/httpguts"
	"golang.org/x/net/http2"
	"k8s.io/klog/v2"

	"github.com/larder-io/larder/httpapi/exchange"
)

// A request is the exchange.Carrier of its exchange.
var _ exchange.Carrier = (*request)(nil)

func (r *request) Major() int { return 2 }

func (r *request) Method() []byte { return r.at(r.pseudo[pseudoMethod]) }

// Target implements exchange.Carrier. The target of CONNECT is a host.
func (r *request) Target() []byte {
	if !r.has(pseudoPath) {
		return r.at(r.pseudo[pseudoAuthority])
	}
	return r.at(r.pseudo[pseudoPath])
}

func (r *request) Host() []byte {
	if host := r.at(r.pseudo[pseudoAuthority]); len(host) > 0 {
		return host
	}
	return r.Peek("Host")
}

func (r *request) Peek(name string) []byte {
	for _, l := range r.lines {
		if l.name.to-l.name.from == len(name) && strings.EqualFold(string(r.at(l.name)), name) {
			return r.at(l.value)
		}
	}
	return nil
}

func (r *request) Lines() iter.Seq2[[]byte, []byte] {
	return func(yield func(name, value []byte) bool) {
		for _, l := range r.lines {
			if !yield(r.at(l.name), r.at(l.value)) {
				return
			}
		}
	}
}

func (r *request) Inspect() exchange.Facts { return r.facts }

func (r *request) Fields() []exchange.Field { return r.room[:0] }

// Chunks implements exchange.Carrier: frames mark the end of a body.
func (r *request) Chunks() bool { return true }

func (r *request) BodyLength() int64 { return r.length }

func (r *request) TLS() *tls.ConnectionState { return r.c.tls }

func (r *request) Internal() bool { return false }

// Slot implements exchange.Carrier.
func (r *request) Slot() *atomic.Value { return &r.c.slot }

// StartStream implements exchange.Carrier. The head is sent at once.
func (r *request) StartStream(code int, header []exchange.Field) exchange.BodyStream {
	st := r.stream
	_ = st.writeHead(code, header) // the first write of the body returns an error
	r.streamed = st.written
	return exchange.BodyStream{Conn: st, End: st.End, Left: st.Left}
}

// hijacked returns the argument of Response.Hijack.
func (r *request) hijacked() exchange.Hijacked {
	st := r.stream
	begin := func(code int, header http.Header) error { return st.writeHead(code, fieldsOf(header)) }
	t := exchange.Hijacked{Conn: st, Begin: begin, End: st.endResponse, Left: st.Left}
	if st.body != nil {
		t.Body = st
	}
	return t
}

// writeHead sends the head of a response.
func (st *stream) writeHead(code int, header []exchange.Field) error {
	block := st.appendFields(appendStatus(nil, code), header)
	_, err := st.write(appendHeaders(nil, st.id, block, false), nil, false)
	return err
}

// endResponse sends the trailer and ends the stream.
func (st *stream) endResponse(trailer http.Header) error {
	if len(trailer) == 0 {
		return st.End()
	}
	var block []byte
	for _, f := range fieldsOf(trailer) {
		block = appendValid(block, f)
	}
	_, err := st.write(appendHeaders(nil, st.id, block, true), nil, true)
	return err
}

func fieldsOf(header http.Header) []exchange.Field {
	fields := make([]exchange.Field, 0, len(header))
	for name, values := range header {
		for _, value := range values {
			fields = append(fields, exchange.Field{Name: name, Value: value})
		}
	}
	return fields
}

// handle calls the handler.
func (r *request) handle(received time.Time) *exchange.Exchange {
	switch {
	case r.large:
		return exchange.NewRefusal(r, received, http.StatusRequestHeaderFieldsTooLarge, true)
	case r.badExpectation:
		return exchange.NewRefusal(r, received, http.StatusExpectationFailed, false)
	case string(r.Target()) == "*" && bytes.Equal(r.Method(), []byte(http.MethodOptions)):
		return exchange.NewAsterisk(r, received)
	}
	return r.c.s.config.Handler(r, received)
}

// send writes the response of x, without its body if that is bodiless.
func (r *request) send(x *exchange.Exchange, bodiless bool) {
	st := r.stream
	if x.Abort {
		st.abort(http2.ErrCodeInternal)
		return
	}
	st.until = time.Now().Add(r.c.s.config.WriteTimeout)
	st.owned = int64(len(x.Bytes))
	if x.Body != nil || x.Reader != nil {
		st.owned = min(max(exchange.ChunkSize, int64(x.HeldBytes)), maxResponseCharge)
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
	block := appendStatus(make([]byte, 0, blockCapacity), code)
	if x.Closing {
		r.c.goAway(goAwaySent)
	}
	block = r.appendFields(block, x.Header)
	switch size := x.Size; {
	case code == http.StatusNoContent || code == http.StatusNotModified:
	case x.Body == nil && x.Reader == nil && (len(x.Bytes) > 0 || !bodiless):
		block = appendField(block, "Content-Length", strconv.Itoa(len(x.Bytes)))
	case x.Body != nil && size != exchange.UnknownSize:
		block = appendField(block, "Content-Length", strconv.Itoa(size))
	}
	body := x.Bytes
	if bodiless {
		body = nil
	}
	short := bodiless || x.Body == nil && x.Reader == nil
	head := appendHeaders(make([]byte, 0, len(block)+headSize), r.id, block, short && len(body) == 0)
	switch {
	case short:
		_, err := r.stream.write(head, body, true)
		return err
	case x.Reader != nil:
		return r.relay(head, x.Reader)
	}
	return r.sendBody(head, x)
}

// blockCapacity is the initial capacity for the header block of a response. Few blocks are longer.
const blockCapacity = 512

// sendBody writes a response with an exchange.Body.
func (r *request) sendBody(head []byte, x *exchange.Exchange) error {
	w := &bodyWriter{st: r.stream, head: head, size: int64(x.Size)}
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
	return w.end()
}

// relay copies body to the response. Each piece is sent at once.
func (r *request) relay(head []byte, body io.Reader) error {
	w := &bodyWriter{st: r.stream, head: head, size: exchange.UnknownSize}
	if _, err := io.Copy(w, struct{ io.Reader }{body}); err != nil {
		return err
	}
	return w.end()
}

// bodyWriter writes a body after the head of its response. The last piece of a body of known size ends
// the stream, which saves a write.
type bodyWriter struct {
	st    *stream
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

// end ends the stream, unless the last piece has.
func (w *bodyWriter) end() error {
	if w.ended {
		return nil
	}
	_, err := w.st.write(w.head, nil, true)
	return err
}

// staticNames are the indexes of header names in HPACK's static table (RFC 7541, appendix A).
var staticNames = map[string]int{
	"cache-control": 24, "content-encoding": 26, "content-length": 28, "content-type": 31,
	"date": 33, "location": 46, "retry-after": 53, "vary": 59,
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

// appendField appends a field without indexing (RFC 7541, 6.2.2).
func appendField(dst []byte, name, value string) []byte {
	var room [64]byte
	lower := append(room[:0], name...)
	for i, c := range lower {
		if 'A' <= c && c <= 'Z' {
			lower[i] = c + 'a' - 'A'
		}
	}
	if known := staticNames[string(lower)]; known > 0 {
		dst = appendNumber(dst, 4, known)
	} else {
		dst = appendNumber(append(dst, 0), 7, len(lower))
		dst = append(dst, lower...)
	}
	return append(appendNumber(dst, 7, len(value)), value...)
}

// appendNumber appends n as an HPACK integer with a prefix of bits bits (RFC 7541, 5.1).
func appendNumber(dst []byte, bits, n int) []byte {
	most := 1<<bits - 1
	if n < most {
		return append(dst, byte(n))
	}
	dst = append(dst, byte(most))
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

// appendFields appends the header of a response, and Date. It omits the fields of HTTP/1.1 connections.
func (st *stream) appendFields(dst []byte, header []exchange.Field) []byte {
	dated := false
	for _, f := range header {
		switch key := http.CanonicalHeaderKey(f.Name); key {
		case "Connection":
			if strings.EqualFold(f.Value, "close") {
				st.c.goAway(goAwaySent)
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
