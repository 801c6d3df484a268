package kv

import (
	"context"
	"fmt"
	"slices"
	"sort"
)

// Wait blocks until everything up to revision was queued to the subscriptions. While no event comes, Run requests
// progress. Wait returns ErrReplaced if the store is replaced meanwhile.
func (t *Tail) Wait(ctx context.Context, revision int64) error {
	if t.seen.Load() >= revision {
		return nil
	}
	return t.waitIn(ctx, t.config.Store.Replacements(), revision)
}

// waitIn is Wait for a revision of the history with that number of replacements.
func (t *Tail) waitIn(ctx context.Context, history uint64, revision int64) error {
	w, err := t.enlist(history, revision)
	if w == nil {
		return err
	}
	select {
	case t.kick <- struct{}{}:
	default:
	}
	select {
	case <-w.done:
		return w.err
	case <-ctx.Done():
		t.mu.Lock()
		defer t.mu.Unlock()
		if at := slices.Index(t.waiters, w); at >= 0 {
			t.waiters = slices.Delete(t.waiters, at, at+1)
		}
		return fmt.Errorf("kv: wait for revision %d: %w", revision, ctx.Err())
	}
}

// enlist adds a waiter. It returns nil if the revision has been seen.
func (t *Tail) enlist(history uint64, revision int64) (*waiter, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.config.Store.Replacements() != history { // a later replacement wakes the waiter
		return nil, fmt.Errorf("kv: wait for revision %d: %w", revision, ErrReplaced)
	}
	if t.follows() && t.seen.Load() >= revision {
		return nil, nil
	}
	w := &waiter{history: history, revision: revision, done: make(chan struct{})}
	t.waiters = slices.Insert(t.waiters, t.waitersUntilLocked(revision), w)
	return w, nil
}

type waiter struct {
	history  uint64 // Store.Replacements of the revision's history
	revision int64
	done     chan struct{}
	err      error // set before done is closed
}

// waitersUntilLocked returns how many waiters wait for at most a revision.
func (t *Tail) waitersUntilLocked(revision int64) int {
	return sort.Search(len(t.waiters), func(i int) bool { return t.waiters[i].revision > revision })
}

// wakeWaitersLocked wakes the waiters for a revision that the Tail has reached. In a replaced history it wakes none,
// because the waiters may be for the new one. They wait until the Tail follows it.
func (t *Tail) wakeWaitersLocked(revision int64) {
	if !t.follows() {
		return
	}
	n := t.waitersUntilLocked(revision)
	for _, w := range t.waiters[:n] {
		close(w.done)
	}
	t.waiters = slices.Delete(t.waiters, 0, n)
}

// endWaitsLocked wakes the waiters for revisions of replaced histories.
func (t *Tail) endWaitsLocked() {
	history := t.config.Store.Replacements()
	t.waiters = slices.DeleteFunc(t.waiters, func(w *waiter) bool {
		if w.history == history {
			return false
		}
		w.err = ErrReplaced
		close(w.done)
		return true
	})
}
