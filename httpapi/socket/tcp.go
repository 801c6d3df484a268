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

// WriteTimeout limits how long it takes to write one response, or one batch of a stream.
const WriteTimeout = time.Minute

// Waiter is notified when a write has to wait for the client, and when it continues.
type Waiter interface {
	Waits()
	Resumed()
}

// TCP is the TCP connection below TLS. It measures how long writes wait for the client. It is a [Writer]: a write of
// Send gets its deadline when it has to wait. Setting a deadline costs more than all else in a write except the system
// call.
type TCP struct {
	*net.TCPConn

	waiter atomic.Pointer[Waiter] // of the current Send; nil: nothing is notified
	raw    syscall.RawConn
	late   atomic.Bool // a write gets its deadline when it has to wait: from WriterTo until Release
	// blocked is set while a write waits for the client. TLS itself may write from the goroutine that reads. While one
	// write is blocked, TLS blocks all others.
	blocked atomic.Bool

	// These belong to the goroutine that reads.
	noRead bool                  // Read fails with errNothing
	look   func(fd uintptr) bool // is readable
	looked bool                  // readable was called for the current wait

	waited atomic.Bool // a write had to wait and has set the write deadline

	// coming is a lower bound of the bytes that the current [Write] or Send has yet to write. The goroutine that
	// writes sets it. TLS may meanwhile write from the goroutine that reads.
	coming atomic.Int64

	spent atomic.Int64 // nanoseconds that writes have waited since the last TakeWaited
}

// NewTCP returns a TCP over c.
func NewTCP(c *net.TCPConn) *TCP {
	s := &TCP{TCPConn: c}
	s.look = s.readable
	s.raw, _ = c.SyscallConn() // fails only for a nil connection
	return s
}

// TakeWaited returns how long writes have waited for the client since the last call. The writing
// goroutine calls it.
func (t *TCP) TakeWaited() time.Duration {
	if t.spent.Load() == 0 {
		return 0
	}
	return time.Duration(t.spent.Swap(0))
}

// TakeWaited returns how long writes to c, or to the socket below it, have waited for the client since the last call.
// It returns 0 if that is not known. The writing goroutine calls it.
func TakeWaited(c net.Conn) time.Duration {
	if own, ok := c.(interface{ TakeWaited() time.Duration }); ok {
		return own.TakeWaited()
	}
	if s := TCPOf(c); s != nil {
		return s.TakeWaited()
	}
	return 0
}

// Writer writes to a connection and notifies a [Waiter] when it has to wait.
type Writer interface {
	// Send writes p to c. It notifies w when it has to wait, unless w is nil, and fails WriteTimeout later. more
	// means that the caller will send more to c or to its Group: p may be held back until it does, or until the
	// Group is flushed.
	Send(c net.Conn, p []byte, more bool, w *Waiter) error
	// Group returns the connection that c shares with other streams, nil if it shares none.
	Group() Group
	// Release ends the use of the Writer: from now on writes to c have the deadline of c.
	Release()
}

// Group is a connection that carries several streams. Each stream is a net.Conn.
type Group interface {
	// Flush sends the bytes that Send has held back, and notifies w if it has to wait. A goroutine that has
	// more to send must call Flush or Send before it writes to another Group.
	Flush(w *Waiter)
}

// TCPOf returns the TCP below c, nil if there is none.
func TCPOf(c net.Conn) *TCP {
	above, ok := c.(interface{ NetConn() net.Conn })
	if !ok {
		return nil
	}
	s, _ := above.NetConn().(*TCP)
	return s
}

// WriterTo returns the Writer to c, which is c or the socket below it; nil if neither is a Writer. Until Release, writes
// to c get their deadlines when they have to wait.
func WriterTo(c net.Conn) Writer {
	if own, ok := c.(interface{ Writer() Writer }); ok {
		return own.Writer()
	}
	s := TCPOf(c)
	if s == nil {
		return nil
	}
	if err := s.SetWriteDeadline(time.Time{}); err != nil {
		return nil
	}
	s.late.Store(true)
	return s
}

// Release implements Writer.
func (t *TCP) Release() { t.late.Store(false) }

// Group implements Writer: there is one stream.
func (t *TCP) Group() Group { return nil }

// Send implements Writer. t is below c. With more, it writes with MSG_MORE, like [Write] between records. The
// kernel holds back at most a packet, for at most a fifth of a second.
func (t *TCP) Send(c net.Conn, p []byte, more bool, w *Waiter) error {
	t.waiter.Store(w)
	defer t.waiter.Store(nil)
	if w != nil && t.blocked.Load() { // by another write: then TLS blocks this one too
		(*w).Waits()
		defer (*w).Resumed()
	}
	coming := len(p)
	if more {
		coming += recordSize // TLS makes the last record longer than p: add enough that more bytes seem to follow it
	}
	_, err := t.write(c, p, coming)
	if err == nil && t.waited.Swap(false) {
		err = t.SetWriteDeadline(time.Time{})
	}
	return err
}

// recordSize is the maximum of bytes in a TLS record.
const recordSize = 16 << 10

// Write writes p to c. If c is above a TCP, all TLS records except the last are written with MSG_MORE. So the kernel
// sends fewer packets and wakes the client less often (L2).
func Write(c net.Conn, p []byte) (int, error) {
	if s := TCPOf(c); s != nil {
		return s.write(c, p, len(p))
	}
	return c.Write(p)
}

// write writes p to c, as the first of the bytes that are coming. t is below c.
func (t *TCP) write(c net.Conn, p []byte, coming int) (int, error) {
	if coming > recordSize {
		t.coming.Store(int64(coming))
		defer t.coming.Store(0)
	}
	return c.Write(p)
}

// more counts a record of n bytes, including the bytes that TLS adds, and reports whether another record follows.
func (t *TCP) more(n int) bool {
	// n includes what TLS adds, so coming is never too large.
	return t.coming.Load() > 0 && t.coming.Add(-int64(min(n, recordSize))) > 0
}

// Write implements net.Conn.
func (t *TCP) Write(p []byte) (int, error) {
	w := writes.Get().(*write)
	w.socket, w.rest, w.more = t, p, t.more(len(p))
	err := t.raw.Write(w.try)
	if w.waits {
		t.blocked.Store(false)
		t.spent.Add(int64(time.Since(w.since)))
		if w.waiter != nil {
			w.waiter.Resumed()
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

// write is the state of one Write. It is pooled, because the function that the runtime calls back escapes.
type write struct {
	socket *TCP
	waiter Waiter // nil: nothing is notified
	rest   []byte
	more   bool // another record follows
	waits  bool
	since  time.Time // when the write began to wait
	err    error
	try    func(fd uintptr) bool // is attempt
}

var writes = sync.Pool{New: func() any {
	w := new(write)
	w.try = w.attempt
	return w
}}

// attempt writes as much as the kernel accepts. It returns false if it has to wait for the client.
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

// wait notifies the Waiter and sets the deadline, when the write first has to wait.
func (w *write) wait() {
	if !w.waits {
		w.waits, w.since = true, time.Now()
		w.socket.blocked.Store(true) // before waiter is loaded: a writer stores its Waiter before it loads blocked
		if waiter := w.socket.waiter.Load(); waiter != nil {
			w.waiter = *waiter
			w.waiter.Waits()
		}
	}
	if s := w.socket; s.late.Load() && !s.waited.Swap(true) {
		_ = s.SetWriteDeadline(time.Now().Add(WriteTimeout)) // closed: waiting fails too
	}
}

// errNothing is the error of a read while noRead is set. TLS treats it like a passed deadline and continues.
var errNothing = &net.OpError{Op: "read", Err: os.ErrDeadlineExceeded}

// Read implements net.Conn. While noRead is set, it fails with errNothing.
func (t *TCP) Read(p []byte) (int, error) {
	if t.noRead {
		return 0, errNothing
	}
	return t.TCPConn.Read(p)
}

// AwaitRead reads from c; t is below c. It returns bytes that TLS has buffered at once. Otherwise it waits
// for the socket here and not inside TLS, which would need twice the stack.
func (t *TCP) AwaitRead(c net.Conn, p []byte) (int, error) {
	t.noRead = true
	n, err := c.Read(p)
	t.noRead = false
	if err != errNothing {
		return n, err
	}
	t.looked = false
	if err := t.raw.Read(t.look); err != nil { // the read deadline has passed
		return 0, err
	}
	return c.Read(p)
}

// readable reports whether the socket can be read. The runtime calls it again only after the kernel has
// reported that it can, so the second call returns true.
func (t *TCP) readable(fd uintptr) bool {
	if t.looked {
		return true
	}
	t.looked = true
	return poll(fd)&^unix.POLLOUT != 0
}
