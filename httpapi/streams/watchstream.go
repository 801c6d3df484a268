package streams

import (
	"errors"
	"io"
	"math/rand/v2"
	"sync/atomic"
	"time"

	"k8s.io/klog/v2"

	"github.com/larder-io/larder/httpapi/costs"
	"github.com/larder-io/larder/httpapi/exchange"
	"github.com/larder-io/larder/httpapi/faults/inject"
	"github.com/larder-io/larder/httpapi/socket"
	"github.com/larder-io/larder/internal/registry/encoding"
	"github.com/larder-io/larder/internal/registry/storage"
	"github.com/larder-io/larder/watch"
)

// watchStream writes one watch. While there is nothing to send it is parked: it has a watcher, a
// connection and a timer, but no goroutine and no buffers. wake puts it into the queue of a
// [scheduler], whose goroutines run it.
//
// It belongs to the goroutine that runs it. Other goroutines call wake, onTimer and leave.
type watchStream struct {
	Stream

	watcher    *watch.Watcher
	refused    error // why there is no watcher; the stream sends it
	encoder    *encoding.Encoder
	table      *tableStream       // nil unless the watch sends Tables
	head       []byte             // is sent before the body
	end        func() error       // completes the body; may be nil
	next       func(early []byte) // serves the next request on the connection; may be nil
	observer   observer
	seat       exchange.Seat // until the initial objects have been sent
	unregister func()        // removes the watch from flow control; may be nil
	faults     *inject.Watch // keeps events back; may be nil
	streams    *Streams

	bookmarks bool
	lists     bool // the client asked for the initial objects, and for the bookmark after them
	legacy    bool // the client did not ask for the bookmark after the initial objects
	mute      bool // events cannot be written in the requested form: the first one ends the watch
	chunked   bool // the body is framed in chunks
	lastSent  bool // the last bookmark was sent or could not be
	scheduled bool // the scheduler runs it, because it has been parked before

	phase      atomic.Uint32 // a phase
	gone       atomic.Bool   // the client left
	timerFired atomic.Bool   // the timer fired, and no run has seen it

	ends         time.Time
	nextBookmark time.Time
	timer        *time.Timer   // calls onTimer; nil until nothing is left to send for the first time
	writer       socket.Writer // reports waits for the client, to the scheduler once scheduled; may be nil
	group        socket.Group  // whose connection the stream shares; nil if it has one to itself, or writer is nil
	more         bool          // the next watch to run is of the same group
	size         int
}

// phase says whether a goroutine has a watchStream.
const (
	phaseRunning uint32 = iota // a goroutine has it, or it is in the queue for one
	phaseWoken                 // the same, and wake was called since
	phaseParked                // no goroutine has it
	phaseOver
)

// result tells the caller of run what to do with the watchStream.
type result uint8

const (
	again  result = iota // run again after other watches: there is more to send
	parked               // it may be running again already: the caller must not touch it
	over
)

// wake makes a goroutine run the stream, unless one does. It never blocks.
func (ws *watchStream) wake() {
	for {
		switch ws.phase.Load() {
		case phaseRunning:
			if ws.phase.CompareAndSwap(phaseRunning, phaseWoken) {
				return
			}
		case phaseParked:
			if ws.phase.CompareAndSwap(phaseParked, phaseRunning) {
				ws.streams.scheduler.push(ws)
				return
			}
		default:
			return
		}
	}
}

// onTimer is called by the timer.
func (ws *watchStream) onTimer() {
	ws.timerFired.Store(true)
	ws.wake()
}

// leave ends the watch without sending anything more.
func (ws *watchStream) leave() {
	ws.gone.Store(true)
	ws.wake()
}

// begin sends the head, and events until the stream is parked for the first time. It has its own goroutine,
// because there may be many initial objects and the client may read them slowly.
func (ws *watchStream) begin() {
	b := getBatch()
	defer b.release()
	b.clock = time.Now()
	ws.writer = socket.NotifyWaits(ws.Conn, &ws.streams.ownWaiter)
	v := ws.open(b)
	for v == again {
		v = ws.run(b)
	}
}

func (ws *watchStream) open(b *batch) (v result) {
	defer ws.recoverPanic(b, &v)
	var err error
	if len(ws.head) > 0 {
		b.bytes += len(ws.head)
		err = ws.send(ws.head, false)
	}
	ws.head = nil
	if err == nil && ws.refused != nil {
		err = ws.sendError(b, ws.refused)
	}
	ws.charge(b)
	if err != nil {
		return ws.finish(err)
	}
	return again
}

// recoverPanic recovers from a panic, which ends this stream only, and empties b.
func (ws *watchStream) recoverPanic(b *batch, v *result) {
	b.reset()
	if p := recover(); p != nil {
		klog.ErrorS(nil, "Watch panicked", "panic", p, "stack", exchange.Stack())
		ws.observer.audit.Panicked(p)
		ws.observer.audit = nil
		*v = ws.finish(errLeft)
	}
}

// The reasons why a watch ends, apart from errors of the connection.
var (
	errEnd  = errors.New("httpapi: the watch has ended")
	errLeft = errors.New("httpapi: the client has left")
)

// run sends about runSize bytes at most, and parks the stream if nothing is left.
func (ws *watchStream) run(b *batch) (v result) {
	defer ws.recoverPanic(b, &v)
	for {
		more, err := ws.step(b)
		ws.charge(b)
		switch {
		case err != nil:
			return ws.finish(err)
		case more:
			return again
		case ws.park():
			return parked
		}
	}
}

// step sends about runSize bytes at most, and runs the timer if it has fired.
func (ws *watchStream) step(b *batch) (more bool, err error) {
	switch {
	case ws.gone.Load():
		return false, errLeft
	case ws.revoked():
		return false, errEnd
	case ws.streams.IsEnding(), ws.toldToEnd.Load():
		err = ws.endWithBookmark(b)
		return false, err
	}
	drain := ws.drain
	if ws.faults.Active() {
		drain = ws.drainKept
	}
	more, err = drain(b)
	if err != nil {
		return false, err
	}
	if ws.timer == nil {
		if !more {
			ws.setTimer()
		}
		return more, nil
	}
	if ws.timerFired.Swap(false) {
		err = ws.runTimer(b, !more && !ws.faults.Holding())
	}
	return more, err
}

// charge charges the account for the work since b's clock was set, and sets the clock.
func (ws *watchStream) charge(b *batch) {
	now := time.Now()
	busy := max(0, now.Sub(b.clock)-socket.TakeWaited(ws.Conn))
	b.clock = now
	ws.Stream.charge(costs.Usage{costs.CPU: int64(busy), costs.Bytes: int64(b.bytes), costs.Events: int64(b.events)})
	b.bytes, b.events = 0, 0
}

// park parks the stream, unless it was woken meanwhile. If park returns true, the stream may already be
// running again.
func (ws *watchStream) park() bool {
	if !ws.scheduled {
		ws.scheduled = true
		if ws.writer = socket.NotifyWaits(ws.Conn, &ws.streams.waiter); ws.writer != nil {
			ws.group = ws.writer.Group()
		}
	}
	if ws.phase.CompareAndSwap(phaseRunning, phaseParked) {
		return true
	}
	ws.phase.Store(phaseRunning)
	return false
}

// setTimer starts the timer and releases the seat: the initial objects have been sent.
func (ws *watchStream) setTimer() {
	ws.seat.Release()
	ws.observer.unseated()
	ws.nextBookmark = ws.observer.began.Add(storage.BookmarkInterval + time.Duration(rand.Int64N(int64(2*time.Second))) - time.Second)
	ws.timer = time.AfterFunc(ws.untilTimer(time.Now()), ws.onTimer)
}

// runSize is how much one run sends before other watches run.
const runSize = 256 << 10

// drain sends pending events, in few writes. more means that some may be left. b is empty before and
// after.
func (ws *watchStream) drain(b *batch) (more bool, err error) {
	before := ws.size
	for ws.size-before < runSize {
		b.deliveries, err = ws.watcher.Poll(b.deliveries[:0])
		switch {
		case errors.Is(err, io.EOF):
			if err := ws.flush(b); err != nil {
				return false, err
			}
			return false, errEnd
		case err != nil:
			return false, ws.sendError(b, err)
		case len(b.deliveries) == 0:
			return false, ws.flush(b)
		case ws.faults.Active(): // a rule came: what was written since may be among these
			ws.keep(b)
			return true, ws.flush(b)
		case ws.mute:
			return false, errEnd
		}
		if err := ws.appendAll(b); err != nil {
			return false, err
		}
	}
	return true, ws.flush(b)
}

// sendError sends the contents of b, then the Status of err. That ends the watch.
func (ws *watchStream) sendError(b *batch, err error) error {
	before := len(b.buf)
	b.buf, err = ws.encoder.AppendError(b.buf, storage.WatchStatus(err))
	ws.observer.frame(len(b.buf) - before)
	if err == nil {
		b.events++
		err = ws.flush(b)
	}
	if err == nil {
		err = errEnd
	}
	return err
}

// finish ends the stream for the reason err. errEnd ends it completely, so that the client sees no
// error.
func (ws *watchStream) finish(err error) result {
	ws.phase.Store(phaseOver)
	if ws.timer != nil {
		ws.timer.Stop()
	}
	if ws.watcher != nil {
		ws.watcher.Close()
	}
	if ws.writer != nil {
		ws.writer.StopNotifying()
	}
	if ws.scheduled {
		// From here on every write may block until its deadline.
		ws.streams.scheduler.Waits()
		defer ws.streams.scheduler.GoesOn()
	}
	// Count and record the watch before the client can see its end.
	ws.release()
	ws.observer.ended(ws.size)
	if err == errEnd && ws.complete() {
		ws.next(ws.early)
	} else {
		ws.Conn.Close()
	}
	ws.streams.remove(&ws.Stream)
	return over
}

// complete ends the body, so that the client sees no error. It reports whether another request may follow on
// the connection.
func (ws *watchStream) complete() bool {
	if ws.end != nil {
		_ = ws.end() // an error: the client is gone
	}
	if !ws.chunked {
		return false
	}
	ws.own()
	err := ws.sendWithin([]byte("0\r\n\r\n"))
	socket.TakeWaited(ws.Conn) // the next request has not waited
	return err == nil && ws.next != nil && !ws.revoked() && !ws.toldToEnd.Load() && !ws.streams.IsEnding()
}

// discard releases a watch that does not begin, because the server is shutting down.
func (ws *watchStream) discard() {
	if ws.watcher != nil {
		ws.watcher.Close()
	}
	ws.release()
	ws.observer.audit.End()
	ws.Conn.Close()
}

// release removes the watch from flow control, and leaves its right.
func (ws *watchStream) release() {
	ws.seat.Release()
	ws.faults.Close()
	if ws.unregister != nil {
		ws.unregister()
	}
	if ws.right != nil {
		ws.right.Leave()
	}
}
