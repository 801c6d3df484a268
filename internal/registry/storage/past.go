package storage

import (
	"context"

	"k8s.io/apiserver/pkg/storage"

	"github.com/larder-io/larder/cache"
)

// CatchUp waits until the cache has the store's present revision.
func (r *Resource) CatchUp(ctx context.Context) error { return r.await.now(ctx) }

// Lags reports whether reads of r may be behind the store: upstream keeps a cache of it.
func (r *Resource) Lags() bool { return r.Cache != nil && !r.await.uncached() }

// GetPast returns the object that scope names as it was at a revision that the cache's log reaches. Errors
// are those of Get.
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
