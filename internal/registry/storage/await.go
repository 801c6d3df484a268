package storage

import (
	"context"
	"errors"
	"fmt"
	"math"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apiserver/pkg/storage"

	"github.com/larder-io/larder/kv"
)

// freshness limits how long a read waits for the cache to reach a revision, as in
// apiserver pkg/storage/cacher/watch_cache.go.
const freshness = 3 * time.Second

// awaitNow waits until the cache has all writes before the call, and reports whether it had to wait. It fails, with a
// retry delay in seconds, if the store has not reached the revision least. Lists wait for a slow cache instead of
// reading the store, which could not serve them all. If the store is replaced meanwhile, awaitNow reads the revision
// again, because the first one belongs to another history.
func (r *Resource) awaitNow(ctx context.Context, least uint64, retry int) (waited bool, err error) {
	for {
		history := r.store.Replacements()
		began := time.Now()
		revision, err := r.store.Revision(ctx)
		trackStore(ctx, began)
		if err != nil {
			return waited, etcdError(err)
		}
		if least > uint64(revision) {
			return waited, r.notReached(least, uint64(revision), retry)
		}
		if waited = !r.hasReached(uint64(revision)); waited {
			err = r.waitFor(ctx, uint64(revision))
		}
		switch {
		case r.store.Replacements() != history && ctx.Err() == nil:
			continue
		case storage.IsTooLargeResourceVersion(err):
			return waited, apierrors.NewTooManyRequests("the watch cache has not caught up with the store, please try again later", 1)
		}
		return waited, err
	}
}

// awaitRevision waits until the cache has reached a requested revision in the store's current history.
func (r *Resource) awaitRevision(ctx context.Context, revision uint64) error {
	if !r.hasReached(revision) {
		if err := r.awaitCurrent(ctx); err != nil {
			return err
		}
	}
	if r.hasReached(revision) {
		r.reads.wait(r.GroupResource, 0)
		return nil
	}
	if err := r.checkReached(ctx, revision); err != nil {
		return err
	}
	return r.waitFor(ctx, revision)
}

// checkReached fails if the store has not reached revision and the read must not wait for it. If the store was
// replaced, the revision may belong to the lost history. Reads of uncached resources never wait for a future revision.
func (r *Resource) checkReached(ctx context.Context, revision uint64) error {
	if r.store.Replacements() == 0 && !r.uncached() {
		return nil
	}
	current, err := r.store.Revision(ctx)
	if err == nil && revision > uint64(current) {
		return r.notReached(revision, uint64(current), 0)
	}
	return etcdError(err)
}

// notReached returns the error of a read at a revision that the store, at current, has not reached.
func (r *Resource) notReached(revision, current uint64, retry int) error {
	if r.store.Replacements() > 0 {
		return lostRevision(revision, current)
	}
	return storage.NewTooLargeResourceVersionError(revision, current, retry)
}

// lostRevision returns the error of reads at a revision that may belong to a replaced history.
func lostRevision(revision, current uint64) error {
	return apierrors.NewResourceExpired(fmt.Sprintf("resource version %d is not in the store's history, which ends at %d", revision, current))
}

// hasReached reports whether the cache has reached revision in the store's current history.
func (r *Resource) hasReached(revision uint64) bool {
	return r.mirror.HasRevision(int64(min(revision, math.MaxInt64)))
}

// waitFor waits for a revision that the store has reached or will reach. It counts the wait in the metrics.
func (r *Resource) waitFor(ctx context.Context, revision uint64) error {
	began := time.Now()
	defer func() { r.reads.wait(r.GroupResource, time.Since(began)) }()
	for replaced := false; !r.hasReached(revision); {
		if err := r.awaitCurrent(ctx); err != nil {
			return err
		}
		if replaced && !r.hasReached(revision) {
			if err := r.checkReached(ctx, revision); err != nil {
				return err
			}
		}
		bounded, cancel := context.WithTimeout(ctx, freshness)
		err := r.Cache.Wait(bounded, int64(min(revision, math.MaxInt64)))
		cancel()
		replaced = errors.Is(err, kv.ErrReplaced)
		switch {
		case replaced:
		case err != nil && ctx.Err() == nil && errors.Is(err, context.DeadlineExceeded):
			return storage.NewTooLargeResourceVersionError(revision, uint64(r.Cache.Snapshot().Revision()), 1)
		case err != nil:
			return r.waitError(ctx, err)
		case !r.mirror.Outdated():
			return nil
		}
	}
	return nil
}

// waitError returns the error of a read whose wait failed with err.
func (r *Resource) waitError(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return storage.NewTimeoutError(r.layout.resource, "request did not complete within requested timeout")
	}
	if gone := r.goneError(); gone != nil { // retired while the read waited
		return gone
	}
	return err
}

// awaitCurrent waits until the cache has loaded the store's current history.
func (r *Resource) awaitCurrent(ctx context.Context) error {
	if !r.mirror.Outdated() {
		return nil
	}
	bounded, cancel := context.WithTimeout(ctx, freshness)
	defer cancel()
	for {
		// Revision 1 is always reached: Wait returns when the cache has loaded again.
		err := r.Cache.Wait(bounded, 1)
		switch {
		case err == nil && !r.mirror.Outdated():
			return nil
		case ctx.Err() == nil && errors.Is(err, context.DeadlineExceeded):
			return apierrors.NewTooManyRequests("storage is (re)initializing", 1)
		case err != nil && !errors.Is(err, kv.ErrReplaced):
			return r.waitError(ctx, err)
		}
	}
}

// awaitNotOlderThan waits for a read that accepts revision or a later one. Before the cache had loaded, lists were
// served from the store, which may be ahead of the cache. A later read must not return an older state.
func (r *Resource) awaitNotOlderThan(ctx context.Context, revision uint64) error {
	listed := r.listed.Load()
	if listed == nil || listed.replacements != r.store.Replacements() || uint64(listed.revision) <= revision {
		return r.awaitRevision(ctx, revision)
	}
	err := r.awaitRevision(ctx, uint64(listed.revision))
	if storage.IsTooLargeResourceVersion(err) {
		return r.notReady()
	}
	return err
}

// notReady returns the error of reads before the cache has loaded. Its retry delay grows with the time
// since the start (apiserver pkg/storage/cacher/util.go).
func (r *Resource) notReady() error {
	seconds := math.Exp(0.06 * time.Since(r.made).Seconds())
	return apierrors.NewTooManyRequests("storage is (re)initializing", int(min(max(seconds, 1), 30)))
}

// uncached reports whether kube-apiserver keeps no cache of the resource (kubernetes
// pkg/kubeapiserver/default_storage_factory_builder.go). Reads of such a resource differ:
//
//   - errors have the texts of uncached resources;
//   - limits apply at any revision;
//   - no read waits for a future revision;
//   - all reads without an exact revision are linearizable.
func (r *Resource) uncached() bool { return r.linearizable || r.layout.resource == "/events" }

// goneError returns the error of reads after the resource was retired, nil before.
func (r *Resource) goneError() error {
	if r.Cache == nil || !r.Cache.Retired() {
		return nil
	}
	//lint:ignore SA1019 the reason is Gone, not Expired
	return apierrors.NewGone(fmt.Sprintf("the CRD of %s has changed", r.codec.GroupResource))
}

// listedRevision is the revision of a list that was served from the store.
type listedRevision struct {
	revision     int64
	replacements uint64 // of the store before the list was read: the number of its history
}

// recordListed records the revision of a list of the store's current state.
func (s *storeReader) recordListed(revision int64, replacements uint64) {
	next := &listedRevision{revision, replacements}
	for {
		last := s.listed.Load()
		if last != nil && last.replacements == replacements && last.revision >= revision || s.listed.CompareAndSwap(last, next) {
			return
		}
	}
}
