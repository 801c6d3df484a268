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

// freshness is how long a read waits for the cache to reach a revision, as in
// apiserver pkg/storage/cacher/watch_cache.go.
const freshness = 3 * time.Second

// awaitNow waits until the cache has seen everything that was written before the
// call. A cache that cannot keep up makes its readers wait and never sends them to
// the store, which would then have to serve them all. If the store is replaced meanwhile,
// its revision is read again, because the one before is of another history.
func (r *Resource) awaitNow(ctx context.Context) error {
	for {
		history := r.store.Replacements()
		revision, err := r.store.Revision(ctx)
		if err != nil {
			return etcdError(err)
		}
		err = r.awaitReached(ctx, uint64(revision))
		switch {
		case r.store.Replacements() != history && ctx.Err() == nil:
			continue
		case storage.IsTooLargeResourceVersion(err):
			return apierrors.NewTooManyRequests("the watch cache has not caught up with the store, please try again later", 1)
		}
		return err
	}
}

// await waits until the cache shows the store's own history, and has seen everything up
// to revision, which a client named. If the store was replaced it refuses revisions that the
// store has not reached: they may be of the history before, and never come.
func (r *Resource) await(ctx context.Context, revision uint64) error {
	if r.shows(revision) {
		return nil
	}
	if err := r.awaitCurrent(ctx); err != nil {
		return err
	}
	if r.shows(revision) {
		return nil
	}
	if r.store.Replacements() > 0 {
		if err := r.refuseUnreached(ctx, revision); err != nil {
			return err
		}
	}
	if r.uncached() {
		if err := r.refuseFuture(ctx, revision, 0); err != nil {
			return err
		}
	}
	return r.awaitReached(ctx, revision)
}

// shows reports whether the cache shows the store's own history, up to revision.
func (r *Resource) shows(revision uint64) bool {
	return r.mirror.Shows(int64(min(revision, math.MaxInt64)))
}

// awaitReached is await for a revision that the store may be expected to reach.
func (r *Resource) awaitReached(ctx context.Context, revision uint64) error {
	for {
		if r.shows(revision) {
			return nil
		}
		if err := r.awaitCurrent(ctx); err != nil {
			return err
		}
		bounded, cancel := context.WithTimeout(ctx, freshness)
		err := r.Cache.Wait(bounded, int64(min(revision, math.MaxInt64)))
		cancel()
		switch {
		case errors.Is(err, kv.ErrReplaced):
			return r.await(ctx, revision) // which refuses a revision that may never come
		case err != nil && ctx.Err() == nil && errors.Is(err, context.DeadlineExceeded):
			return storage.NewTooLargeResourceVersionError(revision, uint64(r.Cache.Snapshot().Revision()), 1)
		case err != nil:
			return r.waitError(ctx, err)
		case !r.mirror.Outdated():
			return nil
		}
	}
}

// waitError is the error of a read that waited in vain.
func (r *Resource) waitError(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return storage.NewTimeoutError(r.layout.resource, "request did not complete within requested timeout")
	}
	if gone := r.gone(); gone != nil { // retired while the read waited
		return gone
	}
	return err
}

// awaitCurrent waits until the cache shows the store's own history.
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
		case err != nil && !errors.Is(err, kv.ErrReplaced):
			return r.reloading(ctx, err)
		}
	}
}

// reloading is the error of a read that waited, until err, for the cache to load from a
// store that was replaced.
func (r *Resource) reloading(ctx context.Context, err error) error {
	if ctx.Err() == nil && errors.Is(err, context.DeadlineExceeded) {
		return apierrors.NewTooManyRequests("storage is (re)initializing", 1)
	}
	return r.waitError(ctx, err)
}

// awaitListed is await for reads that any revision suffices for. Before the cache had loaded,
// lists were answered from the store, which may be ahead of the cache: a later read must not
// show an older state.
func (r *Resource) awaitListed(ctx context.Context, revision uint64) error {
	listed := r.listed.of(r.store.Replacements())
	if listed <= revision {
		return r.await(ctx, revision)
	}
	err := r.await(ctx, listed)
	if storage.IsTooLargeResourceVersion(err) {
		return r.notReady()
	}
	return err
}

// notReady is the error of reads before the cache has loaded. Clients are to retry after a
// time that grows with the time since the start (apiserver pkg/storage/cacher/util.go).
func (r *Resource) notReady() error {
	seconds := math.Exp(0.06 * time.Since(r.made).Seconds())
	return apierrors.NewTooManyRequests("storage is (re)initializing", int(min(max(seconds, 1), 30)))
}

// uncached reports whether upstream keeps no cache of the resource (kubernetes
// pkg/kubeapiserver/default_storage_factory_builder.go). What clients see of that is the
// same here: the texts of errors, that limits hold at any revision, and that reads do not
// wait for a revision of the future.
func (r *Resource) uncached() bool { return r.fresh || r.layout.resource == "/events" }

// refuseFuture fails if the store has not reached revision, with a hint after how
// many seconds to try again.
func (r *Resource) refuseFuture(ctx context.Context, revision uint64, retry int) error {
	current, err := r.store.Revision(ctx)
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
func (r *Resource) refuseUnreached(ctx context.Context, revision uint64) error {
	current, err := r.store.Revision(ctx)
	switch {
	case err != nil:
		return etcdError(err)
	case revision > uint64(current):
		return apierrors.NewResourceExpired(fmt.Sprintf("resource version %d is not in the store's history, which has come to %d", revision, current))
	}
	return nil
}
