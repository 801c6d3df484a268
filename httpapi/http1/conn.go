package http1

import (
	"crypto/tls"
	"maps"
	"net"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/larder-io/larder/httpapi/socket"
)

// listener puts TLS on accepted connections and knows those that are open, so
// that shutdown can close what does not end by itself.
type listener struct {
	net.Listener
	config      *tls.Config
	caps        connCaps
	counts      *connCounts
	userTimeout time.Duration // Config.UserTimeout
	close       func() error

	mu       sync.Mutex
	conns    map[*conn]struct{}   // guarded by mu: those that are open
	peers    map[netip.Prefix]int // guarded by mu: how many come from where
	shut     bool                 // guarded by mu
	reported time.Time            // guarded by mu: when it was last logged that connections are refused
}

// Protocols are the versions of HTTP that clients are offered, as TLS names them.
func Protocols(http2 bool) []string {
	if http2 {
		return []string{protoHTTP2, protoHTTP1}
	}
	return []string{protoHTTP1}
}

const (
	protoHTTP1 = "http/1.1"
	protoHTTP2 = "h2"
)

// newListener returns a listener that speaks TLS as config says and offers the protocols to
// clients. A client cannot be led to speak a protocol that is not offered.
func newListener(l net.Listener, config *tls.Config, protocols []string, caps connCaps, counts *connCounts) *listener {
	config = config.Clone()
	config.NextProtos = protocols
	if config.MinVersion == 0 {
		config.MinVersion = tls.VersionTLS12
	}
	config.DynamicRecordSizingDisabled = true // bodies are large and known beforehand
	return &listener{
		Listener: l,
		config:   config,
		caps:     caps,
		counts:   counts,
		close:    sync.OnceValue(func() error { return l.Close() }),
		conns:    make(map[*conn]struct{}),
		peers:    make(map[netip.Prefix]int),
	}
}

// Close ends accepting. It may be called more than once.
func (l *listener) Close() error { return l.close() }

// Accept implements net.Listener. It closes connections beyond the bounds at once: before the
// handshake there is no way to tell the client why.
func (l *listener) Accept() (net.Conn, error) {
	for {
		raw, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		if c := l.track(raw); c != nil {
			l.setSocketOptions(raw)
			return c, nil
		}
		raw.Close()
		l.report(peerOf(raw.RemoteAddr()))
	}
}

func (l *listener) track(raw net.Conn) *conn {
	peer := peerOf(raw.RemoteAddr())
	if tcp, ok := raw.(*net.TCPConn); ok {
		raw = socket.NewTCP(tcp)
	}
	c := &conn{Conn: tls.Server(raw, l.config), from: l, peer: peer}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.shut {
		return nil
	}
	if which, reached := l.reachedLocked(peer); reached {
		l.counts.refused[which].Add(1)
		return nil
	}
	l.conns[c] = struct{}{}
	l.peers[peer]++
	l.counts.open.Add(1)
	return c
}

func (l *listener) forget(c *conn) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if _, open := l.conns[c]; !open {
		return
	}
	delete(l.conns, c)
	if l.peers[c.peer]--; l.peers[c.peer] == 0 {
		delete(l.peers, c.peer)
	}
	l.counts.open.Add(-1)
}

// list returns the open connections.
func (l *listener) list() []*conn {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Collect(maps.Keys(l.conns))
}

// closeAll closes every connection, even if a request is under way on it.
func (l *listener) closeAll() {
	l.mu.Lock()
	l.shut = true
	l.mu.Unlock()
	for _, c := range l.list() {
		c.NetConn().Close()
	}
}

// setSocketOptions makes the kernel give up on peers that vanished.
func (l *listener) setSocketOptions(c net.Conn) {
	t, ok := c.(*net.TCPConn)
	if !ok {
		return
	}
	_ = t.SetKeepAliveConfig(net.KeepAliveConfig{Enable: true, Idle: keepalivePeriod, Interval: keepalivePeriod, Count: 3})
	_ = socket.SetUserTimeout(t, l.userTimeout)
}

// conn is a TLS connection. Its handshake, which Handshake or the first Read begins, must be
// over in time.
type conn struct {
	*tls.Conn
	from   *listener
	peer   netip.Prefix // where it comes from
	shaken atomic.Bool
}

// Handshake completes the handshake within handshakeTimeout.
func (c *conn) Handshake() error {
	if c.shaken.Load() {
		return nil
	}
	if err := c.SetDeadline(time.Now().Add(handshakeTimeout)); err != nil {
		return err
	}
	if err := c.Conn.Handshake(); err != nil {
		return err
	}
	c.shaken.Store(true)
	return c.SetDeadline(time.Time{})
}

// Read reads decrypted bytes.
func (c *conn) Read(p []byte) (int, error) {
	if !c.shaken.Load() {
		if err := c.Handshake(); err != nil {
			return 0, err
		}
	}
	return c.Conn.Read(p)
}

// http2 reports whether the client has chosen HTTP/2.
func (c *conn) http2() bool { return c.ConnectionState().NegotiatedProtocol == protoHTTP2 }

// Close ends the connection.
func (c *conn) Close() error {
	c.from.forget(c)
	return c.Conn.Close()
}

// Rest waits for the next bytes and reads a few of them. It returns bytes that TLS already
// holds at once. Else the goroutine waits outside TLS, where its stack is half as large.
func (c *conn) Rest(first []byte) (int, error) {
	s, ok := c.NetConn().(*socket.TCP)
	if !ok {
		return c.Read(first)
	}
	return s.ReadLate(c.Conn, first)
}
