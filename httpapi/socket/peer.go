package socket

import (
	"errors"
	"net"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// MaxEarly is how many bytes Alive reads ahead of the connection's owner.
const MaxEarly = 4 << 10

// Alive reports whether c's peer has not closed the connection. It blocks for a few milliseconds at most.
// No other goroutine may read from c. Alive reads bytes that the peer has sent, because the end of the
// connection may follow them, for example a TLS close_notify. It appends them to early. With MaxEarly bytes
// there it reads no more, and notices only that the socket is closed.
func Alive(c net.Conn, early *[]byte) bool {
	switch events, err := eventsOf(c); {
	case err != nil || hasEnded(events):
		return false
	case events == unix.POLLIN|unix.POLLOUT:
		return readEarly(c, early)
	default: // there is nothing to read, or the peer reads nothing and TLS might have to write
		return true
	}
}

// Closed reports whether c's peer has closed its socket, and c is a socket or above one. It does not read.
func Closed(c net.Conn) bool {
	events, err := eventsOf(c)
	return err == nil && hasEnded(events)
}

// hasEnded reports whether events has others than those of an open socket.
func hasEnded(events int16) bool { return events&^(unix.POLLIN|unix.POLLOUT) != 0 }

// eventsOf returns the events of the socket below c. Without one, c may be readable.
func eventsOf(c net.Conn) (events int16, err error) {
	raw, ok := rawConn(c)
	if !ok {
		return unix.POLLIN | unix.POLLOUT, nil
	}
	err = raw.Control(func(fd uintptr) { events = poll(fd) })
	return events, err
}

// rawConn returns the socket below c.
func rawConn(c net.Conn) (syscall.RawConn, bool) {
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

// poll returns the events of a socket: POLLIN for bytes that can be read, POLLOUT if bytes can be written, and
// others for its end, even if bytes come before it.
func poll(fd uintptr) int16 {
	look := [1]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN | unix.POLLOUT | peerClosed}}
	if _, err := unix.Poll(look[:], 0); err != nil {
		return 0 // interrupted
	}
	return look[0].Revents
}

// readEarly appends bytes that are readable now to early, which then has MaxEarly at most, and reports
// whether the connection is still open.
func readEarly(c net.Conn, early *[]byte) bool {
	if err := c.SetReadDeadline(time.Now().Add(time.Millisecond)); err != nil {
		return false
	}
	defer c.SetReadDeadline(time.Time{})
	var b [512]byte
	for len(*early) < MaxEarly {
		n, err := c.Read(b[:min(len(b), MaxEarly-len(*early))])
		*early = append(*early, b[:n]...)
		if err != nil {
			return IsTimeout(err)
		}
	}
	return true
}

// Queued returns how many written bytes the peer has not acknowledged, 0 if that is not known.
func Queued(c net.Conn) int {
	raw, ok := rawConn(c)
	if !ok {
		return 0
	}
	bytes := 0
	_ = raw.Control(func(fd uintptr) { bytes, _ = unix.IoctlGetInt(int(fd), unix.TIOCOUTQ) }) // closed: 0
	return bytes
}

// CloseSocket closes the socket below TLS, which ends all reads and writes of c.
func CloseSocket(c net.Conn) {
	if secure, ok := c.(interface{ NetConn() net.Conn }); ok {
		secure.NetConn().Close()
		return
	}
	c.Close()
}

// IsTimeout reports whether err means that a deadline has passed. Timeout errors of in-memory connections
// do not implement net.Error.
func IsTimeout(err error) bool {
	var timeout interface{ Timeout() bool }
	return errors.As(err, &timeout) && timeout.Timeout()
}
