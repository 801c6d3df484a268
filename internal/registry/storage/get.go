package storage

import (
	"context"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apiserver/pkg/storage"

	"github.com/larder-io/larder/cache"
)

// Get returns the object that scope names, not older than resourceVersion. "" means a linearizable read, "0" any
// cached state of a resource that kube-apiserver caches. It returns the errors of storage.Interface; a corrupt object
// is an error.
func (r *Resource) Get(ctx context.Context, scope Scope, resourceVersion string) (*cache.Object, error) {
	if err := scope.check(r.layout); err != nil {
		return nil, err
	}
	revision, err := r.codec.Versioner().ParseResourceVersion(resourceVersion)
	switch {
	case err != nil && r.uncached():
		return nil, badRevision(err)
	case err != nil:
		return nil, err
	}
	if err := r.goneError(); err != nil {
		return nil, err
	}
	if r.Cache == nil || !r.Cache.Ready() || scope.key() == "" { // the root is not the key of an object
		return r.getStored(ctx, scope.key(), revision)
	}
	if resourceVersion == "" || r.uncached() {
		if o, err := r.getPresent(ctx, scope.key(), revision); o != nil || err != nil {
			return o, err
		}
	} else if err := r.awaitRevision(ctx, revision); err != nil {
		return nil, err
	}
	o := r.Cache.Snapshot().Get(scope.key())
	switch {
	case o == nil:
		return nil, storage.NewKeyNotFoundError(r.layout.root+scope.key(), 0)
	case o.Err() != nil:
		// The value may have been repaired. If not, this returns upstream's error.
		return r.getStored(ctx, scope.key(), 0)
	}
	return o, nil
}

// getPresent waits until the cache has all writes before the call, and then returns nil. If the cache lags, it also
// reads the object from the store and returns the first result, because the read may hang. It fails if the store has
// not reached revision.
func (r *Resource) getPresent(ctx context.Context, key string, revision uint64) (o *cache.Object, err error) {
	lags := func(err error) bool { return apierrors.IsTooManyRequests(err) && !r.mirror.Outdated() }
	if _, err = r.awaitNow(ctx, revision, 0); !lags(err) || ctx.Err() != nil {
		return nil, err
	}
	reading, endRead := context.WithCancel(ctx)
	defer endRead()
	caughtUp := make(chan bool, 1)
	go func() { // it does not decode, so that a decoder panics on the caller's goroutine
		err := error(nil)
		for again := true; again; again = lags(err) && reading.Err() == nil {
			_, err = r.awaitNow(reading, revision, 0)
		}
		if err == nil {
			endRead()
		}
		caughtUp <- err == nil
	}()
	o, err = r.getStored(reading, key, revision)
	if endRead(); <-caughtUp {
		return nil, nil
	}
	return o, err
}

// CatchUp waits until the cache has reached the store's current revision.
func (r *Resource) CatchUp(ctx context.Context) error {
	_, err := r.awaitNow(ctx, 0, 0)
	return err
}

// MayBeStale reports whether reads of r with a resourceVersion may be behind the store, because kube-apiserver
// caches the resource.
func (r *Resource) MayBeStale() bool { return r.Cache != nil && !r.uncached() }

// GetPast returns the object that scope names as it was at a revision that the cache's log reaches. It returns the
// same errors as Get.
func (r *Resource) GetPast(scope Scope, revision int64) (*cache.Object, error) {
	if err := scope.check(r.layout); err != nil {
		return nil, err
	}
	past, err := r.Cache.At(revision)
	if err != nil {
		return nil, err
	}
	o := past.Get(scope.key())
	if o == nil {
		return nil, storage.NewKeyNotFoundError(r.layout.root+scope.key(), 0)
	}
	return o, o.Err()
}
