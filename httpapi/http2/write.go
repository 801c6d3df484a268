package http2

import (
	"os"
	"sync"
	"time"

	"golang.org/x/net/http2"

	"github.com/larder-io/larder/httpapi/exchange"
	"github.com/larder-io/larder/httpapi/socket"
	"github.com/larder-io/larder/internal/invariants"
)

// lockWrites locks writeMu, and returns how long it waited. While it waits, waiter is notified, and the response of st
// counts towards the connection's memory unless st is nil.
func (c *Conn) lockWrites(waiter *socket.Waiter, st *stream) (spent time.Duration) {
	if !c.writeMu.TryLock() {
		if st != nil {
			c.mu.Lock()
			st.chargeLocked()
			c.unlock()
		}
		if waiter != nil {
			(*waiter).Waits()
			defer (*waiter).Resumed()
		}
		began := time.Now()
		c.writeMu.Lock()
		spent = time.Since(began)
	}
	c.waiter = waiter
	return spent
}

// unlockWrites unlocks writeMu. Before that it writes the unsent frames, and then the control frames that
// were queued meanwhile: no frame of a stream may follow its reset.
func (c *Conn) unlockWrites() {
	waiter := c.waiter
	for {
		for c.pending.Load() {
			if c.writeUnsent() != nil {
				break
			}
			c.mu.Lock()
			control := c.control
			c.control = nil
			c.pending.Store(false)
			c.mu.Unlock()
			if c.out(control) != nil {
				break
			}
			if c.tcp != nil {
				c.tcp.TakeWaited() // for bytes of no stream
			}
		}
		c.waiter = nil
		c.writeMu.Unlock()
		if !c.pending.Load() || !c.writeMu.TryLock() {
			return
		}
		c.waiter = waiter
	}
}

// maxControl limits the queued control frames. A client that causes more of them does not read.
const maxControl = 64 << 10

// controlWriter queues the control frames that Conn.framer writes.
type controlWriter Conn

// Write implements io.Writer. The caller holds c.mu, and must call flushControl after it has
// released that.
func (w *controlWriter) Write(frame []byte) (int, error) {
	c := (*Conn)(w)
	if len(c.control)+len(frame) > maxControl {
		c.broken()
		return len(frame), nil
	}
	c.control = append(c.control, frame...)
	c.pending.Store(true)
	return len(frame), nil
}

// flushControl starts writing the queued control frames and does not wait. The goroutine that holds writeMu
// writes them before it unlocks; if there is none, a new goroutine does.
func (c *Conn) flushControl() {
	if !c.pending.Load() || !c.writeMu.TryLock() {
		return // the goroutine that holds writeMu writes them
	}
	c.mu.Lock()
	over := c.endReason != nil
	if !over {
		c.running.Go(c.unlockWrites)
	}
	c.mu.Unlock()
	if over {
		c.writeMu.Unlock()
	}
}

// out writes p. The caller holds writeMu.
func (c *Conn) out(p []byte) (err error) {
	if c.tcp != nil {
		err = c.tcp.Send(c.conn, p, false, c.waiter)
	} else if err = c.conn.SetWriteDeadline(time.Now().Add(c.s.config.WriteTimeout)); err == nil {
		_, err = c.conn.Write(p)
	}
	if err != nil {
		c.broken()
	}
	return err
}

// maxUnsent limits the unsent bytes, so that one more frame fits into a burst.
const maxUnsent = burst - exchange.RecordSize

// writeUnsent writes the unsent frames. The caller holds writeMu.
func (c *Conn) writeUnsent() error {
	if c.unsent == nil {
		return nil
	}
	buffer := c.unsent
	c.unsent = nil
	return c.emit(buffer)
}

// emit writes the contents of buffer, and returns buffer to the pool. The caller holds writeMu.
func (c *Conn) emit(buffer *[]byte) error {
	err := c.out(*buffer)
	if invariants.Enabled {
		invariants.Overwrite(*buffer)
	}
	if cap(*buffer) <= 2*burst {
		buffers.Put(buffer)
	}
	return err
}

// Flush implements socket.Group.
func (c *Conn) Flush(w *socket.Waiter) {
	c.lockWrites(w, nil)
	defer c.unlockWrites()
	_ = c.writeUnsent() // an error has broken the connection, which ends its streams
	if c.tcp != nil {
		c.tcp.TakeWaited()
	}
}

// burst limits the bytes of a body, with the heads of its frames, that are written in one hold of writeMu.
const burst = 4 * exchange.RecordSize

// buffers has the buffers in which frames are assembled, one for each connection that is being written to.
var buffers = sync.Pool{New: func() any {
	b := make([]byte, 0, burst)
	return &b
}}

// write writes head, which has the frames of a header, and p as frames of the body. It returns how many
// bytes of p it has written.
func (st *stream) write(head, p []byte, end bool) (int, error) {
	until := st.until
	if until.IsZero() {
		until = time.Now().Add(st.c.s.config.WriteTimeout)
	}
	for written := 0; ; {
		n := 0
		if len(p) > 0 {
			var err error
			if n, err = st.reserve(min(len(p), burst-headSize*4-len(head)%burst), until, len(head) == 0); err != nil {
				return written, err
			}
		}
		if err := st.send(head, p[:n], end && n == len(p)); err != nil {
			return written, err
		}
		head, p, written = nil, p[n:], written+n
		if len(p) == 0 {
			return written, nil
		}
	}
}

// send writes head and p, which fit into the windows, while it holds writeMu.
func (st *stream) send(head, p []byte, end bool) error {
	c := st.c
	st.waited += c.lockWrites(st.waiter, st)
	defer c.unlockWrites()
	c.mu.Lock()
	st.refundLocked()
	err := st.endReason
	switch {
	case err != nil:
	case c.endReason != nil:
		err = c.endReason
	case st.sent:
		err = errEnded
	}
	if err != nil {
		c.window += int64(len(p))
		c.wakeLocked()
		c.unlock()
		return err
	}
	if end {
		c.ending++
		st.endedLocked()
	}
	c.unlock()
	st.written += int64(len(head) + len(p))
	buffer := c.unsent
	if c.unsent = nil; buffer == nil {
		buffer = buffers.Get().(*[]byte)
		*buffer = (*buffer)[:0]
	}
	*buffer = st.appendFrames(*buffer, head, p, end)
	if st.gather && len(*buffer) <= maxUnsent {
		c.unsent = buffer
		return nil
	}
	err = c.emit(buffer)
	if c.tcp != nil {
		st.waited += c.tcp.TakeWaited()
	}
	if end {
		c.mu.Lock()
		c.ending--
		c.markIdleLocked()
		c.mu.Unlock()
	}
	return err
}

// appendFrames appends head, which has frames already, and the frames of p. Each frame ends at the
// end of a TLS record.
func (st *stream) appendFrames(dst, head, p []byte, end bool) []byte {
	dst = append(dst, head...)
	if len(p) == 0 {
		if end && (len(head) == 0 || head[4]&byte(http2.FlagHeadersEndStream) == 0) {
			dst = appendHead(dst, 0, http2.FrameData, http2.FlagDataEndStream, st.id)
		}
		return dst
	}
	for len(p) > 0 {
		room := exchange.RecordSize - len(dst)%exchange.RecordSize - headSize
		if room < smallPiece {
			room += exchange.RecordSize
		}
		piece := p[:min(len(p), room, initialFrame)]
		p = p[len(piece):]
		var flags http2.Flags
		if end && len(p) == 0 {
			flags = http2.FlagDataEndStream
		}
		dst = append(appendHead(dst, len(piece), http2.FrameData, flags, st.id), piece...)
	}
	return dst
}

// smallPiece is the minimum size of a frame that fills the rest of a TLS record.
const smallPiece = 512

// reserve takes up to want bytes of the windows. If they are empty, it waits if wait is set.
func (st *stream) reserve(want int, until time.Time, wait bool) (int, error) {
	c := st.c
	c.mu.Lock()
	defer c.unlock()
	for waited := false; ; waited = true {
		n := min(int64(want), st.window, c.window)
		if st.endReason == nil && n > 0 {
			st.window -= n
			c.window -= n
		}
		if waited {
			c.wakeLocked() // let another writer use the rest of the window
		}
		switch {
		case st.endReason != nil:
			return 0, st.endReason
		case n > 0:
			return int(n), nil
		}
		if !wait {
			return 0, nil
		}
		if st.wake == nil {
			st.wake = make(chan struct{}, 1)
		}
		if !st.waits {
			st.waits = true
			c.waiting++
		}
		st.chargeLocked()
		c.unlock()
		c.Flush(st.waiter) // bytes of other streams must not wait for this stream
		err := st.await(until)
		c.mu.Lock()
		st.refundLocked()
		if err != nil {
			// Another goroutine may have woken this writer at the same moment. Then another writer must
			// get the room in the window.
			st.wakeLocked()
			<-st.wake
			c.wakeLocked()
			return 0, err
		}
	}
}

// await waits until the windows may have grown.
func (st *stream) await(until time.Time) error {
	if st.waiter != nil {
		(*st.waiter).Waits()
		defer (*st.waiter).Resumed()
	}
	began := time.Now()
	defer func() { st.waited += time.Since(began) }()
	timer := time.NewTimer(until.Sub(began))
	defer timer.Stop()
	select {
	case <-st.wake:
		return nil
	case <-timer.C:
		return os.ErrDeadlineExceeded
	}
}

// wakeLocked makes the writer that waits for a window check it again.
func (st *stream) wakeLocked() {
	if !st.waits {
		return
	}
	st.waits = false
	st.c.waiting--
	select {
	case st.wake <- struct{}{}:
	default:
	}
}

// wakeLocked wakes as many waiting writers as the window of the connection has room for. Otherwise a client could
// wake all of them with each byte that it allows.
func (c *Conn) wakeLocked() {
	if c.waiting == 0 {
		return
	}
	room := c.window
	for _, st := range c.streams {
		if room <= 0 {
			return
		}
		if st.waits && st.window > 0 {
			room -= st.window
			st.wakeLocked()
		}
	}
}
