package httpapi

import (
	"net"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// tcpSocket is the TCP connection below TLS. It can tell a [pump] when a write has to
// wait for the client. Until it does, a write has no deadline: setting one costs more than
// all else that a write needs besides the system call.
type tcpSocket struct {
	*net.TCPConn

	pump atomic.Pointer[pump] // nil: writes are a TCPConn's
	raw  syscall.RawConn      // set before pump is

	// mute and readiness belong to whoever reads.
	mute      bool
	readiness readiness

	// waited: the write deadline was set, by a write that had to wait. It belongs to
	// whoever writes.
	waited bool
}

// gateOf makes the socket below c tell p when writes wait. It returns nil if there
// is none.
func gateOf(c net.Conn, p *pump) *tcpSocket {
	above, ok := c.(interface{ NetConn() net.Conn })
	if !ok {
		return nil
	}
	s, ok := above.NetConn().(*tcpSocket)
	if !ok {
		return nil
	}
	var err error
	if s.raw, err = s.SyscallConn(); err != nil {
		return nil
	}
	if err := s.SetWriteDeadline(time.Time{}); err != nil {
		return nil
	}
	s.pump.Store(p)
	return s
}

// open undoes gateOf. s may be nil.
func (s *tcpSocket) open() {
	if s != nil {
		s.pump.Store(nil)
	}
}

// send writes p to c, which s is below, within writeTimeout from when it first has to
// wait.
func (s *tcpSocket) send(c net.Conn, p []byte) error {
	_, err := c.Write(p)
	if s.waited && err == nil {
		s.waited = false
		err = s.SetWriteDeadline(time.Time{})
	}
	return err
}

// Write implements net.Conn.
func (s *tcpSocket) Write(p []byte) (int, error) {
	pump := s.pump.Load()
	if pump == nil {
		return s.TCPConn.Write(p)
	}
	w := writes.Get().(*write)
	w.socket, w.pump, w.rest = s, pump, p
	err := s.raw.Write(w.try)
	if w.waits {
		pump.goesOn()
	}
	if err == nil {
		err = w.err
	}
	n := len(p) - len(w.rest)
	w.socket, w.pump, w.rest, w.waits, w.err = nil, nil, nil, false, nil
	writes.Put(w)
	return n, err
}

// write is one Write under way. It is kept for the next, for what the runtime calls
// back escapes.
type write struct {
	socket *tcpSocket
	pump   *pump
	rest   []byte
	waits  bool
	err    error
	try    func(fd uintptr) bool // is attempt
}

var writes = sync.Pool{New: func() any {
	w := new(write)
	w.try = w.attempt
	return w
}}

// attempt writes what the kernel takes, and reports false if the client must read
// first.
func (w *write) attempt(fd uintptr) bool {
	for len(w.rest) > 0 {
		n, err := unix.Write(int(fd), w.rest)
		switch err {
		case nil:
			w.rest = w.rest[n:]
		case unix.EINTR:
		case unix.EAGAIN:
			w.wait()
			return false
		default:
			w.err = os.NewSyscallError("write", err)
			return true
		}
	}
	return true
}

// wait prepares for waiting.
func (w *write) wait() {
	if !w.waits {
		w.waits = true
		w.pump.waits()
	}
	if s := w.socket; !s.waited {
		s.waited = true
		_ = s.SetWriteDeadline(time.Now().Add(writeTimeout)) // closed: waiting fails too
	}
}
