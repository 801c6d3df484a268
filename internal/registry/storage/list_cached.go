package storage

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/larder-io/larder/cache"
)

// errNotKept says that a past revision is not in memory any more.
var errNotKept = errors.New("registry: revision is not kept")

// snapshot finds the state that a request asks for: apiserver
// pkg/storage/cacher/delegator/interface.go has the same rules.
func (r *Resource) snapshot(ctx context.Context, read listing) (cache.Snapshot, error) {
	switch {
	case read.exact > 0:
		if read.exact < r.store.Compaction() {
			return cache.Snapshot{}, errNotKept // the store returns the error
		}
		if read.q.single() {
			return cache.Snapshot{}, errNotKept // upstream reads it from the store
		}
		if err := r.await(ctx, uint64(read.exact)); err != nil {
			return cache.Snapshot{}, err
		}
		snapshot, err := r.Cache.At(read.exact)
		if err != nil {
			return snapshot, fmt.Errorf("%w: %w", errNotKept, err)
		}
		return snapshot, nil
	case read.q.ResourceVersion == "" || read.q.Continue != "" || r.fresh && read.q.ResourceVersion == "0":
		if err := r.awaitNow(ctx); err != nil {
			return cache.Snapshot{}, err
		}
	default:
		revision, err := r.codec.Versioner().ParseResourceVersion(read.q.ResourceVersion)
		if err != nil {
			return cache.Snapshot{}, err
		}
		if read.q.Limit > 0 { // otherwise the next page's revision could be compacted already
			revision = max(revision, uint64(r.store.Compaction()))
		}
		if err := r.awaitListed(ctx, revision); err != nil {
			return cache.Snapshot{}, err
		}
	}
	return r.Cache.Snapshot(), nil
}

// listCached answers from a snapshot.
func (r *Resource) listCached(read listing, snapshot cache.Snapshot, dst []*cache.Object) (Listing, error) {
	q := read.q
	revision := read.exact
	if revision == 0 {
		revision = snapshot.Revision()
	}
	if q.single() {
		return r.listOne(q, revision, snapshot.Get(q.key()), dst)
	}
	page, err := snapshot.List(cache.Query{
		Prefix: q.prefix(),
		From:   r.layout.rest(read.from),
		Label:  q.Label,
		Field:  q.Field,
		Limit:  int(q.Limit),
	}, dst)
	if err != nil {
		return Listing{}, listError(err)
	}
	out := Listing{Objects: page.Objects, Index: page.Index, Scanned: page.Scanned}
	out.Meta.Revision = revision
	if page.Next == "" {
		return out, nil
	}
	// In upstream's cache the token is relative to the key that was asked for, so that it
	// begins with a slash for REST storages. Both kinds of tokens are accepted.
	if !q.ended && !r.uncached() {
		read.prefix = strings.TrimSuffix(read.prefix, "/")
	}
	return out, r.setContinue(&out, read, r.layout.root+page.Next, page.Remaining)
}
