package kv

import (
	"container/heap"
	"context"
	"fmt"
)

// Wait blocks until everything up to revision was queued to the subscriptions. While no
// event comes, Run requests progress. Wait returns ErrReplaced if the store turns out to be
// another one meanwhile, where the revision means something else.
func (t *Tail) Wait(ctx context.Context, revision int64) error {
	if t.seen.Load() >= revision {
		return nil
	}
	return t.waitIn(ctx, t.store.Replacements(), revision)
}

// waitIn waits for a revision of the history that began with the replacement of that number.
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
		if w.index >= 0 {
			heap.Remove(&t.waiters, w.index)
		}
		return fmt.Errorf("kv: wait for revision %d: %w", revision, ctx.Err())
	}
}

// enlist returns nil if there is nothing to wait for.
func (t *Tail) enlist(history uint64, revision int64) (*waiter, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.store.Replacements() != history { // a later replacement wakes the waiter
		return nil, fmt.Errorf("kv: wait for revision %d: %w", revision, ErrReplaced)
	}
	if t.seen.Load() >= revision {
		return nil, nil
	}
	w := &waiter{revision: revision, done: make(chan struct{})}
	heap.Push(&t.waiters, w)
	return w, nil
}

// waiter waits until a revision has been seen.
type waiter struct {
	revision int64
	done     chan struct{}
	err      error // set before done is closed
	index    int   // in the heap, -1 outside
}

// waiterHeap is a heap.Interface ordered by revision.
type waiterHeap []*waiter

func (h waiterHeap) Len() int           { return len(h) }
func (h waiterHeap) Less(i, j int) bool { return h[i].revision < h[j].revision }
func (h waiterHeap) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].index, h[j].index = i, j
}

// Push appends a *waiter.
func (h *waiterHeap) Push(x any) {
	w := x.(*waiter)
	w.index = len(*h)
	*h = append(*h, w)
}

// Pop removes the last *waiter.
func (h *waiterHeap) Pop() any {
	last := len(*h) - 1
	w := (*h)[last]
	(*h)[last] = nil
	*h = (*h)[:last]
	w.index = -1
	return w
}
