package cache

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/larder-io/larder/kv"
)

const (
	// decodeChunk is the number of values that a worker takes at once. applyChunk is the number of events that are
	// decoded before they are applied, so that readers of a long backlog need not wait for its end.
	decodeChunk = 64
	applyChunk  = 1024

	// Pauses between attempts to load.
	retryFirst = 20 * time.Millisecond
	retryMax   = 5 * time.Second

	// maintainEvery is how often the log of an idle cache is trimmed and corrupt objects are retried.
	maintainEvery = 15 * time.Second
)

// ReflectorConfig configures a Reflector.
type ReflectorConfig struct {
	Store kv.Store
	// Sub is the subscription to Prefix; it is also the Cache's Source.
	Sub   *kv.Subscription
	Cache *Cache
	// Prefix of the resource's keys in the store, ending in "/". The rest of a key is the key in the cache.
	Prefix string
	// Since is the oldest revision from which the past may be replayed.
	Since int64
	// Workers is the number of goroutines that decode; 0 means GOMAXPROCS. More are useful if Decode waits for I/O.
	Workers int
	Logger  *slog.Logger // nil discards
}

// Reflector keeps a Cache equal to a prefix of a store. It loads all objects, applies the batches of its subscription,
// and reloads when the subscription loses its position. It is the only writer of its Cache.
//
// A subscription may begin in the past. Then the Reflector loads the objects of that revision and
// replays the events since, so that the Log reaches back to before the start. The Cache becomes
// ready at the revision that was current at the start. A reload goes back to an
// earlier revision only if the store was replaced. Replayed events count as new
// when they are applied, and are kept for three minutes longer.
type Reflector struct {
	config ReflectorConfig
	cache  *Cache

	Stats ReflectorStats

	decoding chan struct{} // semaphore of the workers that decode pages

	nextRetry string // owned by maintain: the first key of the next retry of corrupt objects

	// Owned by the goroutine that loads: the store's Replacements at the last load, and a function that ends the wait
	// for that load's replay.
	replacements uint64
	cancelReplay context.CancelFunc
}

// NewReflector makes a Reflector. Run does the work.
func NewReflector(config ReflectorConfig) (*Reflector, error) {
	switch {
	case config.Store == nil || config.Sub == nil || config.Cache == nil:
		return nil, errors.New("cache: a Reflector needs a store, a subscription and a cache")
	case config.Cache.config.Decode == nil:
		return nil, errors.New("cache: a Reflector needs Config.Decode of its cache")
	case !strings.HasSuffix(config.Prefix, "/"):
		return nil, fmt.Errorf("cache: prefix %q of a Reflector does not end in /", config.Prefix)
	}
	config.Workers = cmp.Or(config.Workers, runtime.GOMAXPROCS(0))
	config.Logger = cmp.Or(config.Logger, slog.New(slog.DiscardHandler))
	decoding := make(chan struct{}, config.Workers)
	return &Reflector{config: config, cache: config.Cache, decoding: decoding, cancelReplay: func() {}}, nil
}

// ReflectorStats counts the work of a Reflector.
type ReflectorStats struct {
	// Loaded counts the objects that the current or last load has decoded.
	Loaded atomic.Int64
	// Loads counts successful loads, and Objects the objects that all loads have read.
	Loads, Objects atomic.Int64
	// Decoded counts decoded values, and Offered values that were not decoded because the
	// write had offered an Object.
	Decoded, Offered atomic.Int64
}

// Reload starts a reload of the cache and does not wait for it.
func (r *Reflector) Reload() { r.config.Sub.Reload() }

// Run keeps the cache current until ctx ends, and then returns nil. It fails if the store or
// the subscription is closed before.
func (r *Reflector) Run(ctx context.Context) error {
	group, ctx2 := errgroup.WithContext(ctx)
	group.Go(func() error { return r.follow(ctx2, group) })
	r.maintain(ctx2) // on this goroutine, because a server has many caches (T5)
	if err := group.Wait(); ctx.Err() == nil {
		return err
	}
	return nil
}

// maintain drops old events from the log of an idle cache, reviews and builds learnt indexes, and retries corrupt
// objects, until ctx ends. It uses one goroutine and one timer, because a server has many caches (T4, T5).
func (r *Reflector) maintain(ctx context.Context) {
	tick := time.NewTicker(maintainEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-r.cache.learner.wanted:
			r.cache.learn()
		case now := <-tick.C:
			r.cache.discardOld(now)
			r.cache.review()
			r.retry(ctx)
		}
	}
}

func (r *Reflector) follow(ctx context.Context, group *errgroup.Group) error {
	for {
		if err := r.loadUntilDone(ctx, group); err != nil {
			return err
		}
		err := r.applyUntilLost(ctx)
		if !errors.Is(err, kv.ErrLost) {
			return err
		}
		r.config.Logger.Warn("subscription lost its position, reloading", "resource", r.cache.schema.name)
	}
}

// loadUntilDone retries load with backoff until it succeeds.
func (r *Reflector) loadUntilDone(ctx context.Context, group *errgroup.Group) error {
	for pause := retryFirst; ; pause = min(2*pause, retryMax) {
		err := r.load(ctx, group)
		if err == nil || errors.Is(err, kv.ErrClosed) {
			return err
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
		r.config.Logger.Warn("load failed, will retry", "resource", r.cache.schema.name, "error", err)
		select {
		case <-time.After(pause/2 + rand.N(pause/2)):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// load reads all objects of one revision and resets the cache to them.
func (r *Reflector) load(ctx context.Context, group *errgroup.Group) error {
	replacements := r.config.Store.Replacements()
	oldest, exactTo := r.config.Since, int64(0)
	if now, exact := r.cache.present(); replacements == r.replacements {
		oldest, exactTo = max(oldest, now.revision), exact // Fresh may be lower after the load
	}
	for {
		past, present, err := r.config.Sub.Begin(ctx, oldest)
		if err != nil {
			return fmt.Errorf("cache: load %s: %w", r.config.Prefix, err)
		}
		objects, revision, err := r.read(ctx, past)
		if past > 0 && errors.Is(err, kv.ErrCompacted) {
			oldest = past + 1
			continue
		}
		if err == nil && r.config.Store.Replacements() != replacements {
			err = kv.ErrReplaced // perhaps between two pages
		}
		if err != nil {
			return fmt.Errorf("cache: load %s: %w", r.config.Prefix, err)
		}
		// The cache was exact up to exactTo, so the store did not change between the cache's last
		// revision and exactTo. The loaded state is at least as new, so it is exact up to there, too.
		r.cache.reset(objects, revision, exactTo, replacements)
		r.config.Sub.Loaded(revision)
		r.cache.notify()
		r.Stats.Loads.Add(1)
		r.replacements = replacements
		r.replay(ctx, group, past, present)
		return nil
	}
}

// replay makes the cache ready: at once if the newest state was loaded, otherwise when it has reached
// the revision that was current at the start.
func (r *Reflector) replay(ctx context.Context, group *errgroup.Group, past, present int64) {
	r.cancelReplay()
	if past == 0 {
		r.cache.becomeReady()
		return
	}
	ctx, r.cancelReplay = context.WithCancel(ctx)
	group.Go(func() error {
		err := r.config.Sub.Wait(ctx, present)
		switch {
		case err == nil:
			r.cache.becomeReady()
		case ctx.Err() != nil || errors.Is(err, kv.ErrReplaced):
			return nil // the cache is reloaded, or Run ends
		}
		return err
	})
}

// read returns all objects of a revision, 0 being the newest, and that revision. It fetches a page while the previous
// one is decoded, so it holds at most two.
func (r *Reflector) read(ctx context.Context, at int64) ([]*Object, int64, error) {
	r.Stats.Loaded.Store(0)
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var pages [][]*Object
	awaitBefore := func() {}
	opts := kv.RangeOptions{Prefix: r.config.Prefix, Revision: at, Limit: kv.FittingPages, Borrow: r.cache.config.DecodeCopies}
	revision, err := kv.RangeAll(ctx, r.config.Store, opts, func(page kv.Page) error {
		objects, await := r.decodePage(ctx, page)
		pages = append(pages, objects)
		awaitBefore()
		awaitBefore = await
		return ctx.Err()
	})
	if err != nil {
		cancel()
	}
	awaitBefore()
	if err == nil {
		err = ctx.Err()
	}
	if err != nil {
		return nil, 0, err
	}
	all := slices.DeleteFunc(slices.Concat(pages...), func(o *Object) bool { return o == nil })
	return all, revision, nil
}

// decodePage starts to decode a page. The objects are complete when await returns, which also releases
// the page. Items that are not objects become nil. It stops early if ctx ends.
func (r *Reflector) decodePage(ctx context.Context, page kv.Page) (objects []*Object, await func()) {
	objects = make([]*Object, len(page.Items))
	// If there are more workers than processors, Decode waits for I/O. Smaller parts let all workers wait at the same
	// time.
	size := max(1, min(decodeChunk, len(page.Items)/r.config.Workers))
	var group sync.WaitGroup
	for first := 0; first < len(objects); first += size {
		last := min(first+size, len(objects))
		group.Go(func() {
			r.decoding <- struct{}{}
			defer func() { <-r.decoding }()
			if ctx.Err() == nil {
				r.decodeItems(ctx, page.Items[first:last], objects[first:last])
			}
		})
	}
	return objects, func() {
		group.Wait()
		page.Release()
	}
}

// decodeItems fills objects from items. Items that are not objects stay nil.
func (r *Reflector) decodeItems(ctx context.Context, items []kv.Item, objects []*Object) {
	for i := range items {
		if key := items[i].Key[len(r.config.Prefix):]; key != "" {
			objects[i] = r.decode(ctx, key, items[i].Value, items[i].Revision)
		}
	}
	r.Stats.Loaded.Add(int64(len(items)))
	r.Stats.Objects.Add(int64(len(items)))
}

// decode makes an Object of a value, from a write's offer or by Decode. If Decode panics, the value becomes a corrupt
// Object, so that the other keys are still served.
func (r *Reflector) decode(ctx context.Context, key string, value []byte, revision int64) (o *Object) {
	defer func() {
		if cause := recover(); cause != nil {
			err := fmt.Errorf("cache: panic while decoding %s%s: %v", r.config.Prefix, key, cause)
			r.config.Logger.Error("decoder panicked", "error", err)
			o = NewObject(ObjectConfig{Key: key, Revision: revision, Err: err, StoredSize: len(value)}, r.cache.schema)
		}
	}()
	if offered := r.cache.offers.take(key, value, revision); offered != nil {
		if o := offered.Object(revision); o != nil {
			r.Stats.Offered.Add(1)
			return o
		}
	}
	r.Stats.Decoded.Add(1)
	return r.cache.config.Decode(ctx, key, value, revision)
}

// applyUntilLost applies the subscription's batches. It returns ErrLost when
// the cache must be reloaded.
func (r *Reflector) applyUntilLost(ctx context.Context) error {
	for {
		batches, err := r.config.Sub.Next(ctx)
		if err != nil {
			return err
		}
		for len(batches) > 0 {
			n, events := 0, 0
			for n < len(batches) && (n == 0 || events+len(batches[n].Events) <= applyChunk) {
				events += len(batches[n].Events)
				n++
			}
			if err := r.apply(ctx, batches[:n]); err != nil {
				return err
			}
			batches = batches[n:]
		}
	}
}

// apply decodes the batches' values, in parallel when there are many, and applies
// them one revision after the other.
func (r *Reflector) apply(ctx context.Context, batches []kv.Batch) error {
	changes := make([][]Change, len(batches))
	var group errgroup.Group
	group.SetLimit(r.config.Workers)
	for i := 0; i < len(batches); {
		first, events := i, 0
		for ; i < len(batches) && events < decodeChunk; i++ {
			events += len(batches[i].Events)
		}
		part, decoded := batches[first:i], changes[first:i]
		work := func() error {
			for at := range part {
				decoded[at] = r.changes(ctx, part[at].Events)
			}
			return ctx.Err()
		}
		if len(part) < len(batches) {
			group.Go(work)
		} else if err := work(); err != nil { // few: not worth a goroutine
			return err
		}
	}
	if err := group.Wait(); err != nil {
		return err
	}
	now := time.Now()
	for i, batch := range batches {
		r.applyOne(batch.Revision, now, changes[i])
	}
	return nil
}

// replayedFor is how much longer replayed events are kept than others. After a crash all clients resume their watches
// at once, and in a large cluster the last succeed minutes later.
const replayedFor = 3 * time.Minute

// applyOne applies one batch. It calls OnAppend after Applied: a read that waits for the revision
// need not wait for the watchers.
func (r *Reflector) applyOne(revision int64, now time.Time, changes []Change) {
	if !r.cache.Ready() {
		now = now.Add(replayedFor)
	}
	changed := r.cache.apply(Batch{Revision: revision, Time: now, Changes: changes})
	r.config.Sub.Applied(1)
	if changed {
		r.cache.notify()
	}
}

func (r *Reflector) changes(ctx context.Context, events []kv.Event) []Change {
	changes := make([]Change, 0, len(events))
	for i := range events {
		e := &events[i]
		key := e.Key[len(r.config.Prefix):]
		switch {
		case key == "": // the prefix itself is not an object
		case e.Kind == kv.Delete:
			changes = append(changes, Change{Key: key})
		default:
			changes = append(changes, Change{Key: key, Object: r.decode(ctx, key, e.Value, e.Revision)})
		}
	}
	return changes
}
