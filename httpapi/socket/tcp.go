package socket

import (
	"net"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// WriteTimeout is how long one response, or one batch of a stream, may take to be written.
const WriteTimeout = time.Minute

// Waiter is notified when a write has to wait for the client, and when it continues.
type Waiter interface {
	Waits()
	GoesOn()
}

// TCP is the TCP connection below TLS. It knows how long writes have waited for the client, and
// can notify a [Waiter] of that. A write that notifies a Waiter has no deadline until it waits:
// setting one costs more than everything else that a write needs besides the system call.
type TCP struct {
	*net.TCPConn

	waiter atomic.Pointer[Waiter] // nil: nothing is notified
	raw    syscall.RawConn        // nil: writes are a TCPConn's, and none is known to wait

	// noRead and readiness belong to the goroutine that reads.
	noRead    bool
	readiness readiness

	// waited: the write deadline was set, by a write that had to wait. It belongs to
	// the goroutine that writes.
	waited bool

	// coming is at most how much of what [Write] was given is still to come. The goroutine that writes sets
	// it; TLS may write something of its own meanwhile, from the goroutine that reads.
	coming atomic.Int64

	spent atomic.Int64 // nanoseconds that writes have waited, since TakeWaited was called
}

// NewTCP returns one over c.
func NewTCP(c *net.TCPConn) *TCP {
	s := &TCP{TCPConn: c}
	if raw, err := c.SyscallConn(); err == nil {
		s.raw = raw
	}
	return s
}

// TakeWaited returns how long writes have waited for the client since the last call. The writing
// goroutine calls it.
func (s *TCP) TakeWaited() time.Duration {
	if s.spent.Load() == 0 {
		return 0
	}
	return time.Duration(s.spent.Swap(0))
}

// TakeWaited returns how long writes to c, or to the socket below it, have waited for the
// client since the last call, 0 if that is not known. The writing goroutine calls it.
func TakeWaited(c net.Conn) time.Duration {
	if own, ok := c.(interface{ TakeWaited() time.Duration }); ok {
		return own.TakeWaited()
	}
	if s := Below(c); s != nil {
		return s.TakeWaited()
	}
	return 0
}

// Writer writes to a connection whose writes notify a [Waiter] when they wait.
type Writer interface {
	// Send writes p to c, within the time that one write may take from when it first has to
	// wait.
	Send(c net.Conn, p []byte) error
	// SendMore is Send where more is about to be sent to c, or to its Group: p may stay until
	// that is sent, or until the Group is flushed.
	SendMore(c net.Conn, p []byte) error
	// Group returns the connection that c shares with other streams, nil if it shares none.
	Group() Group
	// StopNotifying undoes NotifyWaits.
	StopNotifying()
}

// Group is a connection that carries several streams, each of which is a net.Conn.
type Group interface {
	// Flush sends the bytes that SendMore has left, and notifies w when that has to wait. A
	// goroutine that has called SendMore calls Flush or Send before it writes to another Group.
	Flush(w *Waiter)
}

// Below returns the TCP below c, nil if there is none.
func Below(c net.Conn) *TCP {
	above, ok := c.(interface{ NetConn() net.Conn })
	if !ok {
		return nil
	}
	s, _ := above.NetConn().(*TCP)
	return s
}

// NotifyWaits makes c, or the socket below it, notify w when writes wait. It returns nil if
// neither can.
func NotifyWaits(c net.Conn, w *Waiter) Writer {
	if own, ok := c.(interface{ NotifyWaits(w *Waiter) Writer }); ok {
		return own.NotifyWaits(w)
	}
	s := Below(c)
	if s == nil || s.raw == nil {
		return nil
	}
	if err := s.SetWriteDeadline(time.Time{}); err != nil {
		return nil
	}
	s.waiter.Store(w)
	return s
}

// StopNotifying implements Writer.
func (s *TCP) StopNotifying() { s.waiter.Store(nil) }

// Group implements Writer: there is one stream.
func (s *TCP) Group() Group { return nil }

// SendMore implements Writer: the kernel is told that more is coming, as between the records of
// one [Write]. It keeps no more than a packet holds, and no longer than a fifth of a second.
func (s *TCP) SendMore(c net.Conn, p []byte) error {
	// Whatever TLS adds to the last record, something is still to come after it.
	s.coming.Store(int64(len(p) + recordSize))
	defer s.coming.Store(0)
	_, err := c.Write(p)
	return s.sent(err)
}

// Send implements Writer. s is below c.
func (s *TCP) Send(c net.Conn, p []byte) error {
	_, err := s.write(c, p)
	return s.sent(err)
}

// sent takes back the deadline that a write has set which had to wait, and ended with err.
func (s *TCP) sent(err error) error {
	if s.waited && err == nil {
		s.waited = false
		err = s.SetWriteDeadline(time.Time{})
	}
	return err
}

// recordSize is how much a TLS record holds at most.
const recordSize = 16 << 10

// Write writes p to c. Where there is a TCP below, its records leave together: the kernel is told
// of each that more is coming, and so makes packets and wakes the client only as often as there is
// enough for that (L2).
func Write(c net.Conn, p []byte) (int, error) {
	if s := Below(c); s != nil {
		return s.write(c, p)
	}
	return c.Write(p)
}

// write writes p to c, which is above s.
func (s *TCP) write(c net.Conn, p []byte) (int, error) {
	if len(p) > recordSize {
		s.coming.Store(int64(len(p)))
		defer s.coming.Store(0)
	}
	return c.Write(p)
}

// more notes that a record of n bytes, what TLS adds included, is being written, and reports
// whether another will follow.
func (s *TCP) more(n int) bool {
	// A record has no more of what is to come than that, so that coming never is too large.
	return s.coming.Load() > 0 && s.coming.Add(-int64(min(n, recordSize))) > 0
}

// Write implements net.Conn.
func (s *TCP) Write(p []byte) (int, error) {
	if s.raw == nil {
		return s.TCPConn.Write(p)
	}
	w := writes.Get().(*write)
	w.socket, w.rest, w.more = s, p, s.more(len(p))
	if waiter := s.waiter.Load(); waiter != nil {
		w.waiter = *waiter
	}
	err := s.raw.Write(w.try)
	if w.waits {
		s.spent.Add(int64(time.Since(w.since)))
		if w.waiter != nil {
			w.waiter.GoesOn()
		}
	}
	if err == nil {
		err = w.err
	}
	n := len(p) - len(w.rest)
	w.socket, w.waiter, w.rest, w.waits, w.err = nil, nil, nil, false, nil
	writes.Put(w)
	return n, err
}

// write is one Write under way. It is kept for the next, for what the runtime calls
// back escapes.
type write struct {
	socket *TCP
	waiter Waiter // nil: nothing is notified
	rest   []byte
	more   bool // is about to be written
	waits  bool
	since  time.Time // when it began to wait
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
		n, err := send(int(fd), w.rest, w.more)
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
		w.waits, w.since = true, time.Now()
		if w.waiter != nil {
			w.waiter.Waits()
		}
	}
	if s := w.socket; w.waiter != nil && !s.waited {
		s.waited = true
		_ = s.SetWriteDeadline(time.Now().Add(WriteTimeout)) // closed: waiting fails too
	}
}

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
