package watch

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/larder-io/larder/cache"
)

// group has the watchers of one filter, and the chain from which they read (E9).
type group struct {
	filter
	id groupKey

	// byShard says that the group is in a shardTable. Hub.mu guards it.
	byShard bool

	// open is the node at the chain's end. Only the Hub moves it.
	//
	// Invariant: open.next is nil until the Hub has moved open on.
	open atomic.Pointer[node]

	// length is the number of nodes of the chain. Hub.mu guards it.
	length int

	// touched says that open holds deliveries that are not published. Hub.mu guards it.
	touched bool

	// history is Snapshot.History in the epoch.
	history uint64

	// ended says that the epoch or the Hub's Run has ended.
	ended atomic.Bool

	mu sync.Mutex
	// watchers also change only under Hub.mu.
	//
	// Invariant: watchers[i].slot == i
	watchers []*Watcher
}

// node is a link of a group's chain: the deliveries of one revision.
type node struct {
	// next publishes first and rest, which are not read before it is set. It stays nil in a truncated node.
	next atomic.Pointer[node]

	// start is where the node begins in the Log: earlier nodes have the selected events before start.
	//
	// Invariant: it lies between two revisions.
	start cache.Position

	// truncated says that the chain ends here. A watcher reads the Log from start until it reaches the start of the new
	// chain.
	truncated bool

	first Delivery // its type is 0 in a node without deliveries
	rest  []Delivery
}

// newGroup makes a group whose chain begins at start.
func newGroup(f filter, id groupKey, start cache.Position) *group {
	g := &group{filter: f, id: id}
	g.open.Store(&node{start: start})
	return g
}

// appendLocked appends the delivery of e, if there is one, to the open node. It reports whether it is the node's first.
// Hub.mu is held.
func (g *group) appendLocked(e *cache.Event) bool {
	d, selected := g.transition(e)
	if !selected {
		return false
	}
	n := g.open.Load()
	if g.touched {
		n.rest = append(n.rest, d)
		return false
	}
	n.first, g.touched = d, true
	return true
}

// publishLocked publishes the open node; end is the position after it. Hub.mu is held.
func (g *group) publishLocked(end cache.Position, backlog int) {
	full := g.open.Load()
	g.touched = false
	g.length++
	if g.length >= backlog {
		g.cutLocked(end, end)
		return
	}
	next := &node{start: end}
	g.open.Store(next)
	full.next.Store(next)
}

// cutLocked publishes the open node and ends the chain, which has everything before end. A new chain begins at start.
// Hub.mu is held.
func (g *group) cutLocked(end, start cache.Position) {
	last := g.open.Load()
	// Set open first: a watcher that reaches the truncated node must find the new chain.
	g.open.Store(&node{start: start})
	g.length = 0
	last.next.Store(&node{start: end, truncated: true})
}

// attach makes w one of the group's watchers.
func (g *group) attach(w *Watcher) {
	g.mu.Lock()
	defer g.mu.Unlock()
	w.slot = len(g.watchers)
	g.watchers = append(g.watchers, w)
}

// detach removes w, which is attached, and reports whether it was the last.
func (g *group) detach(w *Watcher) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	last := len(g.watchers) - 1
	g.watchers[w.slot] = g.watchers[last]
	g.watchers[w.slot].slot = w.slot
	g.watchers[last] = nil
	g.watchers = g.watchers[:last]
	return last == 0
}

// each calls visit for each watcher, with mu held.
func (g *group) each(visit func(*Watcher)) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, w := range g.watchers {
		visit(w)
	}
}

// wake signals the armed watchers, or all watchers if all is true. now is the time of the publication.
func (g *group) wake(all bool, now int64) {
	g.each(func(w *Watcher) {
		if w.armed.Load() && w.armed.CompareAndSwap(true, false) || all {
			w.since.Store(now)
			w.signal()
		}
	})
}

// lag adds to behind the watchers that were signalled and have not read everything since. It raises slowest to the
// longest time since such a signal.
func (g *group) lag(now int64, behind *int, slowest *int64) {
	g.each(func(w *Watcher) {
		if w.armed.Load() {
			return
		}
		*behind++
		if since := w.since.Load(); since != 0 {
			*slowest = max(*slowest, now-since)
		}
	})
}

// end ends the group and all its watchers.
func (g *group) end() {
	g.ended.Store(true)
	g.wake(true, time.Now().UnixNano())
}
