package streams

import (
	"cmp"
	"errors"
	"io"
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

// watchStream serves one watch on its connection. A watch that has sent its initial events and has nothing
// left to send is parked: it keeps a watcher, a connection and a timer, but no goroutine and no buffers.
//
// begin runs the watch on a goroutine of its own until it is parked for the first time. From then on the
// goroutines of a [scheduler] run it. At most one goroutine runs a watch at a time; fields that change belong
// to it, except signals. Other goroutines call only wake and signal.
type watchStream struct {
	response
	streams *Streams

	// The events, and how they are encoded.
	watcher        *watch.Watcher
	openErr        error // why watcher is nil; sent in place of events
	encoder        *encoding.Encoder
	table          *tableStream  // encodes Tables; nil for other formats
	bookmarks      bool          // the client allows bookmarks
	watchList      bool          // the client requested initial events and the bookmark after them
	skipInitialEnd bool          // the client did not set sendInitialEvents: no bookmark follows the initial events
	unencodable    bool          // the format cannot carry events: the first one ends the watch
	faults         *inject.Watch // holds events back; may be nil

	observer   observer
	seat       exchange.Seat // released when the initial events have been sent
	unregister func()        // removes the watch from flow control; may be nil

	signals atomic.Uint32 // a set of the signals below

	// The schedule: see bookmarks.go.
	timer        *time.Timer // sets timerFired; nil until the initial events have been sent
	ends         time.Time
	nextBookmark time.Time
}

// The signals of a watchStream. Any goroutine sets them, which also puts a parked watch into the queue of the
// scheduler. Each step takes woken and timerFired before it looks for events. A watch that has a signal is not
// parked, but runs another step: so no signal is lost.
const (
	woken      uint32 = 1 << iota // there may be events, or the right is lost
	timerFired                    // a bookmark is due, or the watch ends
	toldToEnd                     // the watch ends because the server stops
	clientLeft                    // the watch ends and sends nothing more
	isParked                      // no goroutine runs the watch, and it is not in the queue. Only park sets it
)

// result tells the caller of run what to do with the watchStream.
type result uint8

const (
	again  result = iota // run it again, after other watches: there is more to send
	parked               // do not touch it: another goroutine may be running it
	over
)

// wake makes a goroutine look for events. It never blocks.
func (ws *watchStream) wake() { ws.signal(woken) }

// signal sets a signal, and makes a goroutine look at it. It never blocks.
func (ws *watchStream) signal(signal uint32) {
	for {
		before := ws.signals.Load()
		if ws.signals.CompareAndSwap(before, before&^isParked|signal) {
			if before&isParked != 0 {
				ws.streams.scheduler.push(ws)
			}
			return
		}
	}
}

// take returns the signals, and removes the signals that the caller is about to serve.
func (ws *watchStream) take() uint32 { return ws.signals.And(^(woken | timerFired)) }

// begin sends the head, and then events until the watch is parked or over. It has a goroutine of its own,
// because there may be many initial events and the client may read them slowly.
func (ws *watchStream) begin() {
	b := getBatch()
	defer b.release()
	b.clock = time.Now()
	if ws.writer = socket.WriterTo(ws.Conn); ws.writer != nil {
		ws.group = ws.writer.Group()
	}
	r := ws.sendHead(b)
	for r == again {
		r = ws.run(b)
	}
}

// sendHead sends the head. It ends a watch that has no watcher.
func (ws *watchStream) sendHead(b *batch) (r result) {
	defer ws.endRun(b, &r)
	var err error
	if len(ws.head) > 0 {
		b.bytes += len(ws.head)
		err = ws.send(b, ws.head, false)
	}
	ws.head = nil
	if err == nil && ws.openErr != nil {
		err = ws.sendError(b, ws.openErr)
	}
	ws.chargeBatch(b)
	if err != nil {
		return ws.finish(b, err)
	}
	return again
}

// endRun is deferred. It empties b, and after a panic it ends the watch, but not the goroutine.
func (ws *watchStream) endRun(b *batch, r *result) {
	b.reset()
	if p := recover(); p != nil {
		klog.ErrorS(nil, "Watch panicked", "panic", p, "stack", exchange.Stack())
		ws.observer.audit.Panicked(p)
		ws.observer.audit = nil
		*r = ws.finish(b, errLeft)
	}
}

// A watch ends with one of these, or with an error of the connection.
var (
	errEnd  = errors.New("httpapi: the watch has ended") // finish completes the body
	errLeft = errors.New("httpapi: the client has left") // finish cuts the body off
)

// run sends pending events, about runSize bytes at most. If none are left, it parks the watch.
func (ws *watchStream) run(b *batch) (r result) {
	defer ws.endRun(b, &r)
	for {
		more, err := ws.step(b)
		ws.chargeBatch(b)
		switch {
		case err != nil:
			return ws.finish(b, err)
		case more:
			return again
		case ws.park():
			return parked
		}
	}
}

// step sends pending events, about runSize bytes at most, and then serves the timer if it has fired. more
// means that events may be left. An error ends the watch.
func (ws *watchStream) step(b *batch) (more bool, err error) {
	signals := ws.take()
	switch {
	case signals&clientLeft != 0:
		return false, errLeft
	case ws.revoked(), ws.timer == nil && !ws.ends.IsZero() && b.clock.After(ws.ends): // later the timer ends it
		return false, errEnd
	case signals&toldToEnd != 0:
		return false, ws.endWithBookmark(b)
	}
	more, err = ws.drain(b)
	switch {
	case err != nil:
		return false, err
	case ws.timer == nil && !more:
		ws.endInitial()
	case signals&timerFired != 0:
		err = ws.runTimer(b)
	}
	return more, err
}

// chargeBatch charges the account for the time since b.clock, and for b's bytes and events. It resets all three.
func (ws *watchStream) chargeBatch(b *batch) {
	now := time.Now()
	busy := max(0, now.Sub(b.clock)-socket.TakeWaited(ws.Conn))
	b.clock = now
	ws.Stream.charge(costs.Usage{costs.CPU: int64(busy), costs.Bytes: int64(b.bytes), costs.Events: int64(b.events)})
	b.bytes, b.events = 0, 0
}

// park parks the watch, unless it has signals. After park has returned true, another goroutine may be running
// the watch.
func (ws *watchStream) park() bool { return ws.signals.CompareAndSwap(0, isParked) }

// endInitial ends the phase of initial events: it releases the seat and starts the timer.
func (ws *watchStream) endInitial() {
	ws.seat.Release()
	ws.observer.seatReleased()
	began := ws.observer.began // so that slow initial events do not hide that the last bookmark is due
	ws.schedule(began, ws.bookmarkPause(began))
	ws.timer = time.AfterFunc(ws.untilTimer(), func() { ws.signal(timerFired) })
}

// runSize is the number of bytes after which a run lets other watches run.
const runSize = 256 << 10

// drain sends pending events in few writes, about runSize bytes at most. more means that some may be left.
// b is empty before and after.
func (ws *watchStream) drain(b *batch) (more bool, err error) {
	for before := ws.size; ws.size-before < runSize; {
		end, err := ws.poll(b)
		some := len(b.deliveries) > 0
		switch {
		case errors.Is(err, io.EOF):
			return false, cmp.Or(ws.flush(b), errEnd)
		case err != nil:
			return false, ws.sendError(b, err)
		case some && ws.unencodable:
			return false, errEnd
		}
		if err := ws.appendAll(b); err != nil {
			return false, err
		}
		switch {
		case end != "":
			return false, ws.endAs(b, end)
		case !some:
			return false, ws.flush(b)
		}
	}
	return true, ws.flush(b)
}

// sendError sends the contents of b, then an event with the Status of err. It never returns nil: the event is
// the last one of the watch.
func (ws *watchStream) sendError(b *batch, err error) error {
	before := len(b.buf)
	b.buf, err = ws.encoder.AppendError(b.buf, storage.WatchStatus(err))
	ws.observer.frame(len(b.buf) - before)
	if err == nil {
		b.events++
		err = ws.flush(b)
	}
	return cmp.Or(err, errEnd)
}

// finish ends the watch. If err is errEnd, the client sees a complete response, and the connection may serve
// its next request.
func (ws *watchStream) finish(b *batch, err error) result {
	if ws.timer != nil {
		ws.timer.Stop()
	}
	if ws.writer != nil {
		ws.writer.Release()
	}
	if w := b.waiter; w != nil { // the writes below may block until their deadlines
		(*w).Waits()
		defer (*w).Resumed()
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

// complete sends the end of the body, so that the client sees no error. It reports whether the connection can
// serve another request.
func (ws *watchStream) complete() bool {
	if ws.end != nil {
		_ = ws.end() // an error means that the client has disconnected
	}
	if !ws.chunked {
		return false
	}
	ws.own()
	err := ws.sendWithin([]byte("0\r\n\r\n"))
	socket.TakeWaited(ws.Conn) // the next request has not waited
	return err == nil && ws.next != nil && !ws.revoked() && ws.signals.Load()&toldToEnd == 0
}

// release closes the watcher, leaves flow control, and releases the right.
func (ws *watchStream) release() {
	if ws.watcher != nil {
		ws.watcher.Close()
	}
	ws.seat.Release()
	ws.faults.Close()
	if ws.unregister != nil {
		ws.unregister()
	}
	if ws.right != nil {
		ws.right.Leave()
	}
}
