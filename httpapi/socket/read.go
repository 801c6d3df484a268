package socket

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
func (s *TCP) Read(p []byte) (int, error) {
	if s.mute {
		return 0, errNothing{}
	}
	return s.TCPConn.Read(p)
}

// ReadLate reads from c, which s is below, when there is something. What c holds already it
// gives at once. Else the goroutine waits here, outside TLS, where it keeps half the stack.
func (s *TCP) ReadLate(c net.Conn, p []byte) (int, error) {
	s.mute = true
	n, err := c.Read(p)
	s.mute = false
	if err != (errNothing{}) {
		return n, err
	}
	if err := s.readiness.wait(s.TCPConn); err != nil {
		return 0, err
	}
	return c.Read(p)
}
