package socket

import (
	"errors"
	"net"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Alive reports whether c's peer has not closed the connection. It blocks for a few milliseconds at most.
// No other goroutine may read from c. Bytes that the peer has sent are discarded, because the end of the
// connection may follow them, for example a TLS close_notify.
func Alive(c net.Conn) bool {
	if raw, ok := rawConn(c); ok {
		switch peek(raw) {
		case peekGone:
			return false
		case peekNothing:
			return true
		}
	}
	return discard(c)
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

type peekResult int

const (
	peekNothing peekResult = iota
	peekData
	peekGone
)

// peek reports whether the kernel has received bytes or the end. It reads nothing.
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

// discard discards at most 4 KiB of the bytes that are readable now, and reports whether the connection
// is still open. A client that keeps sending does not block the caller.
func discard(c net.Conn) bool {
	if err := c.SetReadDeadline(time.Now().Add(time.Millisecond)); err != nil {
		return false
	}
	defer c.SetReadDeadline(time.Time{})
	var b [512]byte
	for range 8 {
		if _, err := c.Read(b[:]); err != nil {
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
