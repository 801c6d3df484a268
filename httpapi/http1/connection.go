package http1

import (
	"crypto/tls"
	"errors"
	"io"
	"net"
	"net/netip"
	"sync/atomic"
	"time"

	"k8s.io/apiserver/pkg/endpoints/metrics"
	"k8s.io/klog/v2"

	"github.com/larder-io/larder/httpapi/http2"
	"github.com/larder-io/larder/httpapi/socket"
)

// connection is one open connection. A [Session] serves it or, if the client chooses HTTP/2, a
// [http2.Conn]. Its state says whether a request is being served.
type connection struct {
	conn    net.Conn // a *tlsConn, a *memoryConn, or a test's connection from Server.Session
	from    *Listener
	address netip.Prefix // of the client
	began   time.Time
	state   atomic.Uint32
	http2   atomic.Pointer[http2.Conn] // nil for HTTP/1.1, and before the protocol is known
	http1   atomic.Pointer[Session]    // that serves it; nil for HTTP/2, before the protocol is known, and once taken over
}

// The states of a connection.
const (
	stateNew uint32 = iota // no request has begun
	stateIdle
	stateActive
	stateClosed // closeIfIdle closed it
)

// serve serves c until it ends or a handler takes it over.
func (c *connection) serve() {
	secure, ok := c.conn.(*tlsConn)
	if ok {
		if err := secure.handshake(); err != nil {
			secure.refuseHandshake(err)
			c.conn.Close()
			return
		}
	}
	if !ok || secure.ConnectionState().NegotiatedProtocol != protoHTTP2 {
		c.session(nil).Serve()
		return
	}
	h := c.from.s.http2.NewConn(secure)
	c.http2.Store(h)
	if !c.begin() {
		c.conn.Close()
		return
	}
	if c.from.isClosing() { // Close may have examined c before http2 was set
		h.GoAway()
	}
	h.Serve()
}

// session returns a Session that serves c by HTTP/1.1. The requests begin with ahead, which was read from c.
func (c *connection) session(ahead []byte) *Session {
	ss := &Session{s: c.from.s, conn: c.conn, connection: c, size: headerStart, ahead: ahead}
	c.http1.Store(ss)
	return ss
}

// begin marks the beginning of a request. It returns false if the connection was closed.
func (c *connection) begin() bool {
	return c.state.CompareAndSwap(stateNew, stateActive) || c.state.CompareAndSwap(stateIdle, stateActive)
}

// retire makes begin fail if c waits for a request, and reports whether it did; the caller then
// closes the connection. An HTTP/2 client first gets time to read the GOAWAY, and a new connection gets
// time to send its first request.
func (c *connection) retire() bool {
	if h := c.http2.Load(); h != nil {
		return h.Retire()
	}
	return c.state.CompareAndSwap(stateIdle, stateClosed) ||
		time.Since(c.began) > newGrace && c.state.CompareAndSwap(stateNew, stateClosed)
}

// hasPending reports whether the server still has to respond on c: not if only HTTP/2 streams that handlers have taken
// over are left.
func (c *connection) hasPending() bool {
	h := c.http2.Load()
	return h == nil || h.HasPending()
}

// close closes c without waiting for the client: it sends TLS's close_notify only if no other
// bytes wait to be sent.
func (c *connection) close() {
	if secure, ok := c.conn.(*tlsConn); ok && socket.Queued(secure) > 0 {
		c.from.remove(c)
		secure.NetConn().Close()
		return
	}
	c.conn.Close()
}

// tlsConn is a connection from the network.
type tlsConn struct {
	*tls.Conn
	of *connection
}

// handshake completes the handshake within headerTimeout, as net/http does.
func (c *tlsConn) handshake() error {
	if err := c.SetDeadline(time.Now().Add(headerTimeout)); err != nil {
		return err
	}
	if err := c.Handshake(); err != nil {
		return err
	}
	return c.SetDeadline(time.Time{})
}

// Close ends the connection.
func (c *tlsConn) Close() error {
	c.of.from.remove(c.of)
	return c.Conn.Close()
}

// AwaitRead waits for the next bytes and reads a few of them. It returns bytes that TLS has already buffered at once.
// Otherwise it waits outside of TLS, where the goroutine's stack is half as large.
func (c *tlsConn) AwaitRead(first []byte) (int, error) {
	s, ok := c.NetConn().(*socket.TCP)
	if !ok {
		return c.Read(first)
	}
	return s.AwaitRead(c.Conn, first)
}

// handshakeVerbosity is the minimum verbosity at which failed handshakes are logged (apiserver
// pkg/server/secure_serving.go).
const handshakeVerbosity = 5

// plainRefusal is net/http's response to a client that speaks HTTP without TLS.
const plainRefusal = "HTTP/1.0 400 Bad Request\r\n\r\nClient sent an HTTP request to an HTTPS server.\n"

// refuseHandshake counts and logs a handshake that failed because of err. A client that speaks HTTP without TLS gets a
// response.
func (c *tlsConn) refuseHandshake(err error) {
	metrics.TLSHandshakeErrors.Inc()
	reason := err.Error()
	var header tls.RecordHeaderError
	if errors.As(err, &header) && header.Conn != nil && looksLikeHTTP(header.RecordHeader) {
		reason = "client sent an HTTP request to an HTTPS server"
		_, _ = io.WriteString(header.Conn, plainRefusal) // fails if the client has left
	}
	klog.V(handshakeVerbosity).Infof("http: TLS handshake error from %s: %s\n", c.RemoteAddr(), reason)
}

// looksLikeHTTP reports whether a record's header is the beginning of an HTTP request.
func looksLikeHTTP(header [5]byte) bool {
	switch string(header[:]) {
	case "GET /", "HEAD ", "POST ", "PUT /", "OPTIO":
		return true
	}
	return false
}

// memoryConn is the server's end of a connection from this process. Requests on it go through
// the same code as requests from the network, and carry the identity of the process.
type memoryConn struct {
	net.Conn
	of *connection
}

// RemoteAddr implements net.Conn. Audit records name it as the source of the request.
func (c *memoryConn) RemoteAddr() net.Addr { return &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)} }

// Close ends the connection.
func (c *memoryConn) Close() error {
	c.of.from.remove(c.of)
	return c.Conn.Close()
}

// Limits of lingeringClose.
const (
	lingerBytes = 64 << 20
	lingerTotal = 5 * time.Second
	lingerPause = 500 * time.Millisecond
)

// lingeringClose closes the writing side of a connection and reads the client's remaining bytes. The kernel resets a
// connection that is closed with unread bytes, and the client may lose the response.
func lingeringClose(c net.Conn) {
	if half, ok := c.(interface{ CloseWrite() error }); ok && half.CloseWrite() != nil {
		return
	}
	end := time.Now().Add(lingerTotal)
	var buffer [4 << 10]byte
	for n := 0; n < lingerBytes && time.Now().Before(end); {
		if err := c.SetReadDeadline(time.Now().Add(lingerPause)); err != nil {
			return
		}
		read, err := c.Read(buffer[:])
		if err != nil {
			return
		}
		n += read
	}
}
