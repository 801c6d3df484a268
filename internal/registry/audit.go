package registry

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/larder-io/larder/cache"
	"github.com/larder-io/larder/kv"
)

const (
	// auditPage is how many keys are read from the store at once, auditPause how long
	// the store is left alone between two pages.
	auditPage  = 10_000
	auditPause = 100 * time.Millisecond
)

// ErrInconsistent says that a cache does not hold what the store does.
var ErrInconsistent = errors.New("registry: cache and store differ")

// AuditStats counts comparisons of a cache with the store, by how they ended.
type AuditStats struct {
	Equal, Different int64
	Failed           int64 // could not be made
}

type auditCounters struct{ equal, different, failed atomic.Int64 }

// AuditStats returns the counters.
func (r *Resource) AuditStats() AuditStats {
	return AuditStats{r.audits.equal.Load(), r.audits.different.Load(), r.audits.failed.Load()}
}

// auditor compares the caches with the store, one after the other, each once in an
// interval. It finds what nothing else would: a cache that has gone wrong answers
// quickly and looks well. What upstream does about it is in apiserver
// pkg/storage/cacher/delegator.go.
type auditor struct {
	resources []*Resource
	customs   *customs      // those that come and go; nil if there are none
	interval  time.Duration // 0 compares nothing
	logger    *slog.Logger
}

// run compares until ctx ends.
func (a *auditor) run(ctx context.Context) error {
	if a.interval <= 0 {
		<-ctx.Done()
		return ctx.Err()
	}
	for at := 0; ; at++ {
		all := a.all()
		if err := leaveAlone(ctx, max(a.interval/time.Duration(max(len(all), 1)), time.Millisecond)); err != nil {
			return err
		}
		if len(all) == 0 {
			continue
		}
		at %= len(all)
		if r := all[at]; r.Cache != nil && r.Cache.Ready() {
			if a.judge(r, r.audit(ctx)); ctx.Err() != nil {
				return ctx.Err()
			}
		}
	}
}

// all lists what there is to compare.
func (a *auditor) all() []*Resource {
	if a.customs == nil {
		return a.resources
	}
	return append(a.resources[:len(a.resources):len(a.resources)], a.customs.all()...)
}

// judge does what the end of a comparison asks for. A custom resource that has ended
// meanwhile holds nothing any more, which says nothing.
func (a *auditor) judge(r *Resource, err error) {
	switch {
	case err == nil:
		r.audits.equal.Add(1)
	case errors.Is(err, context.Canceled) || r.custom && !a.customs.holds(r):
	case errors.Is(err, ErrInconsistent):
		r.audits.different.Add(1)
		a.logger.Error("cache differs from the store, loading again", "resource", r.GroupResource, "error", err)
		r.Feed.Reload()
	default:
		r.audits.failed.Add(1)
		a.logger.Warn("cache could not be compared with the store", "resource", r.GroupResource, "error", err)
	}
}

// audit compares the keys and revisions of the cache with those that the store had at
// the same revision. It reads no values, and no more than a page at a time.
func (r *Resource) audit(ctx context.Context) error {
	snapshot := r.Cache.Snapshot()
	next, stop := iter.Pull(snapshot.All())
	defer stop()
	held, more := next()
	opts := kv.RangeOptions{Prefix: r.layout.root, Revision: snapshot.Revision(), Limit: auditPage, KeysOnly: true}
	for {
		page, err := r.store.Range(ctx, opts)
		if err != nil {
			return err
		}
		for _, item := range page.Items {
			rest := r.layout.rest(item.Key)
			if rest == "" {
				continue // the root itself is no object
			}
			if !more || held.Key() != rest || held.Revision() != item.Revision {
				return inconsistent(held, rest, item.Revision, opts.Revision)
			}
			held, more = next()
		}
		if !page.More || len(page.Items) == 0 {
			break
		}
		opts.Start = page.Items[len(page.Items)-1].Key + "\x00"
		if err := leaveAlone(ctx, auditPause); err != nil {
			return err
		}
	}
	if more {
		return inconsistent(held, "", 0, opts.Revision)
	}
	return nil
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

// leaveAlone waits.
func leaveAlone(ctx context.Context, pause time.Duration) error {
	timer := time.NewTimer(pause)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
