package storage

import (
	"context"
	"errors"

	"k8s.io/apiserver/pkg/storage"

	"github.com/larder-io/larder/cache"
	"github.com/larder-io/larder/kv"
)

// List returns the objects that q asks for, appended to dst. Errors are those of
// storage.Interface.
func (r *Resource) List(ctx context.Context, q ListRequest, dst []*cache.Object) (Listing, error) {
	q = q.withSelectors()
	if err := q.Scope.check(r.layout); err != nil {
		return Listing{}, err
	}
	prefix := r.layout.root + q.prefix()
	exact, from, err := storage.ValidateListOptions(prefix, r.codec.Versioner(), q.options())
	if err != nil {
		return Listing{}, err
	}
	read := listing{q: q, exact: exact, from: from, prefix: prefix}
	if err := r.gone(); err != nil {
		return Listing{}, err
	}
	if exact > 0 && r.issued.replaced(exact) {
		return Listing{}, r.rangeError(ctx, kv.ErrCompacted, read)
	}
	history := r.store.Replacements()
	listing, err := r.listAt(ctx, read, dst)
	if err == nil {
		r.issued.issue(history, listing.Meta.Revision)
	}
	return listing, err
}

// listAt answers a request that upstream's rules were applied to.
func (r *Resource) listAt(ctx context.Context, read listing, dst []*cache.Object) (Listing, error) {
	q := read.q
	if r.Cache == nil || !r.Cache.Ready() {
		if r.Cache != nil && (q.Limit <= 0 || !q.Label.Empty() || !q.Field.Empty()) {
			return Listing{}, r.notReady()
		}
		return r.listStored(ctx, read, dst)
	}
	if q.ResourceVersion == "0" && !r.uncached() {
		read.q.Limit = 0
	}
	snapshot, err := r.snapshot(ctx, read)
	switch {
	case err == nil:
		listing, err := r.listCached(read, snapshot, dst)
		if err != nil && deletesUnread() { // of all corrupt objects, not the first
			read.exact = snapshot.Revision()
			return r.listStored(ctx, read, dst)
		}
		return listing, err
	case errors.Is(err, errNotKept):
		return r.listStored(ctx, read, dst)
	default:
		return Listing{}, err
	}
}
