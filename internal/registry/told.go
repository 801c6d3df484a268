package registry

import (
	"context"

	"k8s.io/apiserver/pkg/storage"
)

// told is the newest revision that a list of the store was given, in the history of the
// store that replacements names.
type told struct {
	revision     int64
	replacements uint64
}

// tell takes down the revision of a list of what the store holds now.
func (r *Resource) tell(revision int64, replacements uint64) {
	next := &told{revision, replacements}
	for {
		last := r.told.Load()
		if last != nil && last.replacements == replacements && last.revision >= revision || r.told.CompareAndSwap(last, next) {
			return
		}
	}
}

// awaitTold is await for reads that take what is at hand: at the start the store may have
// told of more than the cache has seen, and no read shows less than another before it.
func (r *Resource) awaitTold(ctx context.Context, revision uint64) error {
	last := r.told.Load()
	if last == nil || uint64(last.revision) <= revision || last.replacements != r.store.Replacements() {
		return r.await(ctx, revision)
	}
	err := r.await(ctx, uint64(last.revision))
	if storage.IsTooLargeResourceVersion(err) {
		return r.notReady()
	}
	return err
}
