package cache

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"runtime"
	"strings"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/larder-io/larder/kv"
)

const (
	// ingestChunk is the number of values a worker takes at once, applyChunk the
	// number of events ingested before they are applied: a long backlog must not
	// wait for its own end.
	ingestChunk = 64
	applyChunk  = 1024

	// Pauses between attempts to load.
	retryFirst = 20 * time.Millisecond
	retryMax   = 5 * time.Second

	// forgetEvery is how often a log that nothing is appended to is trimmed.
	forgetEvery = 15 * time.Second
)

// FeedConfig is what a Feed is made of.
type FeedConfig struct {
	Store kv.Store
	// Sub is the subscription to Prefix; it is also the Cache's Source.
	Sub   *kv.Subscription
	Cache *Cache
	// Prefix of the resource's keys in the store, ending in "/". What follows it is
	// the key in the cache.
	Prefix string
	// Since is the revision at which the past begins at the earliest.
	Since int64
	// Workers is the number of goroutines that ingest; 0 is one per processor. More are
	// of use where Ingest waits for something.
	Workers int
	Logger  *slog.Logger // nil discards
}

// Feed keeps a Cache equal to a prefix of a store: it loads all objects, then
// applies what its subscription delivers, and loads again whenever the
// subscription has lost its place. It is the sole caller of Apply and Reset.
//
// Where the subscription begins in the past, it loads the objects of then and
// replays what happened since, so that the Log reaches back to before the start;
// the Cache is ready once it has come to what was the present at the start. A Cache
// that is loaded again begins no earlier than it was, unless the store was replaced.
// Replayed events count as having happened when they are applied.
type Feed struct {
	store   kv.Store
	sub     *kv.Subscription
	cache   *Cache
	prefix  string
	since   int64
	workers int
	logger  *slog.Logger

	loaded, total     atomic.Int64
	ingested, offered atomic.Int64
	loads             atomic.Int64

	scratch []Change // of the goroutine that applies

	// The goroutine that loads owns both: how often the store had been replaced before
	// the last load, and what makes nobody wait for that load's replay any more.
	replacements uint64
	overtake     context.CancelFunc
	replaying    chan replay
}

// replay is the way of a cache that was loaded with a past to its present.
type replay struct {
	ctx   context.Context // ends with Run, or when the cache is loaded again
	until int64
}

// NewFeed makes a Feed. Run does the work.
func NewFeed(config FeedConfig) (*Feed, error) {
	switch {
	case config.Store == nil || config.Sub == nil || config.Cache == nil:
		return nil, errors.New("cache: a Feed needs a store, a subscription and a cache")
	case config.Cache.ingest == nil:
		return nil, errors.New("cache: a Feed needs Config.Ingest of its cache")
	case !strings.HasSuffix(config.Prefix, "/"):
		return nil, fmt.Errorf("cache: prefix %q of a Feed does not end in /", config.Prefix)
	}
	f := &Feed{
		store:   config.Store,
		sub:     config.Sub,
		cache:   config.Cache,
		prefix:  config.Prefix,
		since:   config.Since,
		workers: config.Workers,
		logger:  config.Logger,

		overtake:  func() {},
		replaying: make(chan replay, 1),
	}
	if f.workers <= 0 {
		f.workers = runtime.GOMAXPROCS(0)
	}
	if f.logger == nil {
		f.logger = slog.New(slog.DiscardHandler)
	}
	return f, nil
}

// FeedStats says what a Feed has done.
type FeedStats struct {
	// Loaded and Total are the progress of the present or last load: objects
	// mirrored, and objects there are.
	Loaded, Total int64
	// Loads counts the loads that succeeded.
	Loads int64
	// Ingested counts values that were decoded, Offered those that the write path
	// had handed over.
	Ingested, Offered int64
}

// Stats gives the counters.
func (f *Feed) Stats() FeedStats {
	return FeedStats{
		Loaded:   f.loaded.Load(),
		Total:    f.total.Load(),
		Loads:    f.loads.Load(),
		Ingested: f.ingested.Load(),
		Offered:  f.offered.Load(),
	}
}

// Reload makes the cache load again, as after a loss. It does not wait for that.
func (f *Feed) Reload() { f.sub.Reload() }

// Run feeds the cache until ctx ends; then it returns nil. Any other end is an
// error: the store or the subscription was closed.
func (f *Feed) Run(ctx context.Context) error {
	group, ctx2 := errgroup.WithContext(ctx)
	group.Go(func() error { return f.follow(ctx2) })
	group.Go(func() error { return f.announce(ctx2) })
	group.Go(func() error { return f.learn(ctx2) })
	group.Go(func() error { return f.forget(ctx2) })
	group.Go(func() error { return f.retry(ctx2) })
	if err := group.Wait(); ctx.Err() == nil {
		return err
	}
	return nil
}

// announce makes the cache ready once what was loaded of the past was brought to
// the present.
func (f *Feed) announce(ctx context.Context) error {
	for {
		select {
		case r := <-f.replaying:
			switch err := f.sub.Wait(r.ctx, r.until); {
			case err == nil:
				f.cache.becomeReady()
			case r.ctx.Err() == nil && !errors.Is(err, kv.ErrReplaced): // then it is loaded again
				return err
			}
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// forget ages the log of a cache that nothing happens to.
func (f *Feed) forget(ctx context.Context) error {
	tick := time.NewTicker(forgetEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case now := <-tick.C:
			f.cache.Forget(now)
			f.cache.review()
		}
	}
}

// learn makes the indexes that the cache's queries deserve.
func (f *Feed) learn(ctx context.Context) error {
	for {
		select {
		case <-f.cache.learner.wanted:
			f.cache.learn()
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

func (f *Feed) follow(ctx context.Context) error {
	for {
		if err := f.loadUntilDone(ctx); err != nil {
			return err
		}
		err := f.applyUntilLost(ctx)
		if !errors.Is(err, kv.ErrLost) {
			return err
		}
		f.logger.Warn("subscription lost its place, loading again", "resource", f.cache.schema.name)
	}
}

// loadUntilDone repeats load, at growing intervals, until it succeeds.
func (f *Feed) loadUntilDone(ctx context.Context) error {
	for pause := retryFirst; ; pause = min(2*pause, retryMax) {
		err := f.load(ctx)
		if err == nil || errors.Is(err, kv.ErrClosed) {
			return err
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
		f.logger.Warn("loading failed, will be repeated", "resource", f.cache.schema.name, "error", err)
		select {
		case <-time.After(pause/2 + rand.N(pause/2)):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// load reads all objects of one revision and resets the cache to them.
func (f *Feed) load(ctx context.Context) error {
	replacements := f.store.Replacements()
	// From Begin on nobody else knows what was promised of what the cache holds.
	least, label := f.since, int64(0)
	if known := f.cache.settle(); replacements == f.replacements {
		least, label = max(least, f.cache.current.Load().revision), known
	}
	for {
		past, present, err := f.sub.Begin(ctx, least)
		if err != nil {
			return fmt.Errorf("cache: load %s: %w", f.prefix, err)
		}
		objects, revision, err := f.read(ctx, past)
		if past > 0 && errors.Is(err, kv.ErrCompacted) {
			least = past + 1
			continue
		}
		if err == nil && f.store.Replacements() != replacements {
			err = kv.ErrReplaced // between two pages, maybe
		}
		if err != nil {
			return fmt.Errorf("cache: load %s: %w", f.prefix, err)
		}
		if past == 0 {
			label = 0
		}
		// A state of the past is exact for what was promised: nothing happened until then.
		f.cache.reset(objects, revision, label, replacements)
		f.sub.Loaded(revision)
		f.cache.appended()
		f.loads.Add(1)
		f.replacements = replacements
		f.replay(ctx, past, present)
		return nil
	}
}

// replay has the cache become ready, at once if what was loaded is no past.
func (f *Feed) replay(ctx context.Context, past, present int64) {
	f.overtake()
	if past == 0 {
		f.cache.becomeReady()
		return
	}
	select {
	case <-f.replaying: // was not waited for yet
	default:
	}
	r := replay{until: present}
	r.ctx, f.overtake = context.WithCancel(ctx)
	f.replaying <- r
}

// read gives all objects of a revision, 0 being the newest, and which one that is.
// Pages are fetched while earlier ones are decoded.
func (f *Feed) read(ctx context.Context, at int64) ([]*Object, int64, error) {
	f.loaded.Store(0)
	f.total.Store(0)
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(f.workers)
	var chunks [][]*Object
	revision, err := kv.RangeAllAt(ctx, f.store, f.prefix, at, kv.FittingPages, func(page kv.Page) error {
		if f.total.Load() == 0 {
			f.total.Store(page.Count)
		}
		// Where many work, because they wait more than they work, a chunk is small.
		chunk := max(1, min(ingestChunk, len(page.Items)/f.workers))
		for items := page.Items; len(items) > 0; {
			part := items[:min(chunk, len(items))]
			items = items[len(part):]
			objects := make([]*Object, len(part))
			chunks = append(chunks, objects)
			group.Go(func() error {
				f.ingestItems(ctx, part, objects)
				return ctx.Err()
			})
		}
		return nil
	})
	if workersErr := group.Wait(); err == nil {
		err = workersErr
	}
	if err != nil {
		return nil, 0, err
	}
	all := make([]*Object, 0, f.loaded.Load())
	for _, objects := range chunks {
		for _, o := range objects {
			if o != nil {
				all = append(all, o)
			}
		}
	}
	return all, revision, nil
}

// ingestItems fills objects from items, leaving nil what is not an object.
func (f *Feed) ingestItems(ctx context.Context, items []kv.Item, objects []*Object) {
	for i := range items {
		if key := items[i].Key[len(f.prefix):]; key != "" {
			objects[i] = f.ingest(ctx, key, items[i].Value, items[i].Revision)
		}
	}
	f.loaded.Add(int64(len(items)))
}

// ingest makes an Object of a value. A decoder that panics has met a value it
// cannot understand; that must not take down the other keys.
func (f *Feed) ingest(ctx context.Context, key string, value []byte, revision int64) (o *Object) {
	defer func() {
		if cause := recover(); cause != nil {
			err := fmt.Errorf("cache: panic while decoding %s%s: %v", f.prefix, key, cause)
			f.logger.Error("decoder panicked", "error", err)
			o = NewObject(ObjectConfig{Key: key, Revision: revision, Err: err, Stored: len(value)}, f.cache.schema)
		}
	}()
	f.ingested.Add(1)
	return f.cache.ingest(ctx, key, value, revision)
}

// applyUntilLost applies what the subscription delivers. It returns ErrLost when
// the cache must be loaded again.
func (f *Feed) applyUntilLost(ctx context.Context) error {
	for {
		batches, err := f.sub.Next(ctx)
		if err != nil {
			return err
		}
		for len(batches) > 0 {
			n, events := 0, 0
			for n < len(batches) && (n == 0 || events+len(batches[n].Events) <= applyChunk) {
				events += len(batches[n].Events)
				n++
			}
			if err := f.apply(ctx, batches[:n]); err != nil {
				return err
			}
			batches = batches[n:]
		}
	}
}

// apply ingests the batches' values, in parallel when there are many, and applies
// them one revision after the other.
func (f *Feed) apply(ctx context.Context, batches []kv.Batch) error {
	if len(batches) == 1 { // the usual case
		f.scratch = f.changes(ctx, f.scratch[:0], batches[0].Events)
		if ctx.Err() == nil {
			f.applyOne(batches[0].Revision, time.Now(), f.scratch)
		}
		clear(f.scratch)
		return ctx.Err()
	}
	changes := make([][]Change, len(batches))
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(f.workers)
	for i := 0; i < len(batches); {
		first, events := i, 0
		for ; i < len(batches) && events < ingestChunk; i++ {
			events += len(batches[i].Events)
		}
		last := i
		work := func() error {
			for at := first; at < last; at++ {
				events := batches[at].Events
				changes[at] = f.changes(ctx, make([]Change, 0, len(events)), events)
			}
			return ctx.Err()
		}
		if first == 0 && last == len(batches) { // hardly any
			if err := work(); err != nil {
				return err
			}
			break
		}
		group.Go(work)
	}
	if err := group.Wait(); err != nil {
		return err
	}
	now := time.Now()
	for i, batch := range batches {
		f.applyOne(batch.Revision, now, changes[i])
	}
	return nil
}

// applyOne applies one batch. Readers learn of it before the watchers are told.
func (f *Feed) applyOne(revision int64, now time.Time, changes []Change) {
	tell := f.cache.apply(Batch{Revision: revision, Time: now, Changes: changes})
	f.sub.Applied(1)
	if tell {
		f.cache.appended()
	}
}

// changes appends to changes what the events do.
func (f *Feed) changes(ctx context.Context, changes []Change, events []kv.Event) []Change {
	for i := range events {
		e := &events[i]
		key := e.Key[len(f.prefix):]
		switch {
		case key == "": // the prefix itself is no object
		case e.Kind == kv.Delete:
			changes = append(changes, Change{Key: key})
		default:
			o := f.cache.offers.take(key, e.Revision)
			if o == nil {
				o = f.ingest(ctx, key, e.Value, e.Revision)
			} else {
				f.offered.Add(1)
			}
			changes = append(changes, Change{Key: key, Object: o})
		}
	}
	return changes
}
