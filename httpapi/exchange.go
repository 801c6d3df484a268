package httpapi

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/textproto"
	"sync"
	"time"

	"github.com/valyala/fasthttp"
	"k8s.io/apiserver/pkg/authentication/user"

	"github.com/larder-io/larder/httpapi/request"
	"github.com/larder-io/larder/internal/auth"
	"github.com/larder-io/larder/internal/invariants"
)

// exchange is one request on its way through the chain and its answer on the way
// back. It is the seam to the HTTP library: nothing outside this file and server.go
// reads a request from fasthttp or writes a response to it, but for session.go.
//
// It belongs to the goroutine that serves it and ends with the handler. What it
// hands out are copies; what it is given to send is shared and not changed.
type exchange struct {
	*request.Request // request, once it is parsed

	request  request.Request
	s        *Server
	fast     *fasthttp.RequestCtx
	received time.Time
	deadline time.Time // zero for long-running requests
	hurried  bool      // the client asked for an earlier deadline than the server's
	auditID  string
	user     user.Info
	detached *http.Request
	lazy     *handlerBody // of detached; nil if it has none

	trail        *trail
	place        place
	class        *auth.FlowClass // nil: flow control has no say
	impersonates bool            // the request asks to act as somebody else
	foreign      bool            // it has credentials that are not remembered
	session      *session
	claims       request.Attributes

	// The response is what was set of fast, but for a body of known size.
	body   writerToCloser
	object objectBody // is body, if it is one object
	size   int
	// streams says that the size of the body is not known: it leaves as it comes.
	streams bool
	// taken takes the connection over, stolen says that somebody has it already, and
	// cut ends it, all without a response.
	taken  func(net.Conn)
	stolen bool
	cut    bool
}

// peek returns a request header without copying it. The bytes end with the
// exchange.
func (x *exchange) peek(name string) []byte { return x.fast.Request.Header.Peek(name) }

// internal reports whether the request comes from this process.
func (x *exchange) internal() bool {
	_, ok := x.fast.Conn().(*memoryConn)
	return ok
}

// set sets a header of the response.
func (x *exchange) set(name, value string) { x.fast.Response.Header.Set(name, value) }

// add adds a header to the response.
func (x *exchange) add(name, value string) { x.fast.Response.Header.Add(name, value) }

// send completes the response with body.
func (x *exchange) send(status int, contentType string, body []byte) {
	x.head(status, contentType)
	x.fast.Response.SetBodyRaw(body)
}

// head sets what precedes the body.
func (x *exchange) head(status int, contentType string) {
	x.fast.Response.SetStatusCode(status)
	if contentType != "" {
		x.fast.Response.Header.SetContentType(contentType)
	}
}

// sendFrom completes the response with the size bytes that body writes. body is
// closed when they are written or the client is gone.
func (x *exchange) sendFrom(status int, contentType string, size int, body writerToCloser) {
	x.head(status, contentType)
	x.body, x.size = body, size
}

// write writes the response to w.
func (x *exchange) write(w io.Writer) error {
	out := newChunkWriter(w)
	defer out.release()
	if x.body == nil {
		return x.writeBuffered(out)
	}
	if x.size == unknownSize {
		return x.writeChunked(out)
	}
	resp := &x.fast.Response
	resp.Header.SetContentLength(x.size)
	out.buf = resp.Header.AppendBytes(out.buf)
	want := int64(len(out.buf))
	if !resp.SkipBody {
		want += int64(x.size)
		if _, err := x.body.WriteTo(out); err != nil {
			return err
		}
	}
	out.flush()
	if out.err == nil && out.written != want {
		return fmt.Errorf("httpapi: wrote %d bytes of %d", out.written, want)
	}
	return out.err
}

// writers holds buffers for what fasthttp writes.
var writers = sync.Pool{New: func() any { return bufio.NewWriterSize(nil, 4<<10) }}

// writeBuffered writes a response whose body fasthttp has.
func (x *exchange) writeBuffered(out *chunkWriter) error {
	w := writers.Get().(*bufio.Writer)
	defer func() {
		if invariants.Enabled {
			poisonWriter(w)
		}
		w.Reset(nil)
		writers.Put(w)
	}()
	w.Reset(out)
	switch {
	case x.streams && !x.fast.Request.Header.IsHTTP11():
		if err := x.gather(); err != nil {
			return err
		}
	case x.streams:
		w.Reset(out.w) // each piece when it comes
	}
	err := x.fast.Response.Write(w)
	if flushErr := w.Flush(); err == nil {
		err = flushErr
	}
	out.flush()
	if err == nil {
		err = out.err
	}
	return err
}

// gather reads a body of unknown size to its end, for a client that knows no chunks.
func (x *exchange) gather() error {
	body, err := io.ReadAll(x.fast.Response.BodyStream())
	if err != nil {
		return err
	}
	x.fast.Response.SetBodyRaw(body)
	return nil
}

// close ends what the response would have been written from, the record of it, and that
// it counts.
func (x *exchange) close() {
	if x.body != nil {
		x.body.Close()
		x.body = nil
	}
	x.takeTrail().end()
	x.place.release()
}

// sendReader completes the response with what body yields, whose size is not known.
func (x *exchange) sendReader(status int, body io.ReadCloser) {
	x.head(status, "")
	x.streams = true
	x.fast.Response.SetBodyStream(body, -1)
}

// reset forgets what was set of the response.
func (x *exchange) reset() {
	x.close()
	x.streams = false
	x.fast.Response.Reset()
	x.fast.Response.Header.SetNoDefaultContentType(true)
	x.commonHeaders()
}

// abort makes the connection end after the response, which a broken request must.
func (x *exchange) abort() { x.fast.SetConnectionClose() }

// take hands the connection to serve, which runs on a goroutine of the server's
// and writes the whole response. The connection is closed after it. serve must not
// use the exchange, which ends before it begins. During shutdown refused is called instead.
// held may be nil.
func (x *exchange) take(held *right, refused func(), serve func(ctx context.Context, st *stream)) {
	s := x.s
	x.taken = func(c net.Conn) {
		if !s.streams.start(s.base, c, held, serve) {
			refused()
		}
	}
}

// steal returns the connection to one who writes the whole response and reads
// nothing more, and may do so at once. What was read ahead is lost, which take does
// not lose.
func (x *exchange) steal() net.Conn {
	x.stolen = true
	c := x.fast.Conn()
	_ = c.SetDeadline(time.Time{}) // an error will come back from the first write
	return c
}

type writerToCloser interface {
	io.WriterTo
	io.Closer
}

// commonHeaders sets what every response carries.
func (x *exchange) commonHeaders() {
	x.set("Cache-Control", "no-cache, private")
	if x.auditID != "" {
		x.set("Audit-Id", x.auditID)
	}
}

// newAuditID returns a random UUID. It names requests in logs and guards nothing.
func newAuditID() string {
	const digits = "0123456789abcdef"
	var id [36]byte
	hi, lo := rand.Uint64(), rand.Uint64()
	hi = hi&^0xf000 | 0x4000 // version 4
	lo = lo&^(3<<62) | 1<<63 // variant 10
	for i := len(id) - 1; i >= 0; i-- {
		switch i {
		case 8, 13, 18, 23:
			id[i] = '-'
			continue
		}
		word := &hi
		if i > 18 {
			word = &lo
		}
		id[i] = digits[*word&0xf]
		*word >>= 4
	}
	return string(id[:])
}

// http returns the request for net/http code, made once. Nothing in it belongs to
// fasthttp, and its context does not end with the exchange.
func (x *exchange) http() *http.Request {
	if x.detached == nil {
		x.detached = x.copyRequest()
	}
	return x.detached
}

// copyRequest writes the request anew from what was read of it: nobody behind reads the
// client's own words a second time, and in another way.
func (x *exchange) copyRequest() *http.Request {
	req := &http.Request{
		Method:        x.Method,
		URL:           x.URL(),
		Proto:         "HTTP/1.1",
		ProtoMajor:    1,
		ProtoMinor:    1,
		Header:        x.copyHeaders(),
		Body:          http.NoBody,
		ContentLength: x.session.body.length,
		Host:          x.Host,
		RemoteAddr:    x.fast.RemoteAddr().String(),
		TLS:           x.fast.TLSConnectionState(),
	}
	req.RequestURI = req.URL.RequestURI()
	if req.Host == "" {
		req.Host = string(x.fast.Request.Header.Host())
	}
	if req.ContentLength != 0 {
		x.lazy = newHandlerBody()
		req.Body = x.lazy
	}
	if req.ContentLength < 0 {
		req.TransferEncoding = []string{"chunked"}
	}
	return req.WithContext(x.s.base)
}

// copyHeaders copies the request's headers from the block that was inspected: fasthttp's
// own listing takes cookies apart, and each line of them costs it all the others.
func (x *exchange) copyHeaders() http.Header {
	header := make(http.Header)
	for name, value := range headerLines(x.fast.Request.Header.RawHeaders()) {
		switch key := textproto.CanonicalMIMEHeaderKey(string(name)); {
		case key == "Host" || key == "Transfer-Encoding" || key == "Trailer": // are of this connection
		case key == "Content-Length" && x.session.body.length < 0:
		case x.user != nil && x.s.isCredential(key): // nothing behind may see or forward it
		default:
			header[key] = append(header[key], string(value))
		}
	}
	return header
}
