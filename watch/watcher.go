package watch

import (
	"context"
	"errors"
	"fmt"
	"io"
	"runtime"
	"sync/atomic"

	"github.com/larder-io/larder/cache"
	"github.com/larder-io/larder/internal/invariants"
)

// defaultBatch is how many deliveries Poll appends to a slice without spare capacity.
const defaultBatch = 64

// state is where a Watcher reads.
type state uint8

const (
	replaying  state = iota + 1 // the Snapshot
	catchingUp                  // the Log
	live                        // its group's chain
	closed                      // nothing more
)

// Watcher delivers the events that its filter selects. One goroutine at a time may call its methods, except Close and
// LastRevision.
type Watcher struct {
	hub   *Hub
	group *group        // nil if Watch found that the epoch has ended
	ready chan struct{} // has an element while there may be something to read; nil with wake
	wake  func()        // Options.Wake

	state     state
	bookmarks bool
	err       error   // why it is closed
	replay    *replay // while replaying

	// next is the position of the first event that is not delivered. While live it is only a lower bound, and node has
	// the position.
	next cache.Position
	// node is the next node to read while live.
	node *node
	// countedFrom is the position from which the Hub counts the objects outside the shard.
	countedFrom cache.Position
	// after is Options.After.
	after int64
	// delivered is the revision up to which everything selected was delivered. While replaying it is that of the
	// Snapshot.
	//
	// Invariant: it never decreases.
	delivered int64

	// lastRevision is the revision of the last delivery, 0 before the first. Only Poll and
	// Bookmark set it.
	lastRevision atomic.Int64

	// armed says that the watcher has found nothing and must be signalled.
	armed atomic.Bool
	// since is when the watcher was signalled last, in Unix nanoseconds.
	since atomic.Int64
	// released says that Close was called.
	released atomic.Bool

	slot int // in group.watchers. group.mu guards it
}

// newWatcher makes a watcher that has no group yet.
func newWatcher(h *Hub, options Options, f *filter) *Watcher {
	w := &Watcher{hub: h, wake: options.Wake, bookmarks: options.Bookmarks}
	if w.wake == nil {
		w.ready = make(chan struct{}, 1)
		w.ready <- struct{}{}
	}
	if options.Initial != nil {
		w.state = replaying
		w.next, w.delivered = options.Initial.Position(), options.Initial.Revision()
		w.replay = newReplay(*options.Initial, f)
	} else {
		w.state = catchingUp
		w.after, w.delivered = options.After, options.After
	}
	return w
}

// Ready returns a channel that receives when there may be something to read. The receiver must then call Poll until it
// returns nothing. Only after that does the channel receive again.
func (w *Watcher) Ready() <-chan struct{} { return w.ready }

// LastRevision returns the revision of the last delivery, 0 before the first. It may be called by
// any goroutine.
func (w *Watcher) LastRevision() int64 { return w.lastRevision.Load() }

// signal sends to ready, or calls wake.
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

// Next is Poll that waits until there is something to return. If ctx ends first, it
// returns ctx's error, and the Watcher remains usable.
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

// Poll appends to dst what can be delivered now, and returns at once. It fills the spare capacity of dst (64 deliveries
// if there is none) and exceeds it only to finish a revision. If there is nothing, the error is nil and the caller is
// woken later.
//
// An error ends the Watcher, and comes without deliveries:
//
//   - io.EOF after Close, at the end of an epoch, and when the Hub's Run has ended
//   - ErrReplaced if the store was replaced
//   - cache.ErrTooOld if the Watcher was lapped
//   - a [cache.CorruptError] at an object that cannot be decoded
func (w *Watcher) Poll(dst []Delivery) ([]Delivery, error) {
	length := len(dst)
	full := cap(dst)
	if full == length {
		full += defaultBatch
	}
	dst, armed := w.poll(dst, full)
	if len(dst) > length {
		w.lastRevision.Store(dst[len(dst)-1].Revision)
	}
	if w.err != nil {
		w.Close() // calls Config.OnClose with lastRevision
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

// poll is Poll until dst is full, the watcher has ended, or there is nothing more for now. In the last case it arms the
// watcher.
func (w *Watcher) poll(dst []Delivery, full int) (_ []Delivery, armed bool) {
	for w.err == nil && len(dst) < full {
		if w.released.Load() {
			w.end(io.EOF)
			break
		}
		if w.group.ended.Load() {
			err := w.endError()
			if w.state == live && err == io.EOF { // first deliver the rest of the chain
				dst = w.pollChain(dst, full)
			}
			if w.err == nil && len(dst) < full {
				w.end(err)
			}
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

// Close ends the Watcher: a running Next and all later ones return io.EOF. Every
// Watcher must be closed.
func (w *Watcher) Close() {
	if w.released.CompareAndSwap(false, true) {
		w.hub.release(w)
		if last := w.lastRevision.Load(); last > 0 && w.hub.onClose != nil {
			w.hub.onClose(w.group.history, last)
		}
		w.signal()
	}
}

// pollSnapshot delivers initial objects until dst is full, all are delivered, or the watcher has ended.
func (w *Watcher) pollSnapshot(dst []Delivery, full int) []Delivery {
	r := w.replay
	for !r.done && len(dst) < full {
		// If the Log has dropped events after the Snapshot, the watch cannot continue after the initial objects. End it
		// now, before more of them are sent.
		if w.hub.log.Oldest() > w.delivered && w.group.open.Load().start > w.next {
			w.end(w.lapped())
			return dst
		}
		var err error
		length := len(dst)
		dst, err = r.poll(&w.group.filter, dst, full)
		w.hub.counts.initial.Add(uint64(len(dst) - length))
		if err != nil {
			w.end(err)
			return dst
		}
	}
	if len(dst) >= full {
		return dst
	}
	w.hub.counts.outside.Add(r.outside)
	if w.bookmarks {
		dst = append(dst, Delivery{Type: InitialEnd, Revision: w.delivered})
	}
	w.state, w.replay = catchingUp, nil
	return dst
}

// pollLog delivers the selected events of the Log until dst is full, the open node of the group's chain is reached, or
// the watcher has ended.
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
			w.end(w.endError())
		case err != nil:
			// The watcher does not need events up to delivered, even if the Log has dropped them.
			if w.next, err = w.hub.log.After(w.delivered); err != nil {
				w.end(w.lapped())
			}
		default:
			dst = w.takeEvents(dst, full, join.start, events)
		}
	}
	return dst
}

// endError returns the error for a watcher whose epoch or Hub has ended.
func (w *Watcher) endError() error {
	if w.hub.cache.Snapshot().History() != w.group.history {
		return ErrReplaced
	}
	return io.EOF
}

// lapped counts a watcher whose next event the Log has dropped, and returns its error.
func (w *Watcher) lapped() error {
	w.hub.counts.lapped.Add(1)
	return cache.ErrTooOld{Requested: w.delivered, Oldest: w.hub.log.Oldest()}
}

// takeEvents delivers the selected events of whole revisions until dst is full or the position limit is reached.
func (w *Watcher) takeEvents(dst []Delivery, full int, limit cache.Position, events []*cache.Event) []Delivery {
	mark := len(dst)
	for _, e := range events {
		if e.Pos >= limit {
			break
		}
		if e.Revision > w.after {
			if e.Pos < w.countedFrom {
				w.hub.counts.outside.Add(w.group.countOutsideShard(e))
			}
			if d, selected := w.group.transition(e); selected {
				dst = w.take(dst, mark, d)
			}
		}
		if !e.Last {
			continue
		}
		if w.err != nil {
			break
		}
		w.next, w.delivered = e.Pos+1, max(w.delivered, e.Revision)
		if mark = len(dst); mark >= full {
			break
		}
	}
	return dst
}

// pollChain delivers from the group's chain until dst is full, the chain is truncated, or the open node is reached. In
// the last case it arms the watcher.
func (w *Watcher) pollChain(dst []Delivery, full int) []Delivery {
	for w.err == nil && len(dst) < full {
		n := w.node
		if n.truncated {
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
			w.delivered = d.Revision
		}
		w.node = next
	}
	return dst
}

// take appends d to dst; the deliveries of its revision begin at mark. If one of them is
// corrupt, none of the revision is delivered: a watch cannot be resumed inside a revision.
func (w *Watcher) take(dst []Delivery, mark int, d Delivery) []Delivery {
	if invariants.Enabled {
		invariants.Assertf(d.Revision > w.delivered, "watch: revision %d delivered after %d", d.Revision, w.delivered)
	}
	if w.err != nil {
		return dst
	}
	if d.Type == corrupt {
		w.end(fmt.Errorf("watch: event at revision %d: %w", d.Revision, &cache.CorruptError{Object: d.Object, Deleted: d.event != nil && d.event.Object == nil}))
		clear(dst[mark:])
		return dst[:mark]
	}
	return append(dst, d)
}

// Bookmark returns a bookmark of the newest revision up to which everything is known to be delivered. It returns false
// if the Watcher was made without bookmarks, or has something left to deliver; the caller then calls Poll.
func (w *Watcher) Bookmark() (Delivery, bool) {
	if w.state != live || !w.bookmarks {
		return Delivery{}, false
	}
	// Check the node last. All events before donePosition, and all up to doneRevision, were in the chain before these
	// were read. If the watcher's node is still open afterwards, the watcher has delivered them all.
	s := w.hub.cache.Snapshot()
	position, revision := w.hub.donePosition.Load(), w.hub.doneRevision.Load()
	if cache.Position(position) >= s.Position() {
		revision = s.Revision()
	}
	if w.node.truncated || w.node.next.Load() != nil || w.group.ended.Load() {
		return Delivery{}, false
	}
	if revision < w.after && w.delivered == w.after {
		return Delivery{}, false // the requested revision is in the future
	}
	w.delivered = max(w.delivered, revision)
	w.lastRevision.Store(w.delivered)
	return Delivery{Type: Bookmark, Revision: w.delivered}, true
}
