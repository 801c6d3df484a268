package storage

import (
	"context"

	"golang.org/x/sync/errgroup"
	"k8s.io/apiserver/pkg/storage"

	"github.com/larder-io/larder/cache"
	"github.com/larder-io/larder/internal/registry/encoding"
	"github.com/larder-io/larder/kv"
)

// maxPage bounds how far a filtered read of the store widens its pages.
const maxPage = 10000

// listStored answers from the store, for revisions that are not kept and caches
// that have not loaded.
func (r *Resource) listStored(ctx context.Context, read listing, dst []*cache.Object) (Listing, error) {
	q, replacements := read.q, r.store.Replacements()
	opts := kv.RangeOptions{Prefix: read.prefix, Start: read.from, Limit: max(q.Limit, 0), Revision: read.exact}
	if q.single() {
		return r.listStoredOne(ctx, read, dst)
	}
	out := Listing{Objects: dst}
	for {
		page, err := r.store.Range(ctx, opts)
		if err != nil {
			return Listing{}, r.rangeError(ctx, err, read)
		}
		if err := r.atLeast(q.ResourceVersion, page.Revision); err != nil {
			return Listing{}, err
		}
		opts.Revision = page.Revision
		out.Meta.Revision = page.Revision
		if read.exact == 0 {
			r.listed.note(page.Revision, replacements)
		}
		full, err := r.take(ctx, &out, q, len(dst), page.Items)
		if err != nil {
			return Listing{}, err
		}
		if full >= 0 || !page.More || len(page.Items) == 0 {
			if err := out.corrupt.status(r); err != nil {
				return Listing{}, err
			}
			last := len(page.Items) - 1
			if full >= 0 {
				last = full
			}
			if last >= 0 && (page.More || last < len(page.Items)-1) {
				next := page.Items[last].Key + "\x00"
				return out, r.setContinue(&out, read, next, page.Count-int64(last)-1)
			}
			return out, nil
		}
		opts.Start = page.Items[len(page.Items)-1].Key + "\x00"
		opts.Limit = min(opts.Limit*2, max(maxPage, q.Limit))
	}
}

// take appends what q selects of items and returns the index of the item that
// filled the page, -1 if none did.
func (r *Resource) take(ctx context.Context, out *Listing, q ListRequest, before int, items []kv.Item) (int, error) {
	object := r.decoded(ctx, items)
	for i, item := range items {
		o := object(i)
		switch {
		case o.Err() == nil:
		case !deletesUnread():
			return -1, o.Err()
		case !out.corrupt.add(item.Key, o):
			return -1, out.corrupt.status(r)
		default:
			continue
		}
		out.Scanned++
		if q.Label.Matches(o.Labels()) && q.Field.Matches(o.Fields()) {
			out.Objects = append(out.Objects, o)
		}
		if q.Limit > 0 && int64(len(out.Objects)-before) >= q.Limit {
			return i, nil
		}
	}
	return -1, nil
}

// decoded returns a function that returns the object of an item. It decodes when it is
// called; encrypted values are all decoded before, in parallel, because each waits for a key
// service.
func (r *Resource) decoded(ctx context.Context, items []kv.Item) func(i int) *cache.Object {
	decode := func(i int) *cache.Object {
		item := items[i]
		return r.codec.DecodeValue(ctx, item.Key, r.layout.rest(item.Key), item.Value, item.Revision)
	}
	if !r.codec.Encrypted() {
		return decode
	}
	objects := make([]*cache.Object, len(items))
	var group errgroup.Group
	group.SetLimit(encoding.DecryptWorkers)
	for i := range items {
		group.Go(func() error {
			objects[i] = decode(i)
			return nil
		})
	}
	_ = group.Wait() // none fails
	return func(i int) *cache.Object { return objects[i] }
}

// listStoredOne reads one key at an exact revision, or now.
func (r *Resource) listStoredOne(ctx context.Context, read listing, dst []*cache.Object) (Listing, error) {
	full, replacements := r.layout.root+read.q.key(), r.store.Replacements()
	page, err := r.store.Range(ctx, kv.RangeOptions{Prefix: full, Limit: 1, Revision: read.exact})
	if err != nil {
		return Listing{}, r.rangeError(ctx, err, read)
	}
	if err := r.atLeast(read.q.ResourceVersion, page.Revision); err != nil {
		return Listing{}, err
	}
	if read.exact == 0 {
		r.listed.note(page.Revision, replacements)
	}
	var o *cache.Object
	if len(page.Items) == 1 && page.Items[0].Key == full {
		item := page.Items[0]
		o = r.codec.DecodeValue(ctx, full, read.q.key(), item.Value, item.Revision)
	}
	return r.listOne(read.q, page.Revision, o, dst)
}

// atLeast fails if the store is behind what the request asked for.
func (r *Resource) atLeast(resourceVersion string, current int64) error {
	wanted, err := r.codec.Versioner().ParseResourceVersion(resourceVersion)
	if err != nil {
		return badRevision(err)
	}
	if wanted > uint64(current) {
		return storage.NewTooLargeResourceVersionError(wanted, uint64(current), 0)
	}
	return nil
}
