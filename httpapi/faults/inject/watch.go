package inject

import (
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"k8s.io/klog/v2"

	"github.com/larder-io/larder/httpapi/faults"
	"github.com/larder-io/larder/watch"
)

// Watch holds back the events of one watch. Its methods are called by the goroutine that serves the watch.
// A nil Watch is idle.
type Watch struct {
	f      *Faults
	q      faults.Request
	wake   func()      // schedules the watch; it neither blocks nor calls back
	active atomic.Bool // rules concern the watch, or it holds something

	// Faults.mu guards the rest.

	queue      []held // in order
	bytes      int    // that queue keeps in memory
	overflowed bool   // queue was discarded, because it took too many bytes
	credit     int    // events that hold lets through
	sent       int    // changes
	last       int64  // revision of the last change or bookmark that was sent
	hold       *rule
	delay      *rule
	delayFor   time.Duration
	end        *rule
	endHow     string
	endAfter   int
	seed       *rule
	drawn      draw
	ordinal    map[*rule]int
	timer      *time.Timer // wakes the watch when the next event is due; may be nil
	delayNoted bool        // the first event of queue has been noted as delayed
	holdNoted  bool        // the hold has been noted
}

// held is an event, and when it arrived.
type held struct {
	watch.Delivery
	at time.Time
}

// size is the memory that h takes, with the objects that it keeps. The cache may have them, too.
func (h *held) size() int {
	const own = 128
	n := own
	if h.Object != nil {
		n += h.Object.Size()
	}
	if before := h.Prev(); before != nil && before != h.Object {
		n += before.Size()
	}
	return n
}

// Watch returns the Watch of a request; nil without Faults. The caller closes it.
func (p *RequestFaults) Watch(wake func()) *Watch {
	if p == nil {
		return nil
	}
	w := &Watch{f: p.faults, q: p.request, wake: wake, ordinal: make(map[*rule]int)}
	w.f.mu.Lock()
	defer w.f.mu.Unlock()
	w.f.watches = append(w.f.watches, w)
	for _, r := range w.f.rules {
		if d, ok := p.draws[r]; ok && w.seed == nil {
			w.seed, w.drawn = r, d
			w.active.Store(true)
			if how, after := r.endOf(d); how != "" && w.end == nil {
				w.end, w.endHow, w.endAfter, w.ordinal[r] = r, how, after, d.ordinal
			}
		}
		w.attachLocked(r)
	}
	return w
}

// Close ends the use of w.
func (w *Watch) Close() {
	if w == nil {
		return
	}
	w.f.mu.Lock()
	defer w.f.mu.Unlock()
	w.f.watches = slices.DeleteFunc(w.f.watches, func(o *Watch) bool { return o == w })
	if w.timer != nil {
		w.timer.Stop()
	}
	w.dropLocked()
}

// dropLocked discards what w holds.
func (w *Watch) dropLocked() {
	w.f.held -= w.bytes
	w.queue, w.bytes = nil, 0
}

// attachLocked applies r to w if r matches, and holds, delays or ends watches.
func (w *Watch) attachLocked(r *rule) {
	if r.Hold == "" && r.Delay == "" && r.End == "" || !r.Match.Selects(&w.q) {
		return
	}
	ordinal, concerned := r.countLocked()
	if !concerned {
		return
	}
	w.ordinal[r] = ordinal
	w.applyLocked(r)
}

// applyLocked makes r hold, delay or end w, unless another rule does.
func (w *Watch) applyLocked(r *rule) {
	switch {
	case r.Hold != "" && w.hold == nil:
		w.hold, w.credit, w.holdNoted = r, 0, false
	case r.Delay != "" && w.delay == nil:
		w.delay = r
		w.delayFor, _ = time.ParseDuration(r.Delay) // is valid
	case r.End != "" && w.end == nil:
		w.end, w.endHow, w.endAfter = r, r.End, w.sent+r.After
	default:
		return
	}
	w.active.Store(true)
	w.wake()
}

// reapplyLocked lets other matching rules replace a detached rule.
func (w *Watch) reapplyLocked() {
	for _, r := range w.f.rules {
		if _, ok := w.ordinal[r]; ok {
			w.applyLocked(r)
		}
	}
}

// detachLocked undoes attachLocked; r may be nil. Held events continue, unless another rule takes over.
func (w *Watch) detachLocked(r *rule) {
	if r == nil {
		return
	}
	delete(w.ordinal, r)
	if w.hold == r {
		w.hold = nil
	}
	if w.delay == r {
		w.delay = nil
	}
	if w.end == r {
		w.end = nil
	}
	if w.seed == r {
		w.seed = nil
	}
	w.wake()
}

// releaseLocked lets everything through that is held now.
func (w *Watch) releaseLocked() {
	w.credit = 0
	for i, h := range w.queue {
		together := i > 0 && h.Shared() && w.queue[i-1].Shared() && w.queue[i-1].Revision == h.Revision
		if !together && (h.Shared() || w.hold.Hold == faults.HoldEverything) {
			w.credit++
		}
	}
}

func (w *Watch) stateLocked() faults.Watch {
	s := faults.Watch{Request: w.q, Sent: w.sent, Held: len(w.queue)}
	for _, r := range []*rule{w.hold, w.delay, w.end, w.seed} {
		if r != nil && !slices.Contains(s.Rules, r.Name) {
			s.Rules = append(s.Rules, r.Name)
		}
	}
	return s
}

// Active reports whether deliveries pass through w.
func (w *Watch) Active() bool { return w != nil && w.active.Load() }

// Holding reports whether w holds events, or a rule says to hold them: then no bookmark may be sent.
func (w *Watch) Holding() bool {
	if !w.Active() {
		return false
	}
	w.f.mu.Lock()
	defer w.f.mu.Unlock()
	return w.hold != nil || len(w.queue) > 0 || w.overflowed
}

// Keep adds deliveries to the held events. While the watches hold too much together, the one that holds the most
// ends with 410, as a watch does whose client reads too slowly.
func (w *Watch) Keep(deliveries []watch.Delivery) {
	f, now := w.f, time.Now()
	f.mu.Lock()
	defer f.mu.Unlock()
	before := w.bytes
	for _, d := range deliveries {
		h := held{d, now}
		w.queue = append(w.queue, h)
		w.bytes += h.size()
	}
	for f.held += w.bytes - before; f.held > f.limit; {
		most := slices.MaxFunc(f.watches, func(a, b *Watch) int { return a.bytes - b.bytes })
		klog.InfoS("A watch ends, because faults hold too many events", "bytes", f.held, "resource", most.q.Resource, "userAgent", most.q.UserAgent)
		most.dropLocked()
		most.overflowed = true
		most.wake()
	}
}

// Next appends to dst what can be sent now, up to its capacity and whole revisions. drained says that nothing
// has come that is not kept. end is not "" if the watch ends after that, in the way of faults.Rule.End. If
// nothing is left that concerns w, w becomes idle.
func (w *Watch) Next(dst []watch.Delivery, drained bool) (_ []watch.Delivery, end string) {
	w.f.mu.Lock()
	defer w.f.mu.Unlock()
	if w.overflowed {
		return dst, faults.EndExpired
	}
	for len(w.queue) > 0 && len(dst) < cap(dst) && w.passesLocked() {
		d := w.popLocked()
		dst = append(dst, d)
		for d.Shared() && len(w.queue) > 0 && w.queue[0].Shared() && w.queue[0].Revision == d.Revision {
			dst = append(dst, w.popLocked())
		}
	}
	if w.endsLocked(drained) {
		w.f.noteLocked(w.end, w.q, w.ordinal[w.end], fmt.Sprintf("watch ended (%s) after %d changes", w.endHow, w.sent))
		end = w.endHow
	}
	if len(w.queue) == 0 && w.hold == nil && w.delay == nil && w.end == nil && w.seed == nil {
		w.active.Store(false)
		w.last = 0 // later events do not pass through w
	}
	return dst, end
}

// Sent records that the watch has sent everything up to a revision, unless w holds something back.
func (w *Watch) Sent(revision int64) {
	w.f.mu.Lock()
	defer w.f.mu.Unlock()
	if len(w.queue) == 0 {
		w.last = max(w.last, revision)
	}
}

// LastRevision returns the revision of the last change or bookmark that was sent; 0 if none was.
func (w *Watch) LastRevision() int64 {
	w.f.mu.Lock()
	defer w.f.mu.Unlock()
	return w.last
}

// popLocked takes the first event.
func (w *Watch) popLocked() watch.Delivery {
	d, size := w.queue[0].Delivery, w.queue[0].size()
	w.queue[0] = held{}
	w.queue = w.queue[1:]
	w.bytes -= size
	w.f.held -= size
	if d.Shared() {
		w.sent++
	}
	if d.Shared() || d.Type == watch.InitialEnd {
		w.last = d.Revision
	}
	w.delayNoted = false
	return d
}

// endsLocked reports whether a rule ends the watch now: its initial objects and enough changes were sent.
// drained says that queue has everything that has come.
func (w *Watch) endsLocked(drained bool) bool {
	switch {
	case w.end == nil || w.sent < w.endAfter:
		return false
	case len(w.queue) == 0:
		return drained
	}
	return w.queue[0].Shared()
}

// passesLocked reports whether the first event may be sent now.
func (w *Watch) passesLocked() bool {
	first := &w.queue[0]
	if w.endsLocked(false) {
		return false
	}
	if due := w.dueLocked(first); due > 0 {
		if w.timer == nil {
			w.timer = time.AfterFunc(due, w.wake)
		} else {
			w.timer.Reset(due)
		}
		return false
	}
	if w.hold == nil || !first.Shared() && w.hold.Hold == faults.HoldChanges {
		return true
	}
	if w.credit == 0 {
		if !w.holdNoted {
			w.holdNoted = true
			w.f.noteLocked(w.hold, w.q, w.ordinal[w.hold], fmt.Sprintf("held after %d changes", w.sent))
		}
		return false
	}
	w.credit--
	return true
}

// dueLocked returns how long a change is still delayed.
func (w *Watch) dueLocked(h *held) time.Duration {
	if !h.Shared() {
		return 0
	}
	delay, by, ordinal := time.Duration(0), w.delay, 0
	if by != nil {
		delay, ordinal = w.delayFor, w.ordinal[by]
	} else if by = w.seed; by != nil {
		delay, ordinal = by.delayOf(w.drawn, w.sent), w.drawn.ordinal
	}
	if delay > 0 && !w.delayNoted {
		w.delayNoted = true
		w.f.noteLocked(by, w.q, ordinal, fmt.Sprintf("change %d delayed by %v", w.sent, delay))
	}
	return delay - time.Since(h.at)
}
