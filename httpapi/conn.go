package httpapi

import (
	"crypto/tls"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// listener puts TLS on accepted connections and knows those that are open, so
// that shutdown can close what does not end by itself.
type listener struct {
	net.Listener
	config   *tls.Config
	caps     connCaps
	counts   *connCounts
	patience time.Duration // Config.UserTimeout
	close    func() error

	mu       sync.Mutex
	open     int                      // guarded by mu
	peers    map[netip.Prefix]*origin // guarded by mu: open connections by where they come from
	origins  origins                  // guarded by mu: those of peers that are not searched
	searched []*origin                // guarded by mu: that were in origins, the longest ago first
	shut     bool                     // guarded by mu
	reported time.Time                // guarded by mu: when it was last logged that connections are refused
}

// newListener speaks TLS as config says, HTTP/1.1 only: what is not offered here
// nobody can be led to speak.
func newListener(l net.Listener, config *tls.Config, caps connCaps, counts *connCounts) *listener {
	config = config.Clone()
	config.NextProtos = []string{"http/1.1"}
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
		peers:    make(map[netip.Prefix]*origin),
	}
}

// Close ends accepting. It may be called more than once.
func (l *listener) Close() error { return l.close() }

// Accept implements net.Listener. Connections beyond what there may be are closed at once:
// before the handshake there is no way to say why.
func (l *listener) Accept() (net.Conn, error) {
	for {
		raw, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		if c := l.admit(raw); c != nil {
			l.setSocketOptions(raw)
			return c, nil
		}
		raw.Close()
		l.report(peerOf(raw.RemoteAddr()))
	}
}

func (l *listener) admit(raw net.Conn) *conn {
	peer := peerOf(raw.RemoteAddr())
	if tcp, ok := raw.(*net.TCPConn); ok {
		raw = &tcpSocket{TCPConn: tcp}
	}
	c := &conn{Conn: tls.Server(raw, l.config), from: l}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.shut || !l.makeRoomLocked(peer, time.Now()) {
		return nil
	}
	l.joinLocked(c, peer)
	l.open++
	l.counts.open.Add(1)
	return c
}

func (l *listener) forget(c *conn) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.forgetLocked(c)
}

func (l *listener) forgetLocked(c *conn) {
	if !l.leaveLocked(c) {
		return
	}
	l.open--
	l.counts.open.Add(-1)
}

// list returns the open connections.
func (l *listener) list() []*conn {
	l.mu.Lock()
	defer l.mu.Unlock()
	list := make([]*conn, 0, l.open)
	for _, of := range l.peers {
		for c := range of.conns {
			list = append(list, c)
		}
	}
	return list
}

// closeAll closes every connection, with no regard for what happens on it.
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
	if raw, err := t.SyscallConn(); err == nil {
		_ = raw.Control(func(fd uintptr) {
			_ = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, int(l.patience.Milliseconds()))
		})
	}
}

// conn is a TLS connection whose handshake must be over in time, whoever first
// asks for it.
type conn struct {
	*tls.Conn
	from    *listener
	origin  *origin                 // guarded by from.mu: that it is part of
	session atomic.Pointer[session] // that serves it; nil before it is taken
	shaken  atomic.Bool
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

// Close ends the connection.
func (c *conn) Close() error {
	c.from.forget(c)
	return c.Conn.Close()
}

// alive reports whether c's peer is still there, hardly blocking. Nobody else reads
// from c: what the peer sent is thrown away, to see the end behind a TLS farewell.
func alive(c net.Conn) bool {
	if raw, ok := socket(c); ok {
		switch peek(raw) {
		case peekGone:
			return false
		case peekNothing:
			return true
		}
	}
	return readAway(c)
}

// socket returns the socket below c.
func socket(c net.Conn) (syscall.RawConn, bool) {
	for {
		switch t := c.(type) {
		case interface{ NetConn() net.Conn }:
			c = t.NetConn()
		case syscall.Conn:
			raw, err := t.SyscallConn()
			return raw, err == nil
		default:
			return nil, false
		}
	}
}

type peekResult int

const (
	peekNothing peekResult = iota
	peekData
	peekGone
)

// peek looks at what the kernel has received, leaving it there.
func peek(raw syscall.RawConn) peekResult {
	result := peekGone
	if err := raw.Control(func(fd uintptr) { result = peekAt(fd) }); err != nil {
		return peekGone
	}
	return result
}

func peekAt(fd uintptr) peekResult {
	var b [1]byte
	n, _, err := unix.Recvfrom(int(fd), b[:], unix.MSG_PEEK|unix.MSG_DONTWAIT)
	switch {
	case err == unix.EAGAIN || err == unix.EINTR:
		return peekNothing
	case err == nil && n > 0:
		return peekData
	}
	return peekGone
}

// readAway discards a little of what is readable at once and reports whether the
// connection is still open. A client that keeps sending is there, and keeps nobody.
func readAway(c net.Conn) bool {
	if err := c.SetReadDeadline(time.Now().Add(time.Millisecond)); err != nil {
		return false
	}
	defer c.SetReadDeadline(time.Time{})
	var b [512]byte
	for range 8 {
		if _, err := c.Read(b[:]); err != nil {
			timeout, ok := err.(net.Error)
			return ok && timeout.Timeout()
		}
	}
	return true
}
