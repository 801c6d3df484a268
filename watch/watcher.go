package watch

import (
	"context"
	"errors"
	"io"
	"runtime"
	"sync/atomic"

	"github.com/larder-io/larder/cache"
	"github.com/larder-io/larder/internal/invariants"
)

// defaultBatch is how many deliveries a call gives when its caller brought no room.
const defaultBatch = 64

// state is where a Watcher reads.
type state uint8

const (
	replaying  state = iota + 1 // the Snapshot
	catchingUp                  // the Log
	live                        // its group's chain
	closed                      // nothing more
)

// Watcher hands out what its filter selects: a position, and nothing queued. One
// goroutine at a time calls its methods; Close may come from any.
type Watcher struct {
	hub   *Hub
	group *group        // nil if it never had one
	ready chan struct{} // holds a token while there may be something to read; nil if there is wake
	wake  func()        // Options.Wake

	state     state
	bookmarks bool
	err       error   // why it is closed
	replay    *replay // while replaying

	// next is the position of the first event that is not delivered. While live it
	// is only a lower bound: the node says where the watcher is.
	next cache.Position
	// node is the chain's node to read next, while live.
	node *node
	// after: nothing at or below it is delivered.
	after int64
	// label: everything selected at or below it is delivered.
	//
	// Invariant: it never decreases.
	label int64

	// told is the revision of the last delivery, 0 before the first. Poll and Bookmark
	// alone set it.
	told atomic.Int64

	// armed: the watcher has found nothing and wants a token.
	armed atomic.Bool
	// released: Close was called.
	released atomic.Bool

	slot int // in group.watchers. group.mu guards it
}

// newWatcher makes a watcher that has no group yet.
func newWatcher(h *Hub, options Options) *Watcher {
	w := &Watcher{hub: h, wake: options.Wake, bookmarks: options.Bookmarks}
	if w.wake == nil {
		w.ready = make(chan struct{}, 1)
		w.ready <- struct{}{}
	}
	if options.Initial != nil {
		w.state = replaying
		w.next = options.Initial.Position()
		w.replay = newReplay(options)
	} else {
		w.state = catchingUp
		w.after, w.label = options.After, options.After
	}
	return w
}

// Ready gives a channel from which a receive succeeds when there may be something
// to read. Who receives from it calls Poll until that gives nothing; only then
// does Ready promise to speak again.
func (w *Watcher) Ready() <-chan struct{} { return w.ready }

// signal puts a token into ready, or calls wake.
func (w *Watcher) signal() {
	if w.wake != nil {
		w.wake()
		return
	}
	select {
	case w.ready <- struct{}{}:
	default:
	}
}

// Next is Poll that waits until there is something to give. When ctx ends first it
// returns ctx's error, and the Watcher can be used further.
func (w *Watcher) Next(ctx context.Context, dst []Delivery) ([]Delivery, error) {
	length := len(dst)
	for {
		var err error
		if dst, err = w.Poll(dst); err != nil || len(dst) > length {
			return dst, err
		}
		select {
		case <-ctx.Done():
			return dst, ctx.Err()
		case <-w.ready:
		}
	}
}

// Poll appends to dst what there is to be told now, and returns at once. It fills
// the room that dst has (64 deliveries if there is none) and exceeds it only to
// finish a revision. Nothing new is no error, and the promise to wake the caller when
// there is something.
//
// An error ends the Watcher, and comes without deliveries: io.EOF after Close, at
// the end of an epoch and when the Hub's Run has ended; ErrReplaced if the epoch ended
// because the store was replaced; ErrTooOld when the Watcher was lapped; a
// [cache.CorruptError] at an object that cannot be read.
func (w *Watcher) Poll(dst []Delivery) ([]Delivery, error) {
	length := len(dst)
	full := cap(dst)
	if full == length {
		full += defaultBatch
	}
	dst, armed := w.poll(dst, full)
	if len(dst) > length {
		w.told.Store(dst[len(dst)-1].Revision)
	}
	if w.err != nil {
		w.Close() // which tells how far it came
	}
	if armed {
		return dst, nil // nothing more for now
	}
	if len(dst) == length {
		return dst, w.err
	}
	if w.wake == nil {
		w.signal() // more, or the error
	}
	return dst, nil
}

// poll is Poll until dst is full, the watcher has ended, or there is nothing more for
// now: it is armed then.
func (w *Watcher) poll(dst []Delivery, full int) (_ []Delivery, armed bool) {
	for w.err == nil && len(dst) < full {
		if w.released.Load() {
			w.end(io.EOF)
			break
		}
		if w.group.over.Load() {
			w.end(w.over())
			break
		}
		switch w.state {
		case replaying:
			dst = w.pollSnapshot(dst, full)
		case catchingUp:
			dst = w.pollLog(dst, full)
		case live:
			dst = w.pollChain(dst, full)
			if w.state == live && len(dst) < full {
				return dst, true
			}
		}
	}
	return dst, false
}

// end ends the watcher for the reason err; Poll closes it.
func (w *Watcher) end(err error) {
	w.state, w.err = closed, err
	w.replay, w.node = nil, nil
}

// Close ends the Watcher: a Next under way and all later ones return io.EOF. Every
// Watcher must be closed.
func (w *Watcher) Close() {
	if w.released.CompareAndSwap(false, true) {
		w.hub.release(w)
		if told := w.told.Load(); told > 0 && w.hub.onClosed != nil {
			w.hub.onClosed(w.group.history, told)
		}
		w.signal()
	}
}

// pollSnapshot delivers initial objects. It leaves room in dst only when there are
// no more.
func (w *Watcher) pollSnapshot(dst []Delivery, full int) []Delivery {
	r := w.replay
	for !r.done && len(dst) < full {
		// Objects that cannot be followed are not worth sending.
		if w.hub.log.Oldest() > r.snapshot.Revision() && w.group.open.Load().start > w.next {
			w.end(w.lapped())
			return dst
		}
		var err error
		if dst, err = r.poll(&w.group.filter, dst, full); err != nil {
			w.end(err)
			return dst
		}
	}
	if len(dst) >= full {
		return dst
	}
	w.label = r.snapshot.Revision()
	if w.bookmarks {
		dst = append(dst, Delivery{Type: InitialEnd, Revision: w.label})
	}
	w.state, w.replay = catchingUp, nil
	return dst
}

// pollLog delivers what the filter selects from the Log, up to where the group's
// chain is open. It leaves room in dst only when it has come there or ended.
func (w *Watcher) pollLog(dst []Delivery, full int) []Delivery {
	var space [readLimit]*cache.Event
	join := w.group.open.Load()
	for w.err == nil && len(dst) < full {
		if w.next >= join.start {
			w.state, w.node = live, join
			return dst
		}
		events, _, err := w.hub.log.Read(w.next, space[:0])
		switch {
		case errors.Is(err, cache.ErrReset):
			w.end(w.over())
		case err != nil:
			// What is at or below the label is not missed.
			if w.next, err = w.hub.log.After(w.label); err != nil {
				w.end(w.lapped())
			}
		default:
			dst = w.takeEvents(dst, full, join.start, events)
		}
	}
	return dst
}

// over gives the error for a watcher whose epoch or Hub has ended.
func (w *Watcher) over() error {
	if w.hub.cache.Snapshot().History() != w.group.history {
		return ErrReplaced
	}
	return io.EOF
}

// lapped gives the error for a watcher that the Log has overtaken.
func (w *Watcher) lapped() error {
	w.hub.counts.lapped.Add(1)
	requested := w.label
	if w.replay != nil {
		requested = w.replay.snapshot.Revision()
	}
	return ErrTooOld{Requested: requested, Oldest: w.hub.log.Oldest()}
}

// takeEvents delivers what the filter selects of events, whole revisions, until dst
// is full or the position limit is reached.
func (w *Watcher) takeEvents(dst []Delivery, full int, limit cache.Position, events []*cache.Event) []Delivery {
	mark := len(dst)
	for _, e := range events {
		if e.Pos >= limit {
			break
		}
		if e.Revision > w.after {
			if d, selected := w.group.transition(e); selected {
				dst = w.take(dst, mark, d)
			}
		}
		if !e.Last() {
			continue
		}
		if w.err != nil {
			break
		}
		w.next, w.label = e.Pos+1, max(w.label, e.Revision)
		if mark = len(dst); mark >= full {
			break
		}
	}
	return dst
}

// pollChain delivers from the group's chain. It leaves room in dst only when the
// chain is cut, or when it has come to the open node: the watcher is armed then.
func (w *Watcher) pollChain(dst []Delivery, full int) []Delivery {
	for w.err == nil && len(dst) < full {
		n := w.node
		if n.cut {
			w.next = max(w.next, n.start)
			w.state, w.node = catchingUp, nil
			return dst
		}
		next := n.next.Load()
		if next == nil {
			if invariants.Enabled {
				runtime.Gosched() // widens the window in which a wake-up could be lost
			}
			w.armed.Store(true)
			if next = n.next.Load(); next == nil {
				return dst
			}
		}
		if d := n.first; d.event != nil && d.event.Pos >= w.next && d.Revision > w.after {
			mark := len(dst)
			dst = w.take(dst, mark, d)
			for _, d := range n.rest {
				dst = w.take(dst, mark, d)
			}
			w.label = d.Revision
		}
		w.node = next
	}
	return dst
}

// take appends d to dst; the deliveries of its revision begin at mark. Of a revision
// that cannot be told in full nothing is told: its rest could not be resumed.
func (w *Watcher) take(dst []Delivery, mark int, d Delivery) []Delivery {
	if invariants.Enabled {
		invariants.Assertf(d.Revision > w.label, "watch: revision %d delivered after %d", d.Revision, w.label)
	}
	if w.err != nil {
		return dst
	}
	if d.Type == corrupt {
		w.end(corruptError(d))
		clear(dst[mark:])
		return dst[:mark]
	}
	return append(dst, d)
}

// Bookmark gives the newest revision of which it is certain that everything at or
// below it has been delivered, and false when the Watcher was not to give
// bookmarks or has something left to deliver: then Poll comes first.
func (w *Watcher) Bookmark() (Delivery, bool) {
	if w.state != live || !w.bookmarks {
		return Delivery{}, false
	}
	// The order matters. Whatever is before the Snapshot's position or at or below
	// doneRevision was in the chain before these were read, so an open node that is
	// looked at afterwards says that all of it is behind the watcher.
	s := w.hub.cache.Snapshot()
	position, label := w.hub.donePosition.Load(), w.hub.doneRevision.Load()
	if cache.Position(position) >= s.Position() {
		label = s.Revision()
	}
	if w.node.cut || w.node.next.Load() != nil || w.group.over.Load() {
		return Delivery{}, false
	}
	if label < w.after && w.label == w.after {
		return Delivery{}, false // the revision asked for is yet to come
	}
	w.label = max(w.label, label)
	w.told.Store(w.label)
	return Delivery{Type: Bookmark, Revision: w.label}, true
}
