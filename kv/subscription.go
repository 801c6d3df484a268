package kv

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"

	"github.com/larder-io/larder/internal/invariants"
)

// ErrLost says that a subscription has missed events: the store compacted them or was replaced, or its queue was full.
// The owner must reload the state and call Loaded.
var ErrLost = errors.New("kv: subscription lost its position")

// unknown is a position in the history that is not known yet.
const unknown = -1

// Subscription delivers the events of a Tail under one prefix to one owner. The owner loads the state by a Range that
// began after Subscribe or ErrLost, and calls Loaded with its revision. Then it applies the batches that Next returns,
// and calls Applied. Any goroutine may call Fresh and Wait.
type Subscription struct {
	tail   *Tail
	prefix string

	// generation counts the changes of loaded and lastFresh; it is odd while the owner must load.
	generation atomic.Uint64
	loaded     atomic.Int64 // revision of the owner's last load
	// progress is the revision of the last applied batch, or of the load, if all batches are applied. Otherwise it is
	// the negated revision of the oldest batch that is not.
	progress atomic.Int64
	// lastFresh is the value of Fresh when the owner lost its position. The owner's state is still exact for that
	// revision.
	lastFresh atomic.Int64

	staged []Event // of the batch being routed; guarded by Tail.mu

	mu        sync.Mutex
	queue     []Batch
	unapplied []Batch // returned by Next, and not applied yet
	// Invariant: bytes is the sum over queue.
	bytes int64
	// since is the revision after which the queue has all events, unknown while the Tail has no position.
	since        int64
	subscribedAt int64 // since at Subscribe; 0 if it was unknown or the history was lost later
	// history is Store.Replacements when the owner learnt that it must load.
	history uint64
	lost    bool // Next must return ErrLost
	closed  bool
	wake    chan struct{} // signals that Next may have something to return
	changed chan struct{} // closed by changedLocked; nil without a waiter
	wanted  int64         // the lowest revision that a caller of whenChanged waits for
}

// Next returns the batches since the last call, in revision order. It blocks while there are none or the owner has not
// loaded. The owner must have applied all batches of the last call. Next returns ErrLost once for each loss.
func (s *Subscription) Next(ctx context.Context) ([]Batch, error) {
	for {
		batches, err := s.take()
		if batches != nil || err != nil {
			return batches, err
		}
		select {
		case <-s.wake:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

func (s *Subscription) take() ([]Batch, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.closed:
		return nil, fmt.Errorf("kv: subscription to %s: %w", s.prefix, ErrClosed)
	case s.lost && s.since != unknown:
		s.lost, s.history = false, s.tail.config.Store.Replacements()
		return nil, ErrLost
	case s.lost || !s.isLoaded() || len(s.queue) == 0:
		return nil, nil
	}
	if invariants.Enabled {
		invariants.Assertf(len(s.unapplied) == 0, "%d batches are not applied", len(s.unapplied))
	}
	s.unapplied, s.queue, s.bytes = s.queue, nil, 0
	return s.unapplied, nil
}

// Loaded records that the owner has loaded the state of a revision after Subscribe or ErrLost. It drops batches up to
// that revision.
func (s *Subscription) Loaded(revision int64) {
	s.tail.notice()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed || s.isLoaded() {
		return
	}
	if s.lost || revision < s.since || s.history != s.tail.config.Store.Replacements() {
		// The owner read the state before the loss, or read two histories.
		s.lost = true
		s.wakeLocked()
		return
	}
	keep := s.queue[:0]
	for _, batch := range s.queue {
		if batch.Revision > revision {
			keep = append(keep, batch)
		} else {
			s.bytes -= batch.bytes()
		}
	}
	clear(s.queue[len(keep):])
	s.queue = keep
	s.setProgressLocked(revision)
	s.loaded.Store(revision)
	s.generation.Add(1)
	s.changedLocked()
	s.wakeLocked()
}

// Applied records that the owner has applied n more of the batches that Next returned.
func (s *Subscription) Applied(n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if n == 0 || !s.isLoaded() { // the batches belong to the lost history
		return
	}
	if invariants.Enabled {
		var bytes int64
		for _, batch := range s.queue {
			bytes += batch.bytes()
		}
		invariants.Assertf(bytes == s.bytes, "queue of %d bytes counted as %d", bytes, s.bytes)
		invariants.Assertf(n <= len(s.unapplied), "applied %d of %d batches", n, len(s.unapplied))
	}
	applied := s.unapplied[n-1].Revision
	if s.unapplied = s.unapplied[n:]; len(s.unapplied) == 0 {
		s.unapplied = nil // free the values before the next call of Next
	}
	s.setProgressLocked(applied)
	if s.appliedRevision() >= s.wanted {
		s.changedLocked()
	}
}

// setProgressLocked sets progress. It uses applied only if all batches are applied.
func (s *Subscription) setProgressLocked(applied int64) {
	switch {
	case len(s.unapplied) > 0:
		s.progress.Store(-s.unapplied[0].Revision)
	case len(s.queue) > 0:
		s.progress.Store(-s.queue[0].Revision)
	default:
		s.progress.Store(applied)
	}
}

// Fresh returns a revision up to which the owner has applied everything. It returns 0 before the owner's first load,
// and once the store is known to have been replaced. It never decreases within one history of the store: when the owner
// loses its position, Fresh keeps its value until Loaded. See the package documentation for reloads.
func (s *Subscription) Fresh() int64 {
	fresh, _ := s.fresh()
	return fresh
}

// fresh returns Fresh, and whether the owner has loaded.
func (s *Subscription) fresh() (fresh int64, loaded bool) {
	for {
		generation := s.generation.Load()
		if loaded = generation&1 == 0; loaded {
			fresh = s.appliedRevision()
		} else {
			fresh = s.lastFresh.Load()
		}
		if invariants.Enabled {
			runtime.Gosched() // as in appliedRevision
		}
		if !s.tail.follows() {
			return 0, loaded // the revision belongs to a history that was replaced
		}
		if s.generation.Load() == generation { // after follows: the Tail may have begun to follow another history
			return fresh, loaded
		}
	}
}

// current is Fresh, but 0 while the owner must load.
func (s *Subscription) current() int64 {
	if fresh, loaded := s.fresh(); loaded {
		return fresh
	}
	return 0
}

// appliedRevision returns the revision up to which an owner that has loaded has applied everything.
// It is valid only if the generation did not change meanwhile.
//
// It never decreases. If all batches were applied, it is the revision that the Tail has seen. A
// later batch has a higher revision, so the revision before that batch is no lower.
func (s *Subscription) appliedRevision() int64 {
	seen := s.tail.seen.Load()
	if invariants.Enabled {
		runtime.Gosched() // makes races with a wrong order likely
	}
	// Read progress after seen: then everything up to seen is queued.
	progress := s.progress.Load()
	if progress < 0 {
		return -progress - 1
	}
	return max(seen, progress)
}

// Wait is WaitIn with the current history.
func (s *Subscription) Wait(ctx context.Context, revision int64) error {
	return s.WaitIn(ctx, s.tail.config.Store.Replacements(), revision)
}

// WaitIn blocks until the owner has applied everything up to revision. After a loss it waits for the reload. It returns
// ErrReplaced if the store's Replacements do not equal history, because the revision belongs to that history.
func (s *Subscription) WaitIn(ctx context.Context, history uint64, revision int64) error {
	for s.current() < revision {
		s.tail.notice()
		changed, loaded, err := s.whenChanged(revision)
		if err == nil && s.tail.config.Store.Replacements() != history {
			err = fmt.Errorf("kv: wait for revision %d: %w", revision, ErrReplaced)
		}
		if err == nil && loaded {
			err = s.tail.waitIn(ctx, history, revision)
		}
		if err != nil || s.current() >= revision {
			return err
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return fmt.Errorf("kv: wait for %s to reach revision %d: %w", s.prefix, revision, ctx.Err())
		}
	}
	return nil
}

// whenChanged returns a channel and whether the owner has loaded. The channel is closed when the owner has applied
// everything up to a revision, or next loads or loses its position.
func (s *Subscription) whenChanged(revision int64) (changed <-chan struct{}, loaded bool, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil, false, fmt.Errorf("kv: subscription to %s: %w", s.prefix, ErrClosed)
	}
	if s.changed == nil {
		s.changed, s.wanted = make(chan struct{}), revision
	}
	s.wanted = min(s.wanted, revision)
	return s.changed, s.isLoaded(), nil
}

func (s *Subscription) changedLocked() {
	if s.changed != nil {
		close(s.changed)
		s.changed = nil
	}
}

// Close ends the subscription: Next and Wait return ErrClosed.
func (s *Subscription) Close() {
	s.tail.mu.Lock()
	defer s.tail.mu.Unlock()
	s.tail.unsubscribeLocked(s)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return
	}
	s.closed = true
	s.unloadLocked()
	s.wakeLocked()
}

// push queues a batch unless the loaded state includes it. If the queue is too long, push drops it.
func (s *Subscription) push(batch Batch, limit int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.isLoaded() && batch.Revision <= s.loaded.Load() {
		return
	}
	s.bytes += batch.bytes()
	if s.bytes > limit {
		s.unloadLocked()
		s.lost, s.since = true, batch.Revision
		s.wakeLocked()
		return
	}
	s.queue = append(s.queue, batch)
	s.setProgressLocked(0)
	s.wakeLocked()
}

// lose drops the queue because the tail lost its position.
func (s *Subscription) lose() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.unloadLocked()
	s.lost, s.since = true, unknown
}

// Reload makes Next return ErrLost, and Wait wait until the owner has reloaded. It is for an owner that does not trust
// its state.
func (s *Subscription) Reload() {
	s.tail.mu.Lock()
	defer s.tail.mu.Unlock()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed || !s.isLoaded() {
		return // the owner will load
	}
	s.unloadLocked()
	s.lost = true
	if s.since != unknown {
		s.since = s.tail.seen.Load() // everything up to it was queued, and dropped
	}
	s.wakeLocked()
}

// restart sets the revision after which the queue will have all events, and the history of the store.
func (s *Subscription) restart(revision int64, history uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	// The owner may have loaded before the tail began.
	if s.isLoaded() && (s.loaded.Load() < revision || s.history != history) {
		s.unloadLocked()
		s.lost = true
	}
	if s.tail.history.Load() != history {
		s.lastFresh.Store(0)
		s.generation.Add(2)
	}
	s.since, s.subscribedAt = revision, 0
	s.changedLocked()
	s.wakeLocked()
}

// unloadLocked empties the queue, and makes the generation odd or raises it to the next odd number. Tail.mu is held,
// too, so that appliedRevision does not change.
func (s *Subscription) unloadLocked() {
	if s.isLoaded() {
		s.lastFresh.Store(s.appliedRevision())
		s.generation.Add(1)
	} else {
		s.generation.Add(2)
	}
	s.queue, s.unapplied, s.bytes = nil, nil, 0
	s.changedLocked()
}

func (s *Subscription) isLoaded() bool { return s.generation.Load()&1 == 0 }

func (s *Subscription) wakeLocked() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}
