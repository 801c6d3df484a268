package http1

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"iter"
	"net"
	"net/http"
	"strconv"
	"time"

	"k8s.io/klog/v2"

	"github.com/larder-io/larder/httpapi/exchange"
	"github.com/larder-io/larder/httpapi/socket"
)

// A session is the exchange.Carrier of the request that it serves at the moment.
var _ exchange.Carrier = (*Session)(nil)

// Method implements exchange.Carrier.
func (ss *Session) Method() []byte { return ss.fast.Method() }

// Target implements exchange.Carrier.
func (ss *Session) Target() []byte { return ss.fast.Request.Header.RequestURI() }

// Host implements exchange.Carrier.
func (ss *Session) Host() []byte { return ss.fast.Request.Header.Host() }

// Peek implements exchange.Carrier.
func (ss *Session) Peek(name string) []byte { return ss.fast.Request.Header.Peek(name) }

// Lines implements exchange.Carrier. It reads the raw header block, because fasthttp's own iteration
// splits cookies, in quadratic time.
func (ss *Session) Lines() iter.Seq2[[]byte, []byte] {
	return headerLines(ss.fast.Request.Header.RawHeaders())
}

// Inspect implements exchange.Carrier.
func (ss *Session) Inspect() exchange.Facts {
	header := &ss.fast.Request.Header
	if proto := header.Protocol(); string(proto) != "HTTP/1.1" && string(proto) != "HTTP/1.0" {
		return exchange.Facts{Code: http.StatusHTTPVersionNotSupported, Refusal: "505 HTTP Version Not Supported"}
	}
	return inspect(header.RawHeaders())
}

// Fields implements exchange.Carrier.
func (ss *Session) Fields() []exchange.Field { return ss.fields[:0] }

// Chunks implements exchange.Carrier.
func (ss *Session) Chunks() bool { return ss.fast.Request.Header.IsHTTP11() }

// BodyLength implements exchange.Carrier.
func (ss *Session) BodyLength() int64 { return ss.body.length }

// RemoteAddr implements exchange.Carrier.
func (ss *Session) RemoteAddr() net.Addr { return ss.conn.RemoteAddr() }

// TLS implements exchange.Carrier.
func (ss *Session) TLS() *tls.ConnectionState {
	c, ok := ss.conn.(interface{ ConnectionState() tls.ConnectionState })
	if !ok {
		return nil
	}
	state := c.ConnectionState()
	return &state
}

// Internal implements exchange.Carrier.
func (ss *Session) Internal() bool {
	_, ok := ss.conn.(*memoryConn)
	return ok
}

// Major implements exchange.Carrier.
func (ss *Session) Major() int { return 1 }

// Until implements exchange.Carrier. A session does not notice when its client leaves, so it
// adds nothing to ctx.
func (ss *Session) Until(ctx context.Context) context.Context { return ctx }

// Slot implements exchange.Carrier: the requests of a connection come one after the other.
func (ss *Session) Slot() *any { return &ss.slot }

// StartStream implements exchange.Carrier.
func (ss *Session) StartStream(code int, header []exchange.Field) exchange.BodyStream {
	_ = ss.conn.SetDeadline(time.Time{}) // an error will come back from the first write
	chunked := ss.Chunks()
	return exchange.BodyStream{Conn: ss.conn, Head: appendHead(make([]byte, 0, streamHead), code, header, chunked), Chunked: chunked}
}

// streamHead is the room for the head of a streamed response. Few are longer.
const streamHead = 320

// appendHead appends the head of a response after which the connection ends. Date comes
// behind the type of the body.
func appendHead(dst []byte, code int, header []exchange.Field, chunked bool) []byte {
	dst = append(dst, "HTTP/1.1 "...)
	dst = strconv.AppendInt(dst, int64(code), 10)
	dst = append(append(dst, ' '), http.StatusText(code)...)
	for _, f := range header {
		dst = append(append(dst, "\r\n"...), f.Name...)
		dst = append(append(dst, ": "...), f.Value...)
		if f.Name == "Content-Type" {
			dst = append(dst, "\r\nDate: "...)
			dst = time.Now().UTC().AppendFormat(dst, http.TimeFormat)
		}
	}
	if chunked {
		dst = append(dst, "\r\nTransfer-Encoding: chunked"...)
	}
	return append(dst, "\r\nConnection: close\r\n\r\n"...)
}

// asterisk answers "OPTIONS *", which asks about the server as a whole. Like net/http's
// server it does so before authentication.
func (ss *Session) asterisk(received time.Time) *exchange.Exchange {
	x := new(exchange.Exchange)
	x.Init(ss, received, nil)
	x.Head(http.StatusOK, "")
	return x
}

// malformed returns the answer to a request that could not be read because of err.
func (ss *Session) malformed(err error) *exchange.Exchange {
	code := http.StatusBadRequest
	switch {
	case errors.Is(err, errHeaderTooLarge):
		code = http.StatusRequestHeaderFieldsTooLarge
	case errors.Is(err, errExpectation):
		code = http.StatusExpectationFailed
	case socket.IsTimeout(err):
		code = http.StatusRequestTimeout
	}
	x := exchange.NewRefusal(ss, time.Time{}, code, code != http.StatusExpectationFailed)
	x.Closing = true
	return x
}

// fasthttpLogger logs what fasthttp reports about connections. It does so for debugging only.
type fasthttpLogger struct{}

func (fasthttpLogger) Printf(format string, args ...any) {
	if klog.V(4).Enabled() {
		klog.V(4).InfoS("Connection", "message", fmt.Sprintf(format, args...))
	}
}
