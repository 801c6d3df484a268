package storage

import (
	"cmp"
	"context"
	"errors"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apiserver/pkg/storage"

	"github.com/larder-io/larder/cache"
	"github.com/larder-io/larder/internal/registry/encoding"
	"github.com/larder-io/larder/internal/registry/wire"
	"github.com/larder-io/larder/kv"
)

// maxPage limits the pages of a filtered read of the store, which grow.
const maxPage = 10000

// storeReader reads a resource from the store, without its cache.
type storeReader struct {
	store  kv.Store
	codec  *encoding.Codec
	layout layout
	listed atomic.Pointer[listedRevision] // the newest of the store's newest history; nil if there is none
}

// getStored reads one object from the store.
func (s *storeReader) getStored(ctx context.Context, rest string, atLeast uint64) (*cache.Object, error) {
	full := s.layout.root + rest
	began := time.Now()
	item, found, revision, err := s.store.Get(ctx, full)
	trackStore(ctx, began)
	switch {
	case err != nil:
		return nil, etcdError(err)
	case atLeast > uint64(revision):
		return nil, storage.NewTooLargeResourceVersionError(atLeast, uint64(revision), 0)
	case !found:
		return nil, storage.NewKeyNotFoundError(full, 0)
	}
	o := s.codec.DecodeValue(ctx, full, rest, item.Value, item.Revision)
	if o.Err() == nil {
		return o, nil
	}
	if _, _, err := s.codec.Decrypt(ctx, full, item.Value); err != nil {
		return nil, s.corrupt(full, o, err) // a list has another text
	}
	return nil, s.corrupt(full, o, o.Err())
}

// corrupt returns the error of a read of one corrupt object: plain, unless corrupt objects may be
// deleted unread.
func (s *storeReader) corrupt(full string, o *cache.Object, plain error) error {
	if plain == nil || !UnsafeDeleteEnabled() {
		return plain
	}
	return corruptError(full[len(s.layout.base)-1:], o.Revision(), cmp.Or(o.Err(), plain))
}

// listStored lists from the store, for revisions that are not in the cache and before the cache has loaded.
func (s *storeReader) listStored(ctx context.Context, read checkedList, dst []*cache.Object) (Listing, error) {
	q, replacements := read.q, s.store.Replacements()
	opts := kv.RangeOptions{Prefix: read.prefix, Start: read.from, Limit: max(q.Limit, 0), Revision: read.exact}
	if q.single() {
		opts.Prefix, opts.Start, opts.Limit = s.layout.root+q.key(), "", 1
	}
	out := Listing{Objects: dst}
	for {
		began := time.Now()
		page, err := s.store.Range(ctx, opts)
		trackStore(ctx, began)
		q.waitedSince(began)
		if err != nil {
			return Listing{}, s.rangeError(ctx, err, read)
		}
		if err := s.atLeast(q.ResourceVersion, page.Revision); err != nil {
			return Listing{}, err
		}
		opts.Revision = page.Revision
		out.Meta.Revision = page.Revision
		if read.exact == 0 {
			s.recordListed(page.Revision, replacements)
		}
		if q.single() {
			var o *cache.Object
			if len(page.Items) == 1 && page.Items[0].Key == opts.Prefix {
				item := page.Items[0]
				o = s.codec.DecodeValue(ctx, item.Key, q.key(), item.Value, item.Revision)
			}
			return s.listOne(q, page.Revision, o, dst)
		}
		full, err := s.take(ctx, &out, q, len(dst), page.Items)
		if err != nil {
			return Listing{}, err
		}
		if full >= 0 || !page.More || len(page.Items) == 0 {
			if err := out.corrupt.status(s.codec.GroupResource); err != nil {
				return Listing{}, err
			}
			last := len(page.Items) - 1
			if full >= 0 {
				last = full
			}
			if last >= 0 && (page.More || last < len(page.Items)-1) {
				next := page.Items[last].Key + "\x00"
				return out, out.setContinue(read, next, page.Count-q.Limit)
			}
			return out, nil
		}
		opts.Start = page.Items[len(page.Items)-1].Key + "\x00"
		opts.Limit = min(opts.Limit*2, max(maxPage, q.Limit))
	}
}

// take appends the items that q selects. It returns the index of the item that filled the page, or -1.
func (s *storeReader) take(ctx context.Context, out *Listing, q ListRequest, before int, items []kv.Item) (int, error) {
	object := s.decoded(ctx, items)
	for i, item := range items {
		o := object(i)
		switch {
		case o.Err() == nil:
		case !UnsafeDeleteEnabled():
			return -1, o.Err()
		case !out.corrupt.add(item.Key, o):
			return -1, out.corrupt.status(s.codec.GroupResource)
		default:
			continue
		}
		out.Scanned++
		if q.matches(o) {
			out.Objects = append(out.Objects, o)
		}
		if q.Limit > 0 && int64(len(out.Objects)-before) >= q.Limit {
			return i, nil
		}
	}
	return -1, nil
}

// decoded returns a function that decodes the i-th item. Encrypted values are decoded in advance, in parallel, because
// each waits for a KMS plugin.
func (s *storeReader) decoded(ctx context.Context, items []kv.Item) func(i int) *cache.Object {
	decode := func(i int) *cache.Object {
		item := items[i]
		return s.codec.DecodeValue(ctx, item.Key, s.layout.rest(item.Key), item.Value, item.Revision)
	}
	if !s.codec.Encrypted {
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

// atLeast fails if the store has not reached resourceVersion.
func (s *storeReader) atLeast(resourceVersion string, current int64) error {
	wanted, err := s.codec.Versioner().ParseResourceVersion(resourceVersion)
	if err != nil {
		return badRevision(err)
	}
	if wanted > uint64(current) {
		return storage.NewTooLargeResourceVersionError(wanted, uint64(current), 0)
	}
	return nil
}

// listOne serves a request for a single object.
func (s *storeReader) listOne(q ListRequest, revision int64, o *cache.Object, dst []*cache.Object) (Listing, error) {
	out := Listing{Objects: dst, Meta: wire.ListMeta{Revision: revision}}
	if o == nil {
		return out, nil
	}
	out.Scanned = 1
	if o.Err() != nil {
		if UnsafeDeleteEnabled() {
			out.corrupt.add(s.layout.root+q.key(), o)
			return Listing{}, out.corrupt.status(s.codec.GroupResource)
		}
		return Listing{}, o.Err()
	}
	if q.matches(o) {
		out.Objects = append(out.Objects, o)
	}
	return out, nil
}

// Messages of apiserver pkg/storage/etcd3/errors.go, which clients know.
const (
	expiredList     = "The resourceVersion for the provided list is too old."
	expiredContinue = "The provided continue parameter is too old " +
		"to display a consistent list result. You can start a new list without " +
		"the continue parameter, or use the continue token in this response to " +
		"retrieve the remainder of the results. Continuing with the provided " +
		"token results in an inconsistent list - objects that were created, " +
		"modified, or deleted between the time the first chunk was returned " +
		"and now may show up in the list."
)

// rangeError returns the error of a failed list of the store. If a continue token is too old, the error has a token for
// the same position at the newest revision.
func (s *storeReader) rangeError(ctx context.Context, err error, read checkedList) error {
	switch {
	case errors.Is(err, kv.ErrFutureRevision):
		current, _ := s.store.Revision(ctx) // 0 if that fails
		return storage.NewTooLargeResourceVersionError(uint64(read.exact), uint64(current), 0)
	case !errors.Is(err, kv.ErrCompacted):
		return etcdError(err)
	}
	token, err := storage.EncodeContinue(read.from, read.prefix, -1)
	if read.q.Continue == "" || err != nil {
		return apierrors.NewResourceExpired(expiredList)
	}
	expired := apierrors.NewResourceExpired(expiredContinue)
	expired.ErrStatus.ListMeta.Continue = token
	return expired
}
