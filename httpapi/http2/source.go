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

func (s *frameReader) Read(p []byte) (int, error) {
	if s.in == nil {
		s.open()
	}
	return s.in.Read(p)
}

// wait waits for the first byte of the next frame, without a buffer. Before that it flushes queued control
// frames.
func (c *frameReader) wait() error {
	if c.in != nil && c.in.Buffered() > 0 {
		return nil
	}
	(*Conn)(c).flushControl()
	c.close()
	late, ok := c.conn.(interface{ AwaitRead(p []byte) (int, error) })
	if !ok {
		return nil
	}
	for {
		n, err := late.AwaitRead(c.first[:])
		if n > 0 {
			c.ahead = c.first[:]
			return nil
		}
		if err := c.afterReadError(err); err != nil {
			return err
		}
	}
}

// connReader is the source of the buffer.
type connReader Conn

func (w *connReader) Read(p []byte) (int, error) {
	c := (*frameReader)(w)
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

// afterReadError returns the error with which reading ends after err. It returns nil, and sets a later
// deadline, if the client now has more time.
func (c *frameReader) afterReadError(err error) error {
	if err == nil || !socket.IsTimeout(err) {
		return err
	}
	now := time.Now()
	until := c.deadline()
	if !now.Before(until) {
		return errIdle
	}
	return c.conn.SetReadDeadline(until)
}

// deadline returns the time until which the client must send something.
func (c *frameReader) deadline() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	until := c.headerUntil
	switch {
	case !until.IsZero():
	case (*Conn)(c).busyLocked():
		until = time.Now().Add(c.s.config.IdleTimeout) // the next check
	case c.goingAway != goAwayNone:
		until = c.idleSince.Add(goAwayWait)
	default:
		until = c.idleSince.Add(c.s.config.IdleTimeout)
	}
	return until
}

// noteIdleLocked makes the reader check its deadline, if the connection has no more work.
func (c *Conn) noteIdleLocked() {
	if c.busyLocked() {
		return
	}
	c.idleSince = time.Now()
	if c.goingAway != goAwayNone {
		_ = c.conn.SetReadDeadline(c.idleSince.Add(goAwayWait)) // closed: the reader sees that
	}
}

// open takes a read buffer from the pool.
func (c *frameReader) open() {
	c.in = readers.Get().(*bufio.Reader)
	c.in.Reset((*connReader)(c))
}

// close returns the buffer to the pool.
func (c *frameReader) close() {
	if c.in == nil {
		return
	}
	if invariants.Enabled {
		invariants.OverwriteReader(c.in)
	}
	c.in.Reset(nil)
	readers.Put(c.in)
	c.in = nil
}
