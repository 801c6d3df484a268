package front

import (
	"crypto/tls"
	"iter"
	"net"
	"net/http"
	"time"

	"github.com/larder-io/larder/httpapi/exchange"
)

// A session is the exchange.Carrier of the request that it is at.
var _ exchange.Carrier = (*Session)(nil)

// Method implements exchange.Carrier.
func (ss *Session) Method() []byte { return ss.fast.Method() }

// Target implements exchange.Carrier.
func (ss *Session) Target() []byte { return ss.fast.Request.Header.RequestURI() }

// Host implements exchange.Carrier.
func (ss *Session) Host() []byte { return ss.fast.Request.Header.Host() }

// Peek implements exchange.Carrier.
func (ss *Session) Peek(name string) []byte { return ss.fast.Request.Header.Peek(name) }

// Lines implements exchange.Carrier, from the block that was inspected: fasthttp's own
// listing takes cookies apart, and each line of them costs it all the others.
func (ss *Session) Lines() iter.Seq2[[]byte, []byte] {
	return headerLines(ss.fast.Request.Header.RawHeaders())
}

// Inspect implements exchange.Carrier.
func (ss *Session) Inspect() exchange.Facts {
	header := &ss.fast.Request.Header
	if proto := header.Protocol(); string(proto) != "HTTP/1.1" && string(proto) != "HTTP/1.0" {
		return exchange.Facts{Code: http.StatusHTTPVersionNotSupported, Refusal: "505 HTTP Version Not Supported"}
	}
	facts := inspect(header.RawHeaders())
	if facts.malformed != "" {
		return exchange.Facts{Code: http.StatusBadRequest, Refusal: "400 Bad Request: " + facts.malformed}
	}
	return exchange.Facts{Impersonates: facts.impersonates, Foreign: facts.foreign}
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

// Slot implements exchange.Carrier: the requests of a connection come one after the other.
func (ss *Session) Slot() *any { return &ss.slot }

// Steal implements exchange.Carrier.
func (ss *Session) Steal() net.Conn {
	_ = ss.conn.SetDeadline(time.Time{}) // an error will come back from the first write
	return ss.conn
}
