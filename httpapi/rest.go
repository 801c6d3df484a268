package httpapi

import (
	"net"
	"syscall"
)

// readiness waits until there is something to read on a socket. It belongs to the
// goroutine that reads.
type readiness struct {
	raw    syscall.RawConn
	try    func(fd uintptr) bool // is look
	looked bool
}

// wait returns when there are bytes, or the end, or the read deadline has passed.
func (r *readiness) wait(c syscall.Conn) error {
	if r.raw == nil {
		raw, err := c.SyscallConn()
		if err != nil {
			return err
		}
		r.raw, r.try = raw, r.look
	}
	r.looked = false
	return r.raw.Read(r.try)
}

// look reports whether there is something, or there was nothing the last time: then
// the kernel has said meanwhile that there is.
func (r *readiness) look(fd uintptr) bool {
	if r.looked {
		return true
	}
	r.looked = true
	return peekAt(fd) != peekNothing
}

// errNothing is what a mute socket says. TLS goes on after it as after a deadline.
type errNothing struct{}

func (errNothing) Error() string   { return "httpapi: nothing was read" }
func (errNothing) Timeout() bool   { return true }
func (errNothing) Temporary() bool { return true }

var _ net.Error = errNothing{}

// Read implements net.Conn: a mute socket has nothing to read.
func (s *tcpSocket) Read(p []byte) (int, error) {
	if s.mute {
		return 0, errNothing{}
	}
	return s.TCPConn.Read(p)
}

// rest reads a little when it comes. What TLS holds already it gives at once. Else the
// goroutine waits outside TLS, where it keeps half the stack.
func (c *conn) rest(first []byte) (int, error) {
	s, ok := c.NetConn().(*tcpSocket)
	if !ok {
		return c.Read(first)
	}
	s.mute = true
	n, err := c.Conn.Read(first)
	s.mute = false
	if err != (errNothing{}) {
		return n, err
	}
	if err := s.readiness.wait(s.TCPConn); err != nil {
		return 0, err
	}
	return c.Read(first)
}
