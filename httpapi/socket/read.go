package socket

import (
	"net"
)

// errNothing is what a mute socket says. TLS goes on after it as after a deadline.
type errNothing struct{}

func (errNothing) Error() string   { return "httpapi: nothing was read" }
func (errNothing) Timeout() bool   { return true }
func (errNothing) Temporary() bool { return true }

var _ net.Error = errNothing{}

// Read implements net.Conn: a mute socket has nothing to read.
func (s *TCP) Read(p []byte) (int, error) {
	if s.noRead {
		return 0, errNothing{}
	}
	return s.TCPConn.Read(p)
}

// ReadLate reads from c, which s is below, when there is something. What c holds already it
// gives at once. Else the goroutine waits here, outside TLS, where it keeps half the stack.
func (s *TCP) ReadLate(c net.Conn, p []byte) (int, error) {
	s.noRead = true
	n, err := c.Read(p)
	s.noRead = false
	if err != (errNothing{}) {
		return n, err
	}
	if err := s.readiness.wait(s.TCPConn); err != nil {
		return 0, err
	}
	return c.Read(p)
}
