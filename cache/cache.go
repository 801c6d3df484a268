package cache

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/larder-io/larder/internal/invariants"
)

// Source reports how far the cache has followed the store. *kv.Subscription is one.
type Source interface {
	// Fresh returns a revision up to which every change of this resource has been
	// applied to the cache, or 0 if that is not known. Between two loads of the cache
	// it never goes back.
	Fresh() int64
	// Wait returns when every change up to the revision has been applied.
	Wait(ctx context.Context, revision int64) error
}

// Config configures a Cache.
type Config struct {
	// Schema describes the resource. Required.
	Schema *ResourceSchema
	// Decode makes the Object of a stored value. A Reflector calls it from several goroutines at once. A value that
	// cannot be decoded becomes an Object with Err, and the Reflector retries later. While Decode blocks, the cache
	// does not advance. Its result is not used once ctx has ended. The value is immutable and may be kept, unless
	// DecodeCopies is set. Required with a Reflector.
	Decode func(ctx context.Context, key string, value []byte, revision int64) *Object
	// DecodeCopies says that Decode keeps no part of a value. Then the value's memory is reused after Decode returns.
	DecodeCopies bool
	// Source reports how far the cache has followed the store. If it is nil, Fresh is the last applied revision, and
	// Wait does not wait.
	Source Source
	// Log limits how far back the log reaches.
	Log LogConfig
	// OnAppend, if set, is called by the writer after every Apply and Reset, without a
	// lock. It must not block.
	OnAppend func()
}

// Change is the new state of one object.
type Change struct {
	Key    string
	Object *Object // nil: deleted
}

// Batch has all changes of one revision.
type Batch struct {
	Revision int64
	// Time is when the batch arrived, or a later time to keep its events longer.
	Time    time.Time
	Changes []Change
}

// Cache is the current state and the recent past of one resource. Make one with New,
// load it with Reset and keep it current with Apply.
type Cache struct {
	config      Config
	schema      *ResourceSchema
	log         *Log
	offers      offers
	checkpoints checkpoints
	learner     *learner

	current atomic.Pointer[state]
	ready   chan struct{} // closed by the first Reset, or once a Reflector has replayed the past
	retired atomic.Bool   // written under mu

	mu sync.Mutex // held by the writer; guards the order of all stores to current, log and checkpoints
}

// New makes an empty cache that is not ready.
func New(config Config) (*Cache, error) {
	if config.Schema == nil {
		return nil, errors.New("cache: Config.Schema is missing")
	}
	for _, ix := range config.Schema.indexes {
		if (ix.Field == "") == (ix.Label == "") {
			return nil, fmt.Errorf("cache: index of %s must name a field or a label", config.Schema.name)
		}
	}
	c := &Cache{config: config, schema: config.Schema, learner: newLearner(), ready: make(chan struct{})}
	c.log = newLog(config.Log, &c.mu)
	c.current.Store(newState(c.schema))
	return c, nil
}

// Schema returns the schema of the cache's objects.
func (c *Cache) Schema() *ResourceSchema { return c.schema }

// Log returns the recent past.
func (c *Cache) Log() *Log { return c.log }

// Ready reports whether the cache has been loaded. It is not ready while a Reflector replays the past, because its
// state may be older than reads from the previous process.
func (c *Cache) Ready() bool {
	select {
	case <-c.ready:
		return true
	default:
		return false
	}
}

// Retired reports whether the cache was retired.
func (c *Cache) Retired() bool { return c.retired.Load() }

// WaitReady waits for the cache to be loaded.
func (c *Cache) WaitReady(ctx context.Context) error {
	if c.Ready() { // even if ctx has ended
		return nil
	}
	select {
	case <-c.ready:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("%w: %w", ErrNotReady, context.Cause(ctx))
	}
}

// Wait returns when a Snapshot taken afterwards is at the revision or later. Without a Source it
// does not wait, but fails if the revision is not applied.
func (c *Cache) Wait(ctx context.Context, revision int64) error {
	if err := c.WaitReady(ctx); err != nil {
		return err
	}
	if c.config.Source != nil {
		// Ask the source even if the revision was reached long ago: after the store was replaced, the cache's revision
		// may be of the previous history.
		return c.config.Source.Wait(ctx, revision)
	}
	if applied := c.current.Load().revision; applied < revision {
		return errFuture{Requested: revision, Current: applied}
	}
	return nil
}

// Reset replaces all objects with those of a revision and starts a new epoch.
// The objects may be in any order, must be new, and must have unique keys.
func (c *Cache) Reset(objects []*Object, revision int64) {
	c.reset(objects, revision, 0, c.current.Load().history)
	c.becomeReady()
	c.notify()
}

func (c *Cache) becomeReady() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.Ready() {
		close(c.ready)
	}
}

// reset is Reset without becoming ready and without calling OnAppend. exactTo is the
// revision up to which the state is known to be exact, if that is later than revision;
// history is the store's, see Snapshot.History.
func (c *Cache) reset(objects []*Object, revision, exactTo int64, history uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.retired.Load() {
		return
	}
	old := c.current.Load()
	next := newState(c.schema)
	next.pivots, next.learner = old.pivots, c.learner
	for _, ix := range old.indexes {
		if ix.learnt != nil {
			next.addIndex(ix.Index, ix.learnt)
		}
	}
	for _, o := range objects {
		next.put(o)
	}
	next.revision, next.exactTo, next.history = revision, max(revision, exactTo), history
	c.beginEpochLocked(next, old)
}

// beginEpochLocked publishes next as the first state of an epoch, and retires the objects of old.
func (c *Cache) beginEpochLocked(next, old *state) {
	c.log.restart(next.revision)
	c.checkpoints.trim(c.log)
	c.offers.clear()
	next.position, next.epoch = c.log.Next(), old.epoch+1
	c.publish(next)
	old.objects.Ascend(func(o *Object) bool {
		o.retire()
		return true
	})
}

// Retire stops all changes of the cache and frees its part of the Budget. The Log drops everything, in a new epoch.
// Snapshots still show the last state, at its revision.
func (c *Cache) Retire() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.retired.Load() {
		return
	}
	c.retired.Store(true)
	last := c.current.Load()
	next := *last
	next.events, next.learner = nil, nil
	c.beginEpochLocked(&next, last)
	c.schema.budget.bodies.Add(-next.bytes)
}

// Apply brings the cache to the next revision. A batch that is not newer than
// the cache changes nothing.
func (c *Cache) Apply(batch Batch) {
	if c.apply(batch) {
		c.notify()
	}
}

// apply is Apply without calling OnAppend. It reports whether the cache has changed.
func (c *Cache) apply(batch Batch) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	prev := c.current.Load()
	if prev.epoch == 0 {
		panic(fmt.Sprintf("cache: Apply of revision %d before Reset", batch.Revision))
	}
	if batch.Revision <= prev.revision || c.retired.Load() {
		return false
	}
	next := prev.apply(batch, c.log.clock(batch.Time))
	c.checkpoints.keep(prev, next, c.log)
	c.publish(next)
	c.offers.applied(batch.Revision) // after publish, so that Unapplied or the state always shows a written object
	return true
}

// notify calls OnAppend: the log has grown or was restarted.
func (c *Cache) notify() {
	if c.config.OnAppend != nil {
		c.config.OnAppend()
	}
}

// publish shows the state to readers, and then its events, so that a Snapshot is never behind the Log.
func (c *Cache) publish(next *state) {
	if invariants.Enabled {
		next.spotCheck()
	}
	c.schema.budget.bodies.Add(next.bytes - c.current.Load().bytes)
	c.current.Store(next)
	c.log.append(next.events)
}

// discardOld drops events that are too old from the log of a cache that gets no new batches. Apply does the same.
func (c *Cache) discardOld(now time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.log.discardOld(c.log.clock(now), 0, 0)
	c.checkpoints.trim(c.log)
}
