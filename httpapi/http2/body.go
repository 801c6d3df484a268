package http2

import (
	"errors"
	"io"
	"os"
	"time"

	"golang.org/x/net/http2"

	"github.com/larder-io/larder/httpapi/exchange"
)

// body is the unread part of a request's body that has arrived. Conn.mu guards all fields except length and expects.
//
// Invariant: got <= the bytes that the client may send: the window of the stream, grants, and the bytes
// read since.
type body struct {
	length  int64 // as announced; -1 if it was not
	expects bool  // the client waits for 100 Continue; belongs to the goroutine that reads the body

	data       []byte // arrived and not read
	got        int64  // bytes that have arrived
	left       int64  // bytes that the client may send
	unreturned int64  // bytes that were read, but not yet returned by a WINDOW_UPDATE
	ended      bool   // all of it has arrived
	err        error  // after an error nothing is read, and further bytes are discarded

	// ReadBody collects the whole body; the handler uses data until the exchange ends.
	whole   bool
	wants   int64 // bytes beyond the window of the stream that ReadBody waits for
	granted int64 // bytes granted by memoryUsage

	until time.Time     // when reads end; zero: never
	wake  chan struct{} // closed when something has changed; nil if no reader waits
}

// data handles a DATA frame. Padding counts towards windows.
func (c *Conn) data(f *http2.DataFrame) error {
	p, size, end := f.Data(), int64(f.Header().Length), f.StreamEnded()
	if len(p) == 0 && !end {
		if err := c.checkFlood(); err != nil {
			return err
		}
	}
	c.mu.Lock()
	defer c.unlock()
	st := c.streams[f.StreamID]
	if st == nil {
		if err := c.unknownStreamLocked(f.StreamID); err != nil {
			return err
		}
	}
	if !c.memory.receive(size) {
		return http2.ConnectionError(http2.ErrCodeFlowControl)
	}
	kept := int64(0)
	defer func() { c.freeLocked(size - kept) }()
	switch {
	case st == nil && f.StreamID > c.lastAllowed:
		return nil
	case st == nil:
		_ = c.framer.WriteRSTStream(f.StreamID, http2.ErrCodeStreamClosed)
		return c.checkFlood()
	case st.body == nil || st.body.ended:
		return http2.StreamError{StreamID: st.id, Code: http2.ErrCodeStreamClosed}
	}
	b := st.body
	if b.left -= size; b.left < 0 {
		return http2.StreamError{StreamID: st.id, Code: http2.ErrCodeFlowControl}
	}
	if b.got += int64(len(p)); !b.fits(end) {
		return http2.StreamError{StreamID: st.id, Code: http2.ErrCodeProtocol}
	}
	if b.err == nil {
		b.data = append(b.data, p...)
		if kept = int64(len(p)); !b.whole {
			c.memory.pooled += kept
		}
	}
	st.consumedLocked(size - int64(len(p)))
	b.ended = end
	st.requestGrantLocked()
	b.wakeLocked()
	return nil
}

// fits reports whether the bytes so far agree with the announced length. end means that they are the last.
func (b *body) fits(end bool) bool {
	return b.length < 0 || b.got <= b.length && (!end || b.got == b.length)
}

// freeLocked returns n bytes of the connection's window to the client.
func (c *Conn) freeLocked(n int64) {
	if more := c.memory.free(n); more > 0 {
		_ = c.framer.WriteWindowUpdate(0, uint32(more))
	}
}

// consumedLocked lets the client send n bytes more on the stream, if it may have more to send.
func (st *stream) consumedLocked(n int64) {
	b := st.body
	if b.ended || b.err != nil {
		return
	}
	if b.unreturned += n; b.unreturned >= st.c.memory.maxUnreturned/4 || b.unreturned > 0 && b.left == 0 {
		n, b.unreturned = b.unreturned, 0
		st.increaseLocked(n)
	}
}

// requestGrantLocked requests a grant if the body may be larger than the window of its stream. A body of unknown
// length requests it once half of the window has arrived.
func (st *stream) requestGrantLocked() {
	b, m := st.body, &st.c.memory
	if !b.whole || b.granted > 0 || b.wants > 0 || b.ended || b.err != nil {
		return
	}
	need := b.length
	if need < 0 && b.got >= m.maxUnreturned/2 {
		need = st.c.s.config.MaxBodyBytes + 1
	}
	if b.wants = max(0, need-m.maxUnreturned); b.wants > 0 {
		m.waiting = append(m.waiting, st)
		m.grant()
	}
}

// increaseLocked lets the client send n bytes more on the stream.
func (st *stream) increaseLocked(n int64) {
	st.body.left += n
	_ = st.c.framer.WriteWindowUpdate(st.id, uint32(n))
}

func (b *body) wakeLocked() {
	if b.wake != nil {
		close(b.wake)
		b.wake = nil
	}
}

// discardLocked makes reads fail with err, and discards the bytes of the body that have arrived or still
// arrive. Bytes that ReadBody has collected stay until its handler has ended (settled).
func (st *stream) discardLocked(err error, settled bool) {
	b, c := st.body, st.c
	if b == nil {
		return
	}
	if b.err == nil {
		b.err = err
	}
	b.wants = 0
	b.wakeLocked()
	if b.whole && !settled {
		return
	}
	n := int64(len(b.data))
	if b.data = nil; !b.whole {
		c.memory.pooled -= n
	}
	c.freeLocked(n)
	c.memory.large += b.granted
	b.granted = 0
	c.memory.grant()
}

// SendContinue implements exchange.HijackedBody.
func (st *stream) SendContinue(io.Writer) error {
	if !st.body.expects {
		return nil
	}
	st.body.expects = false
	_, err := st.write(appendHeaders(nil, st.id, appendStatus(nil, 100), false), nil, false)
	return err
}

func (r *request) ReadBody(deadline time.Time) ([]byte, error) {
	limit := r.c.s.config.MaxBodyBytes
	b, c := r.body, r.c
	switch {
	case b == nil:
		return nil, nil
	case b.length > limit:
		return nil, exchange.TooLarge(limit)
	}
	if err := r.SendContinue(nil); err != nil {
		return nil, err
	}
	c.mu.Lock()
	if !b.whole {
		b.whole = true
		c.memory.pooled -= int64(len(b.data))
	}
	b.until = deadline
	r.requestGrantLocked()
	data, _, err := r.awaitLocked(func() bool { return int64(len(b.data)) > limit })
	c.unlock()
	if int64(len(data)) > limit {
		return data[:limit], exchange.TooLarge(limit)
	}
	return data, err
}

// awaitLocked waits until the body has ended, ready returns true, or no more can arrive, and unlocks c.mu while it
// waits. It returns the bytes that have arrived and are kept, and whether the body has ended.
func (st *stream) awaitLocked(ready func() bool) (data []byte, ended bool, err error) {
	b, c := st.body, st.c
	for !ready() && !b.ended && b.err == nil {
		if b.wake == nil {
			b.wake = make(chan struct{})
		}
		wake, until := b.wake, b.until
		c.unlock()
		c.flushControl()
		var late <-chan time.Time // nil: never
		if !until.IsZero() {
			late = time.After(time.Until(until))
		}
		select {
		case <-wake:
			c.mu.Lock()
		case <-late:
			c.mu.Lock()
			return b.data, false, os.ErrDeadlineExceeded
		}
	}
	return b.data, b.ended, b.err
}

// read reads the bytes that have arrived.
func (st *stream) read(p []byte) (int, error) {
	b, c := st.body, st.c
	c.mu.Lock()
	data, ended, err := st.awaitLocked(func() bool { return len(b.data) > 0 })
	n := copy(p, data)
	if b.data = b.data[n:]; len(b.data) == 0 {
		b.data = nil
	}
	if !b.whole {
		c.memory.pooled -= int64(n)
	}
	c.freeLocked(int64(n))
	st.consumedLocked(int64(n))
	c.unlock()
	c.flushControl()
	switch {
	case n > 0:
		return n, nil
	case err == nil && ended:
		return 0, io.EOF
	case errors.Is(err, errReset), errors.Is(err, errClosed):
		return 0, io.ErrUnexpectedEOF
	}
	return 0, err
}
