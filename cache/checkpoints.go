package cache

import (
	"slices"
	"strings"
	"sync/atomic"

	"github.com/larder-io/larder/internal/invariants"
)

// recentStates is how many reconstructed states are kept: clients that page through a list return to the same
// revision.
const recentStates = 8

// checkpoints keeps some of the published states, from which any state that the log reaches can be reconstructed.
// The log's events lead from one checkpoint to the next, and can be undone because they hold the
// objects that they replaced.
//
// A state holds several KiB of its own, so not all states are kept. Checkpoints are dense only near the
// present, where continue tokens point. They have no indexes, so lists of past states scan.
type checkpoints struct {
	// kept are in order of position. The slice is never changed in place.
	// Invariant: all are of the present epoch, none is before the log's first event
	kept atomic.Pointer[[]*state]
	// recent are reconstructed states, of any epoch. trim drops states that are older than the log.
	recent     [recentStates]atomic.Pointer[state]
	nextRecent atomic.Uint32
}

// keep makes prev, which next is about to replace, a checkpoint if the last one is far enough away.
func (c *checkpoints) keep(prev, next *state, log *Log) {
	list := c.list()
	last, every := Position(0), Position(log.config.CheckpointEvery)
	if len(list) > 0 {
		last = list[len(list)-1].position
	}
	if next.position < last+every {
		return
	}
	c.trim(log)
	list = append(thin(c.list(), next.position, every), prev.withoutIndexes())
	c.kept.Store(&list)
}

// thin returns a copy of the list without checkpoints that are too close to the previous one. The minimum distance
// grows with their age.
func thin(list []*state, now, every Position) []*state {
	thinned := make([]*state, 0, len(list)+1)
	for _, s := range list {
		distance := every
		switch age := now - s.position; {
		case age > 64*every:
			distance = 32 * every
		case age > 8*every:
			distance = 4 * every
		}
		if n := len(thinned); n == 0 || s.position >= thinned[n-1].position+distance {
			thinned = append(thinned, s)
		}
	}
	return thinned
}

// trim drops states that are older than the log.
func (c *checkpoints) trim(log *Log) {
	list, first := c.list(), log.ring.First()
	keep := 0
	for keep < len(list) && list[keep].position < first {
		keep++
	}
	if keep > 0 {
		list = slices.Clone(list[keep:])
		c.kept.Store(&list)
	}
	for i := range c.recent {
		if s := c.recent[i].Load(); s != nil && s.position < first {
			c.recent[i].CompareAndSwap(s, nil)
		}
	}
}

func (c *checkpoints) list() []*state {
	if p := c.kept.Load(); p != nil {
		return *p
	}
	return nil
}

// find returns a state that is connected to current at exactly the position, or nil.
func (c *checkpoints) find(current *state, at Position) *state {
	for i := range c.recent {
		if s := c.recent[i].Load(); s != nil && s.connected(current) && s.position == at {
			return s
		}
	}
	return nil
}

// connected reports whether events alone lead from one of the states to the other.
func (s *state) connected(other *state) bool {
	return s.epoch == other.epoch && s.repairs == other.repairs
}

// remember keeps a reconstructed state for later readers of its revision.
func (c *checkpoints) remember(s *state) {
	c.recent[c.nextRecent.Add(1)%recentStates].Store(s)
}

// At returns the exact state at a revision, with that revision as its Revision. Lists of a past state use no index. The
// error is ErrTooOld if the log does not reach back that far, and ErrNotReady before the first load. At also fails if
// the cache has not reached the revision.
func (c *Cache) At(revision int64) (Snapshot, error) {
	current, newest := c.present()
	if !c.Ready() {
		return Snapshot{}, ErrNotReady
	}
	if revision > newest {
		return Snapshot{}, errFuture{Requested: revision, Current: newest}
	}
	if revision >= current.revision {
		return Snapshot{state: current, revision: revision}, nil
	}
	s, err := c.past(current, revision)
	if err != nil {
		return Snapshot{}, err
	}
	return Snapshot{state: s, revision: revision}, nil
}

// RevisionBefore returns a revision before the last n changes of keys with a prefix, or the log's oldest revision if
// the log has fewer.
func (c *Cache) RevisionBefore(n int, prefix string) int64 {
	current := c.current.Load()
	newest := current.events // the log may lack them, see past
	var room [1]*Event
	for at := current.position; n > 0 && at > 0; {
		at--
		var e *Event
		if last := len(newest) - 1; last >= 0 {
			e, newest = newest[last], newest[:last]
		} else if events, _, err := c.log.Read(at, room[:0]); err == nil && len(events) > 0 {
			e = events[0]
		} else {
			break
		}
		if !strings.HasPrefix(e.Key(), prefix) {
			continue
		}
		if n--; n == 0 {
			return max(e.Revision-1, c.log.Oldest())
		}
	}
	return c.log.Oldest()
}

// past reconstructs the state of a revision before current's.
func (c *Cache) past(current *state, revision int64) (*state, error) {
	// The log may lack the events of current, which is published first. It has all
	// others, so the search ends at current's own events at the latest.
	at, err := c.log.After(revision)
	if err != nil {
		return nil, err
	}
	if s := c.checkpoints.find(current, at); s != nil {
		return s, nil
	}
	base, events := current, current.events
	for _, s := range c.checkpoints.list() {
		if s.connected(current) && s.position >= at {
			base, events = s, nil
			break
		}
	}
	end := base.position - Position(len(events))
	if at > end { // After found it in the next epoch
		return nil, ErrTooOld{Requested: revision, Oldest: c.log.Oldest()}
	}
	before, _, lapped := c.log.ring.Read(at, nil, int(end-at))
	if lapped {
		return nil, ErrTooOld{Requested: revision, Oldest: c.log.Oldest()}
	}
	s := base.withoutIndexes().clone()
	s.undo(events)
	s.undo(before)
	if invariants.Enabled {
		invariants.Assertf(s.position == at, "cache: undone to %d, want %d", s.position, at)
		s.spotCheck()
	}
	s.revision, s.exactTo = revision, revision
	c.checkpoints.remember(s)
	return s, nil
}
