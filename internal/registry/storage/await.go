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
	"github.com/larder-io/larder/watch/mirror"
)

// freshness limits how long a read waits for the cache to reach a revision, as in
// apiserver pkg/storage/cacher/watch_cache.go.
const freshness = 3 * time.Second

// awaiter makes reads wait until the cache is fresh enough for them.
type awaiter struct {
	*stored
	mirror *mirror.Mirror           // nil: no read waits
	waited func(took time.Duration) // counts the wait of a read
	fresh  bool                     // Config.Fresh
	made   time.Time
}

// now waits until the cache has seen all writes before the call, and reports whether it had to wait. It fails, with a
// retry delay in seconds, if the store has not reached the revision least. Lists of a cache that cannot keep up wait;
// they are never sent to the store, which could not serve them all. If the store is replaced meanwhile, now reads the
// revision again, because the first one belongs to another history.
func (w *awaiter) now(ctx context.Context, least uint64, retry int) (waited bool, err error) {
	for {
		history := w.store.Replacements()
		began := time.Now()
		revision, err := w.store.Revision(ctx)
		trackStore(ctx, began)
		if err != nil {
			return waited, etcdError(err)
		}
		if least > uint64(revision) {
			return waited, w.unreached(least, uint64(revision), retry)
		}
		waited, err = w.reached(ctx, uint64(revision))
		switch {
		case w.store.Replacements() != history && ctx.Err() == nil:
			continue
		case storage.IsTooLargeResourceVersion(err):
			return waited, apierrors.NewTooManyRequests("the watch cache has not caught up with the store, please try again later", 1)
		}
		return waited, err
	}
}

// revision waits until the cache shows the store's own history up to a revision that a client requested.
func (w *awaiter) revision(ctx context.Context, revision uint64) error {
	if !w.shows(revision) {
		if err := w.current(ctx); err != nil {
			return err
		}
	}
	if w.shows(revision) {
		w.waited(0)
		return nil
	}
	if err := w.refuse(ctx, revision); err != nil {
		return err
	}
	_, err := w.reached(ctx, revision)
	return err
}

// refuse fails if the store has not reached revision and no read may wait for it: in a store that was replaced, the
// revision may belong to the lost history, and reads of uncached resources never wait for a future revision.
func (w *awaiter) refuse(ctx context.Context, revision uint64) error {
	if w.store.Replacements() == 0 && !w.uncached() {
		return nil
	}
	current, err := w.store.Revision(ctx)
	if err == nil && revision > uint64(current) {
		return w.unreached(revision, uint64(current), 0)
	}
	return etcdError(err)
}

// unreached returns the error of a read at a revision that the store, at current, has not reached.
func (w *awaiter) unreached(revision, current uint64, retry int) error {
	if w.store.Replacements() > 0 {
		return lostRevision(revision, current)
	}
	return storage.NewTooLargeResourceVersionError(revision, current, retry)
}

// lostRevision returns the error of reads at a revision that may belong to a replaced history.
func lostRevision(revision, current uint64) error {
	return apierrors.NewResourceExpired(fmt.Sprintf("resource version %d is not in the store's history, which ends at %d", revision, current))
}

// shows reports whether the cache shows the store's own history, up to revision.
func (w *awaiter) shows(revision uint64) bool {
	return w.mirror.Shows(int64(min(revision, math.MaxInt64)))
}

// reached waits for a revision that the store is expected to reach. It counts the wait, and reports whether it had to
// wait.
func (w *awaiter) reached(ctx context.Context, revision uint64) (waited bool, err error) {
	if w.shows(revision) {
		return false, nil
	}
	began := time.Now()
	defer func() { w.waited(time.Since(began)) }()
	return true, w.wait(ctx, revision)
}

// wait waits for a revision that the cache does not show yet.
func (w *awaiter) wait(ctx context.Context, revision uint64) error {
	for replaced := false; !w.shows(revision); {
		if err := w.current(ctx); err != nil {
			return err
		}
		if replaced && !w.shows(revision) {
			if err := w.refuse(ctx, revision); err != nil {
				return err
			}
		}
		bounded, cancel := context.WithTimeout(ctx, freshness)
		err := w.mirror.Cache.Wait(bounded, int64(min(revision, math.MaxInt64)))
		cancel()
		replaced = errors.Is(err, kv.ErrReplaced)
		switch {
		case replaced:
		case err != nil && ctx.Err() == nil && errors.Is(err, context.DeadlineExceeded):
			return storage.NewTooLargeResourceVersionError(revision, uint64(w.mirror.Snapshot().Revision()), 1)
		case err != nil:
			return w.waitError(ctx, err)
		case !w.mirror.Outdated():
			return nil
		}
	}
	return nil
}

// waitError returns the error of a read whose wait failed with err.
func (w *awaiter) waitError(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return storage.NewTimeoutError(w.layout.resource, "request did not complete within requested timeout")
	}
	if gone := w.gone(); gone != nil { // retired while the read waited
		return gone
	}
	return err
}

// current waits until the cache shows the store's own history.
func (w *awaiter) current(ctx context.Context) error {
	if !w.mirror.Outdated() {
		return nil
	}
	bounded, cancel := context.WithTimeout(ctx, freshness)
	defer cancel()
	for {
		// Revision 1 is always reached: Wait returns when the cache has loaded again.
		err := w.mirror.Cache.Wait(bounded, 1)
		switch {
		case err == nil && !w.mirror.Outdated():
			return nil
		case ctx.Err() == nil && errors.Is(err, context.DeadlineExceeded):
			return apierrors.NewTooManyRequests("storage is (re)initializing", 1)
		case err != nil && !errors.Is(err, kv.ErrReplaced):
			return w.waitError(ctx, err)
		}
	}
}

// notOlderThan waits for a read that accepts revision or a later one. Before the cache had loaded, lists were answered
// from the store, which may be ahead of the cache. A later read must not show an older state.
func (w *awaiter) notOlderThan(ctx context.Context, revision uint64) error {
	listed := w.listed.Load()
	if listed == nil || listed.replacements != w.store.Replacements() || uint64(listed.revision) <= revision {
		return w.revision(ctx, revision)
	}
	err := w.revision(ctx, uint64(listed.revision))
	if storage.IsTooLargeResourceVersion(err) {
		return w.notReady()
	}
	return err
}

// notReady returns the error of reads before the cache has loaded. Its retry delay grows with the time
// since the start (apiserver pkg/storage/cacher/util.go).
func (w *awaiter) notReady() error {
	seconds := math.Exp(0.06 * time.Since(w.made).Seconds())
	return apierrors.NewTooManyRequests("storage is (re)initializing", int(min(max(seconds, 1), 30)))
}

// uncached reports whether upstream keeps no cache of the resource (kubernetes
// pkg/kubeapiserver/default_storage_factory_builder.go). Reads of such a resource differ:
//
//   - errors have the texts of uncached resources;
//   - limits apply at any revision;
//   - no read waits for a future revision;
//   - all reads without an exact revision are linearizable.
func (w *awaiter) uncached() bool { return w.fresh || w.layout.resource == "/events" }

// gone returns the error of reads after the resource was retired, nil before.
func (w *awaiter) gone() error {
	if w.mirror == nil || !w.mirror.Cache.Retired() {
		return nil
	}
	//lint:ignore SA1019 the reason is Gone, not Expired
	return apierrors.NewGone(fmt.Sprintf("the CRD of %s has changed", w.codec.GroupResource))
}

// listedRevision is the revision of a list that was answered from the store.
type listedRevision struct {
	revision     int64
	replacements uint64 // of the store before the list was read: the number of its history
}

// noteListed records the revision of a list of the store's present state.
func (s *stored) noteListed(revision int64, replacements uint64) {
	next := &listedRevision{revision, replacements}
	for {
		last := s.listed.Load()
		if last != nil && last.replacements == replacements && last.revision >= revision || s.listed.CompareAndSwap(last, next) {
			return
		}
	}
}
