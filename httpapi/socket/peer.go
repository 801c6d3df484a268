package socket

import (
	"errors"
	"net"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Alive reports whether c's peer is still there, hardly blocking. Nobody else reads
// from c: what the peer sent is thrown away, to see the end behind a TLS farewell.
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

// discard discards a little of what is readable at once and reports whether the
// connection is still open. A client that keeps sending does not block the caller.
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

// Queued returns how many bytes the kernel holds for the peer that it has not
// acknowledged: 0 if there is no telling.
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

// IsTimeout reports whether err says that a deadline has passed. Errors of connections within
// the process do, and are no net.Error.
func IsTimeout(err error) bool {
	var timeout interface{ Timeout() bool }
	return errors.As(err, &timeout) && timeout.Timeout()
}
