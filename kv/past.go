package kv

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"time"
)

// responseTimeout limits one attempt of a request that is retried until it succeeds. The next attempt may reach another
// member.
const responseTimeout = 3 * time.Second

// retry repeats a request to the store until it succeeds. It fails only if the store was closed or replaced, or ctx
// ended.
func (t *Tail) retry(ctx context.Context, request func(context.Context) error) error {
	for delay := retryFirst; ; delay = min(2*delay, retryMax) {
		bounded, cancel := context.WithTimeout(ctx, responseTimeout)
		err := request(bounded)
		cancel()
		switch {
		case err == nil, errors.Is(err, ErrClosed), errors.Is(err, ErrReplaced):
			return err
		case ctx.Err() != nil:
			return ctx.Err()
		}
		t.config.Logger.Warn("store does not respond", "error", err)
		if err := sleep(ctx, delay); err != nil {
			return err
		}
	}
}

// currentRevision returns the store's revision and the Replacements of its history.
func (t *Tail) currentRevision(ctx context.Context) (revision int64, replacements uint64, err error) {
	err = t.retry(ctx, func(ctx context.Context) error {
		for {
			replacements = t.config.Store.Replacements()
			revision, err = t.config.Store.Revision(ctx)
			if err != nil || t.config.Store.Replacements() == replacements {
				return err
			}
		}
	})
	return revision, replacements, err
}

// reachBack returns how many revisions before the current one the Tail should begin: Replay, or more if these have
// fewer Ticks of the Clock.
func (t *Tail) reachBack(ctx context.Context, from position) (int64, error) {
	if t.config.Replay <= 0 || t.config.Replay >= from.present-from.floor {
		return t.config.Replay, nil
	}
	key, at := t.config.Clock.Prefix, from.present
	for tick := 0; tick <= t.config.Clock.Ticks && from.present-at < t.config.Clock.Limit; tick++ { // the first is not an interval yet
		page, _, err := t.rangeAt(ctx, key, at, 0)
		if err != nil {
			return 0, err
		}
		if len(page.Items) == 0 {
			break
		}
		last := slices.MaxFunc(page.Items, func(a, b Item) int { return cmp.Compare(a.Revision, b.Revision) })
		key, at = last.Key, last.Revision-1
	}
	return max(t.config.Replay, min(from.present-at, t.config.Clock.Limit)), nil
}

// oldestReadable returns the oldest revision >= low that a store at revision present can still
// read. It returns present if nothing older can be read.
//
// The key of the compaction protocol holds the last compacted revision, unless a process compacted without the
// protocol. So a binary search follows, which ends at once if the key was right.
func (t *Tail) oldestReadable(ctx context.Context, low, present int64) (int64, error) {
	if low >= present {
		return present, nil
	}
	bounded, cancel := context.WithTimeout(ctx, responseTimeout)
	item, _, _, _ := t.config.Store.Get(bounded, compactionKey) // fails if the etcd user may read only the prefix
	cancel()
	compacted, _ := strconv.ParseInt(string(item.Value), 10, 64) // 0 without an item
	low = min(max(low, compacted), present)
	// Invariant: revisions below low are unreadable or too old; high is readable.
	for try, high := low, present; low < high; try = low + (high-low)/2 {
		// The keys do not exist, so the cost does not depend on the size of the store.
		_, readable, err := t.rangeAt(ctx, t.config.Prefix+"health/", try, 1)
		switch {
		case err != nil:
			return 0, err
		case readable:
			high = try
		default:
			low = try + 1
		}
	}
	return low, nil
}

// replayStart returns the revision after which events are replayed: past, or a later one if TailConfig.ReplayFrom
// returns one.
func (t *Tail) replayStart(ctx context.Context, past, present int64) (from int64, err error) {
	if t.config.ReplayFrom == nil || past == present {
		return past, nil
	}
	err = t.retry(ctx, func(ctx context.Context) error {
		from, err = t.config.ReplayFrom(ctx, past, present)
		return err
	})
	return from, err
}

// rangeAt returns the keys below a prefix at a revision, without their values. ok is false if the revision was
// compacted.
func (t *Tail) rangeAt(ctx context.Context, prefix string, revision, limit int64) (page Page, ok bool, err error) {
	err = t.retry(ctx, func(ctx context.Context) error {
		page, err = t.config.Store.Range(ctx, RangeOptions{Prefix: prefix, Revision: revision, Limit: limit, KeysOnly: true})
		ok = err == nil
		switch {
		case errors.Is(err, ErrCompacted):
			return nil
		case errors.Is(err, ErrFutureRevision): // the store had reached it
			return fmt.Errorf("%w: %w", ErrReplaced, err)
		}
		return err
	})
	return page, ok, err
}

// Begin blocks until the Tail has a position in the store's history. It returns the revision past at which the owner
// should load: the oldest revision >= oldest that the Tail followed and the store still has. Next then delivers all
// later events. present is the store's revision when the Tail began. Both are 0 if there is no such past, and the owner
// loads the newest state.
//
// For an owner that subscribed after the Tail had begun, and has not loaded before, present is the
// Tail's revision at that time. Earlier events are read from the store.
//
// The store may compact the past at any time; then the owner calls Begin again, with a higher oldest. If
// [TailConfig.Replay] is 0, Begin does not wait.
func (s *Subscription) Begin(ctx context.Context, oldest int64) (past, present int64, err error) {
	if s.tail.config.Replay <= 0 {
		return 0, 0, nil
	}
	at, err := s.awaitBeginning(ctx)
	if at.past == 0 || oldest <= at.past && !at.late {
		return at.past, at.present, err
	}
	past, err = s.tail.oldestReadable(ctx, max(oldest, at.past), at.present)
	if err == nil && at.late && !at.quiet {
		past, err = s.tail.replayStart(ctx, past, at.present)
	}
	if err != nil {
		return 0, 0, fmt.Errorf("kv: find the past of %s: %w", s.prefix, err)
	}
	if past == at.present {
		return 0, 0, nil
	}
	if at.late {
		if err := s.fill(ctx, past, at); err != nil {
			s.tail.config.Logger.Warn("cannot replay past revisions", "prefix", s.prefix, "error", err)
			return 0, 0, ctx.Err()
		}
	}
	return past, at.present, nil
}

// beginning is where an owner can load: the state at past, and then the events up to present. Both are
// 0 if there is no past.
type beginning struct {
	past, present int64
	late          bool // the queue lacks the events between past and present
	quiet         bool // there are no events between past and present
}

// awaitBeginning waits until the Tail has a position in the history, and returns where the owner can load.
func (s *Subscription) awaitBeginning(ctx context.Context) (beginning, error) {
	for {
		changed, _, _ := s.whenChanged(math.MaxInt64)
		if at, known := s.beginningNow(); known {
			return at, nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return beginning{}, fmt.Errorf("kv: wait for the position of %s: %w", s.prefix, ctx.Err())
		}
	}
}

// beginningNow is awaitBeginning without waiting. known is false if the Tail has no position yet. It clears lost,
// because the owner is about to load.
func (s *Subscription) beginningNow() (at beginning, known bool) {
	t := s.tail
	t.mu.Lock()
	defer t.mu.Unlock()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed || s.isLoaded() {
		return beginning{}, true
	}
	if s.since == unknown {
		return beginning{}, false
	}
	s.lost, s.history = false, t.config.Store.Replacements()
	if s.since < s.subscribedAt { // fill has queued the events in between
		return beginning{past: s.since, present: s.subscribedAt}, true
	}
	if s.since <= t.past {
		return beginning{past: t.past, present: t.present}, true
	}
	if low := max(t.start, s.since-t.reach); s.loaded.Load() == 0 {
		return beginning{past: low, present: s.since, late: true, quiet: t.unchangedLocked(s, low)}, true
	}
	return beginning{}, true
}

// fillTimeout bounds reading the past of one subscription.
const fillTimeout = 10 * time.Second

// errTooLong says that a subscription's past events and queue exceed TailConfig.QueueBytes.
var errTooLong = errors.New("kv: too many past events")

// fill reads the events after past up to at.present and puts them in front of the queue, which has all
// later ones. It fails if the subscription loses its position meanwhile.
func (s *Subscription) fill(ctx context.Context, past int64, at beginning) error {
	ctx, cancel := context.WithTimeout(ctx, fillTimeout)
	defer cancel()
	replacements := s.tail.config.Store.Replacements()
	var batches []Batch
	if !at.quiet { // etcd takes up to 100 ms to serve a watch of the past
		var err error
		if batches, err = s.tail.read(ctx, s.prefix, past, at.present); err != nil {
			return err
		}
	}
	var bytes int64
	for _, batch := range batches {
		bytes += batch.bytes()
	}
	s.tail.mu.Lock()
	defer s.tail.mu.Unlock()
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.since != at.present || s.tail.config.Store.Replacements() != replacements:
		return ErrLost
	case s.bytes+bytes > s.tail.config.QueueBytes:
		return errTooLong
	}
	s.queue = append(batches, s.queue...)
	s.bytes += bytes
	s.since = past
	return nil
}

// read returns the batches of a prefix after one revision up to another, which the
// store has reached. Its watch ends with ctx.
func (t *Tail) read(ctx context.Context, prefix string, after, until int64) ([]Batch, error) {
	responses := t.config.Store.Watch(ctx, prefix, after)
	silent := time.Tick(progressMax) // there may be no event after until
	var batches []Batch
	for reached := after; ; {
		select {
		case response, ok := <-responses:
			switch {
			case !ok:
				return nil, cmp.Or(ctx.Err(), errWatchEnded)
			case response.Err != nil:
				return nil, response.Err
			}
			if response.Progress > reached {
				reached = response.Progress
				t.advances.Add(1)
			}
			for _, batch := range response.Batches {
				if batch.Revision <= until {
					batches = append(batches, batch)
				}
			}
			if reached >= until {
				return batches, nil
			}
		case <-silent:
			if t.mayRequestProgress() {
				t.requestProgress(ctx)
			}
		}
	}
}

// mayRequestProgress reports whether a reader of the past may request progress. It returns false if another one has
// just done so, because each request causes a response in every watch.
func (t *Tail) mayRequestProgress() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	now := time.Now()
	if now.Sub(t.progressRequested) < progressMax/2 {
		return false
	}
	t.progressRequested = now
	return true
}
