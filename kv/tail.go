package kv

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/larder-io/larder/internal/invariants"
)

const (
	// While a goroutine waits for a revision and no event comes, progress is requested after progressFirst, and then at
	// growing intervals up to progressMax, which is kube-apiserver's (apiserver
	// pkg/storage/cacher/progress/watch_progress.go).
	progressFirst = time.Millisecond
	progressMax   = 100 * time.Millisecond
	// progressTimeout bounds one request; it blocks while the stream reconnects.
	progressTimeout = time.Second

	// A watch that did not advance for TailConfig.Heartbeat, by default heartbeatInterval, is compared with the store.
	// It is reopened if it is behind, does not catch up within heartbeatCatchUp, and does not advance within
	// heartbeatTimeout. The timeout doubles for the next watch, up to heartbeatMax, because a store may take long to
	// find the events after an old revision.
	heartbeatInterval = time.Second
	heartbeatTimeout  = 3 * time.Second
	heartbeatMax      = 5 * time.Minute
	heartbeatCatchUp  = 5 * time.Second

	// Pauses between attempts to reach the store.
	retryFirst = 10 * time.Millisecond
	retryMax   = time.Second

	// defaultQueueBytes is the default of TailConfig.QueueBytes.
	defaultQueueBytes = 256 << 20
)

// errStalled ends a watch that stays behind the store.
var errStalled = errors.New("kv: watch stalled")

// TailConfig configures a Tail.
type TailConfig struct {
	Store  Store
	Prefix string // of all keys to follow; a missing "/" at its end is added
	// QueueBytes is how much a subscription may leave unread before it loses its
	// position; 0 is 256 MiB.
	QueueBytes int64
	// Replay is how many revisions before the current one Run begins, if the store still has them: at the start, and
	// after a compaction of unseen events. Clock may raise it. With 0, Run begins at the current revision.
	Replay int64
	Clock  Clock
	// ReplayFrom, if set, returns the revision >= past after which events are replayed. It makes a replay shorter for
	// an etcd in this process, which reads all events of a replay into memory at once.
	ReplayFrom func(ctx context.Context, past, present int64) (int64, error)
	// Heartbeat is how long a watch may deliver nothing before it is compared with the store; 0 is a second.
	Heartbeat time.Duration
	Logger    *slog.Logger // nil discards
}

// Clock makes a Tail with Replay begin early enough to replay a number of Ticks. Revisions have no
// timestamps, but a key that is written at a fixed interval shows how many revisions a period has.
type Clock struct {
	Prefix string // of the keys written at the interval; the one written last counts
	Ticks  int
	Limit  int64 // maximum number of revisions; 0 for no Clock
}

// Tail watches everything under one prefix and gives each Subscription the events under its own prefix.
type Tail struct {
	config TailConfig // with its defaults; Prefix ends in "/"

	// seen is the revision up to which everything was queued to the subscriptions. It is 0 before the start and while
	// the position is lost.
	seen atomic.Int64
	// history is Store.Replacements when the watch found its position.
	history atomic.Uint64
	kick    chan struct{} // signals that a goroutine began to wait
	// advances counts responses with new progress, including those of watches by read.
	advances atomic.Int64
	// progress and losses count, and heard is when the last response came, in Unix nanoseconds: see TailState.
	progress, losses, heard atomic.Int64

	mu      sync.Mutex
	started bool // the watch's position in the store's history is known
	// past is the revision at which the Tail began, if it was before the store's revision at that time,
	// present. Otherwise both are 0.
	past, present int64
	// start is the revision at which the Tail began in the current history. reach is how many revisions later
	// subscriptions may go back.
	start   int64
	reach   int64
	began   atomic.Int64 // the store's revision then
	subs    map[string][]*Subscription
	waiters []*waiter               // in the order of their revisions
	cancel  context.CancelCauseFunc // ends the last watch; nil before the first
	touched []*Subscription         // scratch of routeLocked
	// lastChange has, for prefixes without a subscription at that time, the revision of the last change below them.
	// Changes before lastChangeFrom are not recorded.
	lastChange     map[string]int64
	lastChangeFrom int64
	// progressRequested is when a reader of the past last requested progress.
	progressRequested time.Time
}

// TailState describes what a Tail has received.
type TailState struct {
	// Seen is the revision up to which the Tail has received all events; 0 while it cannot resume.
	Seen int64
	// Began is the store's revision when the Tail began to follow it, 0 before.
	Began int64
	// Progress counts responses without events, and Losses the times that all subscriptions had to reload.
	Progress, Losses int64
	// Silence is how long ago the last response came, 0 before the first.
	Silence time.Duration
}

// State returns the current state.
func (t *Tail) State() TailState {
	s := TailState{Seen: t.seen.Load(), Began: t.began.Load(), Progress: t.progress.Load(), Losses: t.losses.Load()}
	if heard := t.heard.Load(); heard != 0 {
		s.Silence = max(time.Since(time.Unix(0, heard)), 0)
	}
	return s
}

// NewTail returns a Tail. Run makes it follow the store.
func NewTail(cfg TailConfig) *Tail {
	cfg.Prefix = strings.TrimSuffix(cfg.Prefix, "/") + "/"
	cfg.QueueBytes = cmp.Or(cfg.QueueBytes, defaultQueueBytes)
	cfg.Heartbeat = cmp.Or(cfg.Heartbeat, heartbeatInterval)
	cfg.Logger = cmp.Or(cfg.Logger, slog.New(slog.DiscardHandler))
	return &Tail{config: cfg, kick: make(chan struct{}, 1), subs: make(map[string][]*Subscription), lastChange: make(map[string]int64)}
}

// Run follows the store until ctx ends, and then returns nil.
func (t *Tail) Run(ctx context.Context) error {
	group, groupCtx := errgroup.WithContext(ctx)
	group.Go(func() error { return t.runWatch(groupCtx) })
	group.Go(func() error { return t.runProgress(groupCtx) })
	group.Go(func() error { return t.runHeartbeat(groupCtx) })
	if err := group.Wait(); ctx.Err() == nil {
		return err
	}
	return nil
}

// Subscribe returns a subscription to the keys under a prefix that ends in "/". The prefixes of two
// subscriptions must be equal or disjoint. The owner gets batches after it has loaded the state.
func (t *Tail) Subscribe(prefix string) *Subscription {
	if !strings.HasPrefix(prefix, t.config.Prefix) || !strings.HasSuffix(prefix, "/") {
		panic(fmt.Sprintf("kv: subscription to %q of a tail of %q", prefix, t.config.Prefix))
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if invariants.Enabled {
		for other := range t.subs {
			invariants.Assertf(other == prefix || !strings.HasPrefix(other, prefix), "kv: subscriptions to %s and %s", prefix, other)
		}
	}
	if subs := t.subscribedLocked(prefix); len(subs) > 0 && subs[0].prefix != prefix {
		panic(fmt.Sprintf("kv: subscriptions to %s and %s", subs[0].prefix, prefix))
	}
	s := &Subscription{tail: t, prefix: prefix, since: unknown, history: t.config.Store.Replacements(), wake: make(chan struct{}, 1)}
	s.generation.Store(1) // the owner must load
	if t.started {
		s.since = t.seen.Load()
		s.subscribedAt = s.since
	}
	t.subs[prefix] = append(t.subs[prefix], s)
	return s
}

func (t *Tail) unsubscribeLocked(s *Subscription) {
	t.recordCloseLocked(s.prefix)
	rest := slices.DeleteFunc(slices.Clone(t.subs[s.prefix]), func(other *Subscription) bool { return other == s })
	if t.subs[s.prefix] = rest; len(rest) == 0 {
		delete(t.subs, s.prefix)
	}
}

// runWatch finds a position in the store's history and follows the history, without a gap after a failure, until the
// position is lost. Then it starts over. In a replaced store it does not begin before the current revision (floor).
func (t *Tail) runWatch(ctx context.Context) error {
	var floor int64
	history := t.config.Store.Replacements()
	for {
		present, replacements, err := t.currentRevision(ctx)
		if err != nil {
			return err
		}
		if replacements != history {
			history, floor = replacements, present
		}
		err = t.followFrom(ctx, position{max(floor, 1), present, replacements})
		if !errors.Is(err, ErrCompacted) && !errors.Is(err, ErrReplaced) {
			return err
		}
		t.config.Logger.Warn("watch lost its position, reloading", "revision", t.seen.Load(), "error", err)
		t.lose()
	}
}

// position is where to begin: not before floor, in a store at revision present. replacements is the store's count.
type position struct {
	floor, present int64
	replacements   uint64
}

// followFrom follows the history from a position until that is lost.
func (t *Tail) followFrom(ctx context.Context, from position) error {
	reach, err := t.reachBack(ctx, from)
	if err != nil {
		return err
	}
	past, err := t.oldestReadable(ctx, max(from.floor, from.present-reach), from.present)
	if err != nil {
		return err
	}
	if past, err = t.replayStart(ctx, past, from.present); err != nil {
		return err
	}
	t.restart(past, reach, from)
	for delay := retryFirst; ; delay = min(2*delay, retryMax) {
		before := t.seen.Load()
		err := t.watch(ctx, before, from.replacements)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if errors.Is(err, ErrClosed) || errors.Is(err, ErrCompacted) || errors.Is(err, ErrReplaced) {
			return err
		}
		level := slog.LevelInfo
		if errors.Is(err, errStalled) {
			level = slog.LevelWarn
		}
		state := t.State()
		t.config.Logger.Log(ctx, level, "watch ended, resuming", "revision", state.Seen, "silence", state.Silence, "error", err)
		if t.seen.Load() > before {
			delay = retryFirst
		}
		if err := sleep(ctx, delay); err != nil {
			return err
		}
	}
}

// watch dispatches one watch's responses until it ends, and returns the reason. after is a revision of the history with
// that number of replacements.
func (t *Tail) watch(ctx context.Context, after int64, replacements uint64) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	t.setCancel(cancel)
	responses := t.config.Store.Watch(ctx, t.config.Prefix, after)
	if t.config.Store.Replacements() != replacements {
		return ErrReplaced // before the watch was open, so the watch does not end
	}
	for response := range responses {
		if response.Err != nil {
			return response.Err
		}
		t.dispatch(response)
	}
	return cmp.Or(context.Cause(ctx), errWatchEnded)
}

func (t *Tail) setCancel(cancel context.CancelCauseFunc) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.cancel = cancel
}

func (t *Tail) endWatch(cause error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.cancel != nil {
		t.cancel(cause)
	}
}

// restart begins to follow the history of a position: every event after the revision will be queued.
func (t *Tail) restart(revision, reach int64, from position) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.started, t.start, t.reach, t.lastChangeFrom = true, revision, reach, 0
	clear(t.lastChange)
	t.began.Store(from.present)
	if revision < from.present {
		t.past, t.present = revision, from.present
	}
	for _, subs := range t.subs {
		for _, s := range subs {
			s.restart(revision, from.replacements)
		}
	}
	t.history.Store(from.replacements) // after the subscriptions: until then Fresh is 0 in a replaced store
	t.endWaitsLocked()
	t.raiseLocked(revision)
}

// lose drops the position, first of the subscriptions, so that they do not combine seen with another history.
func (t *Tail) lose() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.loseLocked()
}

func (t *Tail) loseLocked() {
	if t.started { // otherwise notice has dropped the position
		t.losses.Add(1)
	}
	t.started, t.past, t.present = false, 0, 0
	for _, subs := range t.subs {
		for _, s := range subs {
			s.lose()
		}
	}
	t.seen.Store(0)
	t.endWaitsLocked()
}

// follows reports whether the store is still the one whose history is followed.
func (t *Tail) follows() bool { return t.history.Load() == t.config.Store.Replacements() }

// notice drops the position if the store is known to have been replaced. The watch will end for that reason, but a
// caller of Wait must not see the old history until then.
func (t *Tail) notice() {
	if t.follows() {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.started && !t.follows() {
		t.loseLocked()
	}
}

// dispatch queues a response's batches and raises seen afterwards.
func (t *Tail) dispatch(response WatchResponse) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !t.started {
		return // the position was dropped after the response was sent
	}
	for _, batch := range response.Batches {
		t.routeLocked(batch)
	}
	if len(response.Batches) == 0 {
		t.progress.Add(1)
	}
	t.heard.Store(time.Now().UnixNano())
	if response.Progress > t.seen.Load() {
		t.advances.Add(1)
		t.raiseLocked(response.Progress)
	}
}

// routeLocked queues each event to the subscriptions whose prefix its key has.
func (t *Tail) routeLocked(batch Batch) {
	for _, event := range batch.Events {
		subs := t.subscribedLocked(event.Key)
		if subs == nil {
			t.recordChangeLocked(event.Key, batch.Revision)
		}
		for _, s := range subs {
			if len(s.staged) == 0 {
				t.touched = append(t.touched, s)
			}
			s.staged = append(s.staged, event)
		}
	}
	for i, s := range t.touched {
		s.push(Batch{Revision: batch.Revision, Events: s.staged}, t.config.QueueBytes)
		s.staged = nil
		t.touched[i] = nil
	}
	t.touched = t.touched[:0]
}

// subscribedLocked returns the subscriptions whose prefix a key has.
func (t *Tail) subscribedLocked(key string) []*Subscription {
	for i := len(t.config.Prefix) - 1; i < len(key); i++ {
		if key[i] == '/' {
			if subs := t.subs[key[:i+1]]; subs != nil {
				return subs
			}
		}
	}
	return nil
}

// raiseLocked sets seen and wakes the goroutines that waited for it.
func (t *Tail) raiseLocked(revision int64) {
	t.seen.Store(revision)
	t.wakeWaitersLocked(revision)
}

func (t *Tail) waiting() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return len(t.waiters) > 0
}

// runProgress requests progress while a goroutine waits and nothing arrives.
func (t *Tail) runProgress(ctx context.Context) error {
	for {
		select {
		case <-t.kick:
		case <-ctx.Done():
			return ctx.Err()
		}
		for delay := progressFirst; t.waiting(); {
			before := t.seen.Load()
			if err := t.pause(ctx, delay); err != nil {
				return err
			}
			if t.seen.Load() != before {
				delay = progressFirst
				continue
			}
			delay = min(2*delay, progressMax)
			if t.waiting() {
				t.requestProgress(ctx)
			}
		}
	}
}

// pause waits for delay, but at most progressFirst after another goroutine begins to wait. So a goroutine that waits
// for a far future revision does not delay the others.
func (t *Tail) pause(ctx context.Context, delay time.Duration) error {
	timer := time.NewTimer(delay)
	defer timer.Stop()
	for {
		select {
		case <-timer.C:
			return nil
		case <-t.kick:
			if delay > progressFirst {
				delay = progressFirst
				timer.Reset(delay)
			}
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

func (t *Tail) requestProgress(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, progressTimeout)
	defer cancel()
	if err := t.config.Store.RequestProgress(ctx); err != nil && ctx.Err() == nil {
		t.config.Logger.Debug("request for progress failed", "error", err)
	}
}

// runHeartbeat compares a watch that does not advance with the store, and ends a watch that stays behind. The read also
// detects whether the store was replaced; then the store ends the watch.
func (t *Tail) runHeartbeat(ctx context.Context) error {
	ticks := time.Tick(t.config.Heartbeat)
	timeout := heartbeatTimeout
	var behind time.Time // since when the watch has been behind without advancing
	for last := t.advances.Load(); ; {
		select {
		case <-ticks:
		case <-ctx.Done():
			return ctx.Err()
		}
		began := time.Now()
		switch now := t.advances.Load(); {
		case now != last:
			last, timeout, behind = now, heartbeatTimeout, time.Time{}
		case !t.isBehind(ctx):
			behind = time.Time{}
		case behind.IsZero():
			behind = began
		case time.Since(behind) >= timeout:
			t.endWatch(errStalled)
			timeout, behind = min(2*timeout, heartbeatMax), time.Time{}
		}
	}
}

// isBehind compares the watch with the store, and waits a moment for it to catch up.
func (t *Tail) isBehind(ctx context.Context) bool {
	if t.seen.Load() == 0 {
		return false
	}
	bounded, cancel := context.WithTimeout(ctx, slowTimeout)
	defer cancel()
	revision, err := t.config.Store.Revision(bounded)
	if err != nil {
		return false
	}
	waiting, cancel := context.WithTimeout(ctx, min(t.config.Heartbeat, heartbeatCatchUp))
	defer cancel()
	return t.Wait(waiting, revision) != nil
}
