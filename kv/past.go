package kv

import (
	"context"
	"errors"
	"fmt"
	"strconv"
)

// begin returns the revision at which to begin when the store is at present: the
// oldest that it can still read, but at most reach revisions back. It is present
// when nothing older can be read, and when the store does not say.
//
// The key of the compaction protocol tells where the history begins, unless
// somebody compacted without it; then it is searched for.
func (t *Tail) begin(ctx context.Context, present, reach int64) int64 {
	low := max(present-reach, 1)
	if reach <= 0 || low >= present {
		return present
	}
	item, found, _, err := t.store.Get(ctx, compactionKey)
	if err != nil {
		t.logger.Warn("history is not replayed", "error", err)
		return present
	}
	if found {
		if compacted, err := strconv.ParseInt(string(item.Value), 10, 64); err == nil {
			low = max(low, compacted)
		}
	}
	// Invariant: what is below low cannot be read or is too far, high can be read.
	for try, high := low, present; low < high; try = low + (high-low)/2 {
		readable, err := t.readable(ctx, try)
		switch {
		case err != nil:
			t.logger.Warn("history is not replayed", "error", err)
			return present
		case readable:
			high = try
		default:
			low = try + 1
		}
	}
	return min(low, present)
}

// readable reports whether the store's history reaches back to a revision. It asks
// for a single key, which costs the same however much the store holds.
func (t *Tail) readable(ctx context.Context, revision int64) (bool, error) {
	_, err := t.store.Range(ctx, RangeOptions{Prefix: compactionKey, Revision: revision, Limit: 1, KeysOnly: true})
	if errors.Is(err, ErrCompacted) {
		return false, nil
	}
	return err == nil, err
}

// Begin blocks until the Tail has begun and says where the owner should load. When
// the Tail began in the past, it is that revision: Next then delivers all that
// happened since, and present is the revision that the store had at the start, at
// which the owner must arrive before it is worth asking. Otherwise both are 0: the
// owner loads the newest state.
//
// The store may compact the past at any time; then the owner loads the newest
// state as well. A Tail that does not replay need not have begun.
func (s *Subscription) Begin(ctx context.Context) (past, present int64, err error) {
	t := s.tail
	if t.replay <= 0 {
		return 0, 0, nil
	}
	s.mu.Lock()
	loading := s.loading
	s.mu.Unlock()
	select {
	case <-t.begun:
	case <-loading:
	case <-ctx.Done():
		return 0, 0, fmt.Errorf("kv: wait for the place of %s: %w", s.prefix, ctx.Err())
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed || s.lost || s.isLoaded() || s.since != t.past {
		return 0, 0, nil
	}
	return t.past, t.present, nil
}
