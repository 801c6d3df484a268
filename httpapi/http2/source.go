package http2

import (
	"bufio"
	"sync"
	"time"

	"github.com/larder-io/larder/httpapi/socket"
	"github.com/larder-io/larder/internal/invariants"
)

// frameReader is the source of frames. While it waits it has no buffer, and its goroutine a small stack.
type frameReader Conn

// readerSize is the size of a read: as much as TLS decrypts at a time.
const readerSize = 16 << 10

var readers = sync.Pool{New: func() any { return bufio.NewReaderSize(nil, readerSize) }}

func (f *frameReader) Read(p []byte) (int, error) {
	if f.in == nil {
		f.open()
	}
	return f.in.Read(p)
}

// wait waits for the first byte of the next frame, without a buffer. Before that it flushes queued control
// frames.
func (f *frameReader) wait() error {
	if f.in != nil && f.in.Buffered() > 0 {
		return nil
	}
	(*Conn)(f).flushControl()
	f.close()
	conn, ok := f.conn.(interface{ AwaitRead(p []byte) (int, error) })
	if !ok {
		return nil
	}
	for {
		n, err := conn.AwaitRead(f.first[:])
		if n > 0 {
			f.ahead = f.first[:]
			return nil
		}
		if err := f.afterReadError(err); err != nil {
			return err
		}
	}
}

// connReader is the source of the buffer.
type connReader Conn

func (r *connReader) Read(p []byte) (int, error) {
	c := (*frameReader)(r)
	n := copy(p, c.ahead)
	c.ahead = c.ahead[n:]
	if n == len(p) {
		return n, nil
	}
	for {
		more, err := c.conn.Read(p[n:]) // there is no frame of one byte
		if n += more; more > 0 {
			return n, nil // the next read repeats an error
		}
		if err := c.afterReadError(err); err != nil {
			return 0, err
		}
	}
}

// afterReadError returns the error that ends reading after err. If the deadline was extended meanwhile, it sets the new
// one and returns nil.
func (f *frameReader) afterReadError(err error) error {
	if err == nil || !socket.IsTimeout(err) {
		return err
	}
	now := time.Now()
	until := f.deadline()
	if !now.Before(until) {
		return errIdle
	}
	return f.conn.SetReadDeadline(until)
}

// deadline returns the time until which the client must send something.
func (f *frameReader) deadline() time.Time {
	f.mu.Lock()
	defer f.mu.Unlock()
	until := f.headerUntil
	switch {
	case !until.IsZero():
	case (*Conn)(f).busyLocked():
		until = time.Now().Add(f.s.config.IdleTimeout) // the next check
	case f.goingAway != goAwayNone:
		until = f.idleSince.Add(goAwayWait)
	default:
		until = f.idleSince.Add(f.s.config.IdleTimeout)
	}
	return until
}

// markIdleLocked makes the reader check its deadline, if the connection has no more work.
func (c *Conn) markIdleLocked() {
	if c.busyLocked() {
		return
	}
	c.idleSince = time.Now()
	if c.goingAway != goAwayNone {
		_ = c.conn.SetReadDeadline(c.idleSince.Add(goAwayWait)) // if conn is closed, the read fails
	}
}

// open takes a read buffer from the pool.
func (f *frameReader) open() {
	f.in = readers.Get().(*bufio.Reader)
	f.in.Reset((*connReader)(f))
}

// close returns the buffer to the pool.
func (f *frameReader) close() {
	if f.in == nil {
		return
	}
	if invariants.Enabled {
		invariants.OverwriteReader(f.in)
	}
	f.in.Reset(nil)
	readers.Put(f.in)
	f.in = nil
}
