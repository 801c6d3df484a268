package http2

import (
	"errors"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"time"

	"golang.org/x/net/http2"
	"k8s.io/klog/v2"

	"github.com/larder-io/larder/httpapi/exchange"
	"github.com/larder-io/larder/httpapi/socket"
	"github.com/larder-io/larder/internal/invariants"
)

// stream is one request and its response. For a handler of a streamed or hijacked response, it is the net.Conn of the
// bodies.
type stream struct {
	c    *Conn
	id   uint32
	body *body // nil if the request has none

	// These belong to the goroutine that writes the response.
	until   time.Time      // when writes end; zero: each of them has Config.WriteTimeout
	waiter  *socket.Waiter // of the current Send; may be nil
	waited  time.Duration  // how long writes have waited since TakeWaited was called
	gather  bool           // written bytes may be buffered until the next write or Conn.Flush
	written int64          // bytes of the response that were written, without the heads of frames
	owned   int64          // bytes that the response keeps in memory while it waits for the client

	header     int64         // guarded by c.mu: bytes that memoryUsage counts for the header
	charged    int64         // guarded by c.mu: bytes that memoryUsage counts for the response
	window     int64         // guarded by c.mu: bytes that may be sent
	endReason  error         // guarded by c.mu: why the stream has ended
	sent       bool          // guarded by c.mu: the response is whole
	waits      bool          // guarded by c.mu: a write waits for a window
	responding bool          // guarded by c.mu: c.responding counts the stream
	wake       chan struct{} // guarded by c.mu: signals that the window has grown; nil before the first wait
	callbacks  []func()      // guarded by c.mu: called when the client leaves
}

var (
	errReset = errors.New("httpapi: the client has reset the stream")
	errEnded = errors.New("httpapi: the response has ended")
)

// openStream opens a stream for a request.
func (c *Conn) openStream(id uint32, r *request, whole bool) error {
	if r.malformed && !r.large {
		r.release()
		return http2.StreamError{StreamID: id, Code: http2.ErrCodeProtocol}
	}
	config := &c.s.config
	if rand.Float64() < config.GoAwayChance || config.Leaving != nil && config.Leaving(c.began) {
		c.GoAway()
	}
	st := &stream{c: c, id: id, owned: exchange.ChunkSize, header: r.size(), responding: true}
	if !whole {
		st.body = &body{length: r.length, expects: r.expects, left: c.memory.maxUnreturned}
	}
	r.stream = st
	c.mu.Lock()
	defer c.unlock()
	most := c.s.config.MaxStreams
	switch {
	case c.endReason != nil:
		return c.endReason
	case len(c.streams) >= most, c.responding >= most, c.serving >= 2*most, !c.memory.addHeader(st.header):
		r.release()
		return http2.StreamError{StreamID: id, Code: http2.ErrCodeRefusedStream}
	}
	st.window = c.initial
	c.streams[id] = st
	if invariants.Enabled {
		c.memoryHolders[st] = struct{}{}
	}
	c.serving++
	c.responding++
	c.running.Go(func() { c.serve(r) })
	return nil
}

// serve serves a request.
func (c *Conn) serve(r *request) {
	st := r.stream
	defer func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.serving--
		st.endResponseLocked()
		c.markIdleLocked()
	}()
	r.serve()
}

// serve serves one request and recovers from its panic.
func (r *request) serve() {
	st := r.stream
	var x *exchange.Exchange
	defer func() {
		if p := recover(); p != nil {
			if !exchange.IsAbort(p) {
				klog.ErrorS(nil, "Stream panicked", "panic", p, "stack", exchange.Stack())
			}
			st.abort(http2.ErrCodeInternal)
			if x != nil {
				x.Close()
			}
			st.exchangeEnded()
			st.runCallbacks()
		}
	}()
	x = r.handle(time.Now())
	if take := x.Hijack; take != nil {
		x.Charge(st.written, st.TakeWaited())
		x.Close()
		st.exchangeEnded()
		t := r.hijacked()
		r.release()
		take(t)
		return
	}
	// The request must not stay in memory until a slow client has read the response. memoryUsage still counts the
	// header, because the exchange has copies of it.
	bodiless := string(r.Method()) == http.MethodHead
	st.discard()
	r.dropHeader()
	if x.Streamed { // another goroutine may already use the stream
		x.Charge(r.streamed, 0)
	} else {
		r.send(x, bodiless)
		x.Charge(st.written, st.TakeWaited())
	}
	x.Close()
	st.exchangeEnded()
	if !x.Streamed {
		st.runCallbacks()
	}
	r.release()
}

// discard discards the rest of the body of the request.
func (st *stream) discard() {
	st.c.mu.Lock()
	defer st.c.unlock()
	st.discardLocked(errEnded, true)
}

// exchangeEnded frees the memory of the header.
func (st *stream) exchangeEnded() {
	st.c.mu.Lock()
	defer st.c.unlock()
	st.c.memory.freeHeader(st.header)
	st.header = 0
}

// runCallbacks removes and calls the functions that OnEnd has registered.
func (st *stream) runCallbacks() {
	st.c.mu.Lock()
	gone := st.callbacks
	st.callbacks = nil
	st.c.mu.Unlock()
	for _, f := range gone {
		f()
	}
}

// clientLeft cancels the work for a stream because its client has left.
func (st *stream) clientLeft(why error) {
	c := st.c
	c.mu.Lock()
	if st.endReason == nil {
		st.endReason = why
	}
	c.dropLocked(st)
	st.wakeLocked()
	st.discardLocked(why, false)
	c.unlock()
	st.runCallbacks()
}

// dropLocked removes a stream that has ended.
func (c *Conn) dropLocked(st *stream) {
	if c.streams[st.id] == st {
		delete(c.streams, st.id)
		c.markIdleLocked()
	}
}

// abort resets the stream, unless its response is complete.
func (st *stream) abort(code http2.ErrCode) {
	c := st.c
	c.mu.Lock()
	ended := st.sent || st.endReason != nil
	if !ended {
		st.endReason = errEnded
		_ = c.framer.WriteRSTStream(st.id, code)
		c.dropLocked(st)
	}
	st.wakeLocked()
	st.discardLocked(errEnded, true)
	c.unlock()
	c.flushControl()
}

// resetStream resets a stream on which the client has violated the protocol.
func (c *Conn) resetStream(id uint32, code http2.ErrCode) {
	why := http2.StreamError{StreamID: id, Code: code}
	c.mu.Lock()
	st := c.streams[id]
	_ = c.framer.WriteRSTStream(id, code)
	if st != nil && st.endReason == nil {
		st.endReason = why // in this critical section: no frame may follow the reset
	}
	c.mu.Unlock()
	if st != nil {
		st.clientLeft(why)
	}
}

// endedLocked closes the stream after the end of its response. The client need not send the
// rest of its request.
func (st *stream) endedLocked() {
	c := st.c
	st.sent = true
	if st.body != nil && !st.body.ended {
		_ = c.framer.WriteRSTStream(st.id, http2.ErrCodeNo)
	}
	c.dropLocked(st)
	st.endResponseLocked() // the client may open another stream
	st.wakeLocked()
}

// endResponseLocked records that the goroutine of the stream has ended, or has ended the response.
func (st *stream) endResponseLocked() {
	if st.responding {
		st.responding = false
		st.c.responding--
	}
}

// OnEnd registers f to be called when the client leaves or the exchange ends. If the client has left, f is called at
// once.
func (st *stream) OnEnd(f func()) {
	st.c.mu.Lock()
	left := st.endReason != nil
	if !left {
		st.callbacks = append(st.callbacks, f)
	}
	st.c.mu.Unlock()
	if left {
		f()
	}
}

// Left calls the functions registered so far, and registers f to be called when the client leaves.
func (st *stream) Left(f func()) {
	st.runCallbacks()
	st.OnEnd(f)
}

func (st *stream) Read(p []byte) (int, error) {
	if st.body == nil {
		return 0, os.ErrDeadlineExceeded
	}
	return st.read(p)
}

// Write writes p as a part of the body.
func (st *stream) Write(p []byte) (int, error) { return st.write(nil, p, false) }

// End ends the body.
func (st *stream) End() error {
	_, err := st.write(nil, nil, true)
	return err
}

// Close resets the stream if the response is not complete.
func (st *stream) Close() error {
	st.abort(http2.ErrCodeCancel)
	return nil
}

func (st *stream) LocalAddr() net.Addr { return st.c.conn.LocalAddr() }

func (st *stream) RemoteAddr() net.Addr { return st.c.conn.RemoteAddr() }

func (st *stream) SetDeadline(t time.Time) error {
	_ = st.SetReadDeadline(t) // never fails
	return st.SetWriteDeadline(t)
}

func (st *stream) SetReadDeadline(t time.Time) error {
	if st.body != nil {
		st.c.mu.Lock()
		defer st.c.mu.Unlock()
		st.body.until = t
		st.body.wakeLocked()
	}
	return nil
}

// SetWriteDeadline is called only by the goroutine that writes.
func (st *stream) SetWriteDeadline(t time.Time) error {
	st.until = t
	return nil
}

// TakeWaited returns how long writes have waited since the last call. The writing goroutine calls it.
func (st *stream) TakeWaited() (spent time.Duration) {
	spent, st.waited = st.waited, 0
	return spent
}

// Writer returns st. Each write then has Config.WriteTimeout.
func (st *stream) Writer() socket.Writer {
	st.until = time.Time{}
	return st
}

func (st *stream) Send(_ net.Conn, p []byte, more bool, w *socket.Waiter) error {
	st.gather, st.waiter = more, w
	defer func() { st.gather, st.waiter = false, nil }()
	_, err := st.Write(p)
	return err
}

func (st *stream) Group() socket.Group { return st.c }

func (st *stream) Release() {}
