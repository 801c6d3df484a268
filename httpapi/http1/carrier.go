package http1

import (
	"bytes"
	"crypto/tls"
	"errors"
	"iter"
	"net"
	"net/http"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/larder-io/larder/httpapi/exchange"
	"github.com/larder-io/larder/httpapi/socket"
)

// A session is the exchange.Carrier of its current request.
var _ exchange.Carrier = (*Session)(nil)

// Method implements exchange.Carrier.
func (ss *Session) Method() []byte { return ss.header.Method() }

// Target implements exchange.Carrier.
func (ss *Session) Target() []byte { return ss.header.RequestURI() }

// Host implements exchange.Carrier.
func (ss *Session) Host() []byte { return ss.header.Host() }

// Peek implements exchange.Carrier.
func (ss *Session) Peek(name string) []byte { return ss.header.Peek(name) }

// Lines implements exchange.Carrier. It reads the raw header block, because fasthttp's own iteration
// splits cookies, in quadratic time.
func (ss *Session) Lines() iter.Seq2[[]byte, []byte] {
	return headerLines(ss.header.RawHeaders())
}

// Inspect implements exchange.Carrier.
func (ss *Session) Inspect() exchange.Facts {
	if proto := ss.header.Protocol(); string(proto) != "HTTP/1.1" && string(proto) != "HTTP/1.0" {
		return exchange.Facts{Code: http.StatusHTTPVersionNotSupported, Refusal: "505 HTTP Version Not Supported"}
	}
	facts, agent := inspect(ss.header.RawHeaders())
	ss.header.SetUserAgentBytes(bytes.Trim(agent, " \t")) // fasthttp uses the last, net/http and http2 the first
	return facts
}

// Fields implements exchange.Carrier.
func (ss *Session) Fields() []exchange.Field { return ss.fields[:0] }

// Chunks implements exchange.Carrier.
func (ss *Session) Chunks() bool { return ss.header.IsHTTP11() }

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

// OnEnd implements exchange.Carrier. EndDisconnected detects that the client has left.
func (ss *Session) OnEnd(f func()) {
	ss.mu.Lock()
	defer ss.mu.Unlock()
	ss.onEnd = append(ss.onEnd, f)
}

// end calls the functions that OnEnd has registered.
func (ss *Session) end() {
	ss.mu.Lock()
	defer ss.mu.Unlock()
	for _, f := range ss.onEnd {
		f()
	}
	clear(ss.onEnd)
	ss.onEnd = ss.onEnd[:0]
}

// Slot implements exchange.Carrier.
func (ss *Session) Slot() *atomic.Value { return &ss.slot }

// StartStream implements exchange.Carrier.
func (ss *Session) StartStream(code int, header []exchange.Field) exchange.BodyStream {
	_ = ss.conn.SetDeadline(time.Time{}) // the first write returns an error
	c, ahead := ss.connection, ss.readAhead()
	c.http1.Store(nil)
	c.from.served(c)
	to := exchange.BodyStream{Conn: ss.conn, Chunked: ss.Chunks()}
	h := &ss.header
	if to.Chunked && h.IsGet() && ss.body.done && len(ahead) <= socket.MaxEarly && !h.ConnectionClose() && !ss.ends() {
		to.Next = func(early []byte) { c.from.resume(c, append(ahead, early...)) }
	}
	to.Head = streamHead(code, header, to.Chunked, to.Next == nil)
	return to
}

// streamHead returns the head of a streamed response. closing means that the connection ends after it. Date
// comes behind the type of the body.
func streamHead(code int, header []exchange.Field, chunked, closing bool) []byte {
	dst := append(make([]byte, 0, 320), "HTTP/1.1 "...) // few are longer
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
	if closing {
		dst = append(dst, "\r\nConnection: close"...)
	}
	return append(dst, "\r\n\r\n"...)
}

// malformed returns the response to a request that could not be read because of err.
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
