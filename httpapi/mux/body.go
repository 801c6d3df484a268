package mux

import (
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"time"

	"golang.org/x/net/http2"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

// body is a request's body on its way from the connection. Received bytes wait here until the
// handler reads them; the client's window bounds how many.
type body struct {
	length int64 // as announced; -1 if it is not

	mu    sync.Mutex
	data  []byte        // guarded by mu: has come and was not read
	got   int64         // guarded by mu: bytes that have come
	left  int64         // guarded by mu: of the client's window
	held  int64         // guarded by mu: of data, what counts as unread
	ended bool          // guarded by mu: all has come
	err   error         // guarded by mu: nothing more comes
	whole bool          // guarded by mu: ReadBody waits for all of it
	drops bool          // guarded by mu: further bytes are dropped
	until time.Time     // guarded by mu: when reads end; zero: never
	wake  chan struct{} // guarded by mu: is closed when something has changed; nil if no reader waits
}

// mostUnread bounds the bytes of bodies that all connections of a server keep before
// handlers have asked for them.
const mostUnread = 256 << 20

// bodyStart is the most that is allocated for a body before any of it has come.
const bodyStart = 64 << 10

// take takes what has come of st's body, in size bytes of frames.
func (st *Stream) take(p []byte, size int64, end bool) error {
	b, s := st.body, st.c.s
	b.mu.Lock()
	broken := b.ended
	b.left -= size
	b.got += int64(len(p))
	over := b.length >= 0 && b.got > b.length || end && b.length >= 0 && b.got < b.length
	at := size - int64(len(p)) // what may come in its place at once
	full := false
	switch {
	case broken, over, b.drops, b.err != nil:
		at = size
	case b.whole:
		b.data, at = append(b.data, p...), size
	default:
		b.data = append(b.data, p...)
		b.held += int64(len(p))
		full = s.unread.Add(int64(len(p))) > mostUnread
	}
	b.ended = b.ended || end && !over
	exceeded := b.left < 0
	b.wakeLocked()
	b.mu.Unlock()
	switch {
	case exceeded:
		return http2.StreamError{StreamID: st.id, Code: http2.ErrCodeFlowControl}
	case broken:
		st.c.credit(nil, size)
		return http2.StreamError{StreamID: st.id, Code: http2.ErrCodeStreamClosed}
	case over:
		st.c.credit(nil, size)
		return http2.StreamError{StreamID: st.id, Code: http2.ErrCodeProtocol}
	case full:
		st.c.credit(nil, at)
		return http2.StreamError{StreamID: st.id, Code: http2.ErrCodeEnhanceYourCalm}
	}
	if end {
		st.hear()
	}
	st.c.credit(st, at)
	return nil
}

// hear notes that the request is whole.
func (st *Stream) hear() {
	st.c.mu.Lock()
	defer st.c.mu.Unlock()
	st.heard = true
}

// credit lets the client send n bytes more, on a stream if st is not nil.
func (c *Conn) credit(st *Stream, n int64) {
	if n == 0 {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.owed += n; c.owed >= c.s.connWindow()/2 {
		c.queueLocked(appendWindowUpdate(nil, 0, uint32(c.owed)))
		c.room += c.owed
		c.owed = 0
	}
	if st == nil || st.heard || st.over != nil || st.sent {
		return
	}
	if st.owed += n; st.owed >= streamWindow/4 {
		c.queueLocked(appendWindowUpdate(nil, st.id, uint32(st.owed)))
		st.body.grant(st.owed)
		st.owed = 0
	}
}

// grant notes that the client may send n bytes more.
func (b *body) grant(n int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.left += n
}

func (b *body) wakeLocked() {
	if b.wake != nil {
		close(b.wake)
		b.wake = nil
	}
}

// bound makes reads end at t. b may be nil.
func (b *body) bound(t time.Time) {
	if b == nil {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.until = t
	b.wakeLocked()
}

// drain drops what has come of the body and what still comes.
func (st *Stream) drain(why error) {
	b := st.body
	if b == nil {
		return
	}
	b.mu.Lock()
	if b.err == nil && why != nil {
		b.err = why
	}
	b.drops = true
	n := b.takeLocked(int64(len(b.data)))
	b.data = nil
	b.wakeLocked()
	b.mu.Unlock()
	st.c.s.unread.Add(-n)
	st.c.credit(st, n)
}

// takeLocked says that n bytes of what has come were read, and returns how many of them
// counted as unread.
func (b *body) takeLocked(n int64) int64 {
	n = min(n, b.held)
	b.held -= n
	return n
}

// settle drops the unread part of the body. over says that no handler will read it.
func (st *Stream) settle(over bool) {
	if over || st.body == nil {
		st.drain(nil)
	}
}

// Proceed tells a client that waits for it to send its body.
func (r *request) proceed() error {
	if !r.expects {
		return nil
	}
	r.expects = false
	_, err := r.write(appendHeaders(nil, r.id, appendStatus(nil, 100), false, initialFrame), nil, false)
	return err
}

// ReadBody implements exchange.Carrier.
func (r *request) ReadBody(deadline time.Time) ([]byte, error) {
	limit := r.c.s.config.MaxBodyBytes
	tooLarge := apierrors.NewRequestEntityTooLargeError(fmt.Sprintf("limit is %d", limit))
	b := r.body
	switch {
	case b == nil:
		return nil, nil
	case b.length > limit:
		return nil, tooLarge
	}
	if err := r.proceed(); err != nil {
		return nil, err
	}
	b.mu.Lock()
	b.whole = true
	n := b.takeLocked(int64(len(b.data)))
	if b.length > int64(len(b.data)) {
		b.data = append(make([]byte, 0, max(min(b.length, bodyStart), int64(len(b.data)))), b.data...)
	}
	b.mu.Unlock()
	r.c.s.unread.Add(-n)
	r.c.credit(r.Stream, n)
	r.c.kick()
	b.bound(deadline)
	for {
		done, err := b.await(func() bool { return int64(len(b.data)) > limit })
		b.mu.Lock()
		data := b.data
		b.mu.Unlock()
		switch {
		case int64(len(data)) > limit:
			return data[:limit], tooLarge
		case err != nil:
			return data, err
		case done:
			return data, nil
		}
	}
}

// await waits until all has come or ready, which is called with the lock held, says that
// there is enough, and reports whether all has come.
func (b *body) await(ready func() bool) (ended bool, err error) {
	var timer *time.Timer
	for {
		b.mu.Lock()
		if ready() || b.ended || b.err != nil {
			defer b.mu.Unlock()
			return b.ended, b.err
		}
		if b.wake == nil {
			b.wake = make(chan struct{})
		}
		wake, until := b.wake, b.until
		b.mu.Unlock()
		if until.IsZero() {
			<-wake
			continue
		}
		if timer == nil {
			timer = time.NewTimer(time.Until(until))
			defer timer.Stop()
		} else {
			timer.Reset(time.Until(until))
		}
		select {
		case <-wake:
		case <-timer.C:
			return false, os.ErrDeadlineExceeded
		}
	}
}

// read reads what has come, as it comes.
func (st *Stream) read(p []byte) (int, error) {
	b := st.body
	ended, err := b.await(func() bool { return len(b.data) > 0 })
	b.mu.Lock()
	n := copy(p, b.data)
	b.data = b.data[n:]
	counted := b.takeLocked(int64(n))
	b.mu.Unlock()
	if n > 0 {
		st.c.s.unread.Add(-counted)
		st.c.credit(st, int64(n))
		st.c.kick()
		return n, nil
	}
	if err == nil && ended {
		err = io.EOF
	}
	if errors.Is(err, errReset) || errors.Is(err, errClosed) {
		err = io.ErrUnexpectedEOF
	}
	return 0, err
}
