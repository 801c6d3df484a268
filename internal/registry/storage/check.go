package storage

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"log/slog"
	"time"

	"github.com/larder-io/larder/cache"
	"github.com/larder-io/larder/kv"
)

const (
	// checkPage is the number of keys that are read from the store at once, checkPause the pause
	// between two pages.
	checkPage  = 10_000
	checkPause = 100 * time.Millisecond
)

// ErrInconsistent says that a cache and the store differ.
var ErrInconsistent = errors.New("registry: cache and store differ")

// ConsistencyChecker compares every cache with the store once in each interval, one cache after the other. Upstream's
// checker is in apiserver pkg/storage/cacher/delegator.go.
type ConsistencyChecker struct {
	// Resources lists the resources that exist now.
	Resources func() []*Resource

	// Interval is the time in which each cache is compared once; 0 disables the comparison.
	Interval time.Duration

	Logger *slog.Logger
}

// Run compares until ctx ends.
func (c *ConsistencyChecker) Run(ctx context.Context) error {
	if c.Interval <= 0 {
		<-ctx.Done()
		return ctx.Err()
	}
	for at := 0; ; at++ {
		all := c.Resources()
		if err := pause(ctx, max(c.Interval/time.Duration(max(len(all), 1)), time.Millisecond)); err != nil {
			return err
		}
		if len(all) == 0 {
			continue
		}
		at %= len(all)
		if r := all[at]; r.Cache != nil && r.Cache.Ready() {
			if c.record(r, r.check(ctx)); ctx.Err() != nil {
				return ctx.Err()
			}
		}
	}
}

// record counts the result of a comparison, and reloads a cache that differs. It ignores an error if the
// cache was retired or the server stopped meanwhile.
func (c *ConsistencyChecker) record(r *Resource, err error) {
	switch {
	case err == nil:
		r.checks.equal.Add(1)
	case errors.Is(err, context.Canceled) || r.Cache.Retired():
	case errors.Is(err, ErrInconsistent):
		r.checks.different.Add(1)
		c.Logger.Error("cache differs from the store, reloading", "resource", r.GroupResource, "error", err)
		r.Reflector.Reload()
	default:
		r.checks.failed.Add(1)
		c.Logger.Warn("cache could not be compared with the store", "resource", r.GroupResource, "error", err)
	}
}

// check compares the keys and revisions of the cache with the store's at the same revision. It reads no values, and
// no more than a page at a time.
func (r *Resource) check(ctx context.Context) error {
	snapshot := r.Cache.Snapshot()
	next, stop := iter.Pull(snapshot.All())
	defer stop()
	held, more := next()
	opts := kv.RangeOptions{Prefix: r.layout.root, Revision: snapshot.Revision(), Limit: checkPage, KeysOnly: true}
	_, err := kv.RangeAll(ctx, r.store, opts, func(page kv.Page) error {
		for _, item := range page.Items {
			rest := r.layout.rest(item.Key)
			if rest == "" {
				continue // the root itself is not an object
			}
			if !more || held.Key() != rest || held.Revision() != item.Revision {
				return inconsistent(held, rest, item.Revision, opts.Revision)
			}
			held, more = next()
		}
		if page.More {
			return pause(ctx, checkPause)
		}
		return nil
	})
	if err == nil && more {
		return inconsistent(held, "", 0, opts.Revision)
	}
	return err
}

// inconsistent names the first difference: the cache's object (nil at its end) and the
// store's key ("" at its end).
func inconsistent(held *cache.Object, key string, revision, at int64) error {
	cached, cachedRevision := "", int64(0)
	if held != nil {
		cached, cachedRevision = held.Key(), held.Revision()
	}
	return fmt.Errorf("%w at revision %d: cache has %q of %d, store has %q of %d", ErrInconsistent, at, cached, cachedRevision, key, revision)
}

// pause waits for d or until ctx ends.
func pause(ctx context.Context, d time.Duration) error {
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
