package storage

import (
	"context"
	"errors"
	"fmt"
	"math"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	apirequest "k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/storage"

	"github.com/larder-io/larder/cache"
	"github.com/larder-io/larder/kv"
	"github.com/larder-io/larder/watch/mirror"
)

// freshness is how long a read waits for the cache to reach a revision, as in
// apiserver pkg/storage/cacher/watch_cache.go.
const freshness = 3 * time.Second

// awaiter makes reads wait until the cache is as fresh as they ask for.
type awaiter struct {
	*stored
	cache  *cache.Cache   // nil: no read waits
	mirror *mirror.Mirror // of which cache is a part
	waits  *waitTally
	fresh  bool // all reads are linearizable
	made   time.Time
}

// now waits until the cache has seen everything that was written before the call.
func (w *awaiter) now(ctx context.Context) error {
	_, err := w.nowTimed(ctx)
	return err
}

// nowTimed is now, and reports whether it has waited for the cache. It waits until the cache has seen everything that was written before the
// call. A cache that cannot keep up makes its readers wait and never sends them to
// the store, which would then have to serve them all. If the store is replaced meanwhile,
// its revision is read again, because the one before is of another history.
func (w *awaiter) nowTimed(ctx context.Context) (waited bool, err error) {
	for {
		history := w.store.Replacements()
		revision, err := w.currentRevision(ctx)
		if err != nil {
			return waited, etcdError(err)
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

// currentRevision asks the store for its revision, and tells those who follow the request, if
// anybody does, how long that took.
func (w *awaiter) currentRevision(ctx context.Context) (int64, error) {
	if _, followed := apirequest.LatencyTrackersFrom(ctx); followed {
		defer trackStore(ctx, time.Now())
	}
	return w.store.Revision(ctx)
}

// revision waits until the cache shows the store's own history, and has seen everything up
// to revision, which a client named. If the store was replaced it refuses revisions that the
// store has not reached: they may be of the history before, and never come.
func (w *awaiter) revision(ctx context.Context, revision uint64) error {
	if w.shows(revision) {
		w.waits.none()
		return nil
	}
	if err := w.current(ctx); err != nil {
		return err
	}
	if w.shows(revision) {
		w.waits.none()
		return nil
	}
	if w.store.Replacements() > 0 {
		if err := w.refuseUnreached(ctx, revision); err != nil {
			return err
		}
	}
	if w.uncached() {
		if err := w.refuseFuture(ctx, revision, 0); err != nil {
			return err
		}
	}
	_, err := w.reached(ctx, revision)
	return err
}

// shows reports whether the cache shows the store's own history, up to revision.
func (w *awaiter) shows(revision uint64) bool {
	return w.mirror.Shows(int64(min(revision, math.MaxInt64)))
}

// reached is revision for one that the store may be expected to reach. It reports whether it
// has waited, which is counted then.
func (w *awaiter) reached(ctx context.Context, revision uint64) (waited bool, err error) {
	if w.shows(revision) {
		return false, nil
	}
	began := time.Now()
	defer func() { w.waits.add(time.Since(began)) }()
	return true, w.wait(ctx, revision)
}

// wait is reached for a revision that must be waited for.
func (w *awaiter) wait(ctx context.Context, revision uint64) error {
	for {
		if w.shows(revision) {
			return nil
		}
		if err := w.current(ctx); err != nil {
			return err
		}
		bounded, cancel := context.WithTimeout(ctx, freshness)
		err := w.cache.Wait(bounded, int64(min(revision, math.MaxInt64)))
		cancel()
		switch {
		case errors.Is(err, kv.ErrReplaced):
			return w.revision(ctx, revision) // which refuses a revision that may never come
		case err != nil && ctx.Err() == nil && errors.Is(err, context.DeadlineExceeded):
			return storage.NewTooLargeResourceVersionError(revision, uint64(w.cache.Snapshot().Revision()), 1)
		case err != nil:
			return w.waitError(ctx, err)
		case !w.mirror.Outdated():
			return nil
		}
	}
}

// waitError is the error of a read that waited in vain.
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
		err := w.cache.Wait(bounded, 1)
		switch {
		case err == nil && !w.mirror.Outdated():
			return nil
		case err != nil && !errors.Is(err, kv.ErrReplaced):
			return w.reloading(ctx, err)
		}
	}
}

// reloading is the error of a read that waited, until err, for the cache to load from a
// store that was replaced.
func (w *awaiter) reloading(ctx context.Context, err error) error {
	if ctx.Err() == nil && errors.Is(err, context.DeadlineExceeded) {
		return apierrors.NewTooManyRequests("storage is (re)initializing", 1)
	}
	return w.waitError(ctx, err)
}

// atHand is revision for reads that any revision suffices for. Before the cache had loaded,
// lists were answered from the store, which may be ahead of the cache: a later read must not
// show an older state.
func (w *awaiter) atHand(ctx context.Context, revision uint64) error {
	listed := w.listed.of(w.store.Replacements())
	if listed <= revision {
		return w.revision(ctx, revision)
	}
	err := w.revision(ctx, listed)
	if storage.IsTooLargeResourceVersion(err) {
		return w.notReady()
	}
	return err
}

// notReady is the error of reads before the cache has loaded. Clients are to retry after a
// time that grows with the time since the start (apiserver pkg/storage/cacher/util.go).
func (w *awaiter) notReady() error {
	seconds := math.Exp(0.06 * time.Since(w.made).Seconds())
	return apierrors.NewTooManyRequests("storage is (re)initializing", int(min(max(seconds, 1), 30)))
}

// uncached reports whether upstream keeps no cache of the resource (kubernetes
// pkg/kubeapiserver/default_storage_factory_builder.go). What clients see of that is the
// same here: the texts of errors, that limits hold at any revision, and that reads do not
// wait for a revision of the future.
func (w *awaiter) uncached() bool { return w.fresh || w.layout.resource == "/events" }

// refuseFuture fails if the store has not reached revision, with a hint after how
// many seconds to try again.
func (w *awaiter) refuseFuture(ctx context.Context, revision uint64, retry int) error {
	current, err := w.store.Revision(ctx)
	switch {
	case err != nil:
		return etcdError(err)
	case revision > uint64(current):
		return storage.NewTooLargeResourceVersionError(revision, uint64(current), retry)
	}
	return nil
}

// refuseUnreached fails if the store has not reached a revision: it is then made up, because
// no server can have sent it, or of a history that was replaced.
func (w *awaiter) refuseUnreached(ctx context.Context, revision uint64) error {
	current, err := w.store.Revision(ctx)
	switch {
	case err != nil:
		return etcdError(err)
	case revision > uint64(current):
		return apierrors.NewResourceExpired(fmt.Sprintf("resource version %d is not in the store's history, which has come to %d", revision, current))
	}
	return nil
}

// gone is the error of all reads once the resource is retired, else nil.
func (w *awaiter) gone() error {
	if w.cache == nil || !w.cache.Retired() {
		return nil
	}
	return apierrors.NewGone(fmt.Sprintf("the definition of %s has changed", w.codec.GroupResource()))
}
