package storage

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"strings"

	"go.opentelemetry.io/otel/attribute"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/conversion"
	"k8s.io/apimachinery/pkg/runtime"
	apiwatch "k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/storage"

	"github.com/larder-io/larder/cache"
	"github.com/larder-io/larder/internal/registry/encoding"
	"github.com/larder-io/larder/internal/registry/wire"
	"github.com/larder-io/larder/kv"
)

// adapter is a Resource as upstream's generic registry uses it. Writes go to the store. Reads decode
// objects from the cache; the caller owns the decoded objects.
//
// It behaves as apiserver pkg/storage/etcd3 with its cacher. The conformance tests in storage/testing of
// the same module check that.
type adapter struct {
	*Resource
	codec *encoding.Codec // of the version that the storage is for
}

var _ storage.Interface = (*adapter)(nil)

// Storage returns the resource as upstream's REST storages use it.
func (r *Resource) Storage() storage.Interface { return &adapter{r, r.codec} }

// StorageOf returns the resource as the REST storages of one version of a CRD use it. codec is the
// version's.
func (r *Resource) StorageOf(codec *encoding.Codec) storage.Interface { return &adapter{r, codec} }

func (s *adapter) Versioner() storage.Versioner { return s.codec.Versioner() }

// scope returns the scope of key. A recursive key names a namespace or the whole resource.
func (s *adapter) scope(key string, recursive bool) (Scope, error) {
	full, err := s.layout.full(key, recursive)
	if err != nil {
		return Scope{}, err
	}
	rest := s.layout.rest(full)
	if recursive {
		return Scope{Namespace: strings.TrimSuffix(rest, "/")}, nil
	}
	slash := strings.LastIndexByte(rest, '/')
	return Scope{Namespace: rest[:max(slash, 0)], Name: rest[slash+1:], one: true}, nil
}

func (s *adapter) Get(ctx context.Context, key string, opts storage.GetOptions, out runtime.Object) error {
	scope, err := s.scope(key, false)
	if err != nil {
		return err
	}
	o, err := s.getTraced(ctx, scope, opts.ResourceVersion)
	if storage.IsNotFound(err) && opts.IgnoreNotFound {
		return runtime.SetZeroValue(out)
	}
	if err != nil {
		return err
	}
	return s.corrupt(s.layout.root+scope.key(), o, s.codec.Restore(o.Body(), out))
}

// getTraced is Get within a new span, if the span of ctx is recorded.
func (s *adapter) getTraced(ctx context.Context, scope Scope, version string) (*cache.Object, error) {
	ctx, end := s.startSpan(ctx, "cacher.Get", attribute.String("key", s.KeyOf(scope)), attribute.String("resource-version", version))
	defer end()
	if version == "" { // upstream's cacher reads such objects from etcd
		addSpanEvent(ctx, "About to Get from underlying storage")
		return s.Resource.Get(ctx, scope, version)
	}
	addSpanEvent(ctx, "About to fetch object from cache")
	o, err := s.Resource.Get(ctx, scope, version)
	if err == nil || storage.IsNotFound(err) {
		addSpanEvent(ctx, "watchCache fresh enough")
	}
	return o, err
}

func (s *adapter) GetList(ctx context.Context, key string, opts storage.ListOptions, list runtime.Object) error {
	scope, err := s.scope(key, opts.Recursive)
	if err != nil {
		return err
	}
	items, err := itemsOf(list)
	if err != nil {
		return err
	}
	q := ListRequest{
		Scope: scope, ResourceVersion: opts.ResourceVersion, Match: opts.ResourceVersionMatch,
		Label: opts.Predicate.Label, Field: opts.Predicate.Field, Shard: opts.Predicate.ShardSelector,
		Limit: opts.Predicate.Limit, Continue: opts.Predicate.Continue,
		ended: strings.HasSuffix(key, "/"),
	}
	items.Set(reflect.MakeSlice(items.Type(), 0, 0))
	page := s.appendPage
	if s.selectsLate(&opts.Predicate) {
		page = s.appendSelected
	}
	found, err := page(ctx, q, &opts.Predicate, list, items)
	if err != nil {
		return err
	}
	opts.Predicate.SetShardInfoOnList(list)
	return s.codec.Versioner().UpdateList(list, uint64(found.Revision), found.Continue, found.Remaining)
}

// appendPage appends the objects that q selects to items.
func (s *adapter) appendPage(ctx context.Context, q ListRequest, _ *storage.SelectionPredicate, list runtime.Object, items reflect.Value) (wire.ListMeta, error) {
	listing, err := s.Resource.List(ctx, q, nil)
	if err == nil {
		_, err = decodeItems(ctx, s.codec, listing.Objects, list, items, nil)
	}
	return listing.Meta, err
}

// appendSelected appends the objects that p selects to items. Like a read of the store with selectors, it fetches
// pages, which grow, until it has as many objects as q allows.
func (s *adapter) appendSelected(ctx context.Context, q ListRequest, p *storage.SelectionPredicate, list runtime.Object, items reflect.Value) (wire.ListMeta, error) {
	for q.Label, q.Field = nil, nil; ; q.Limit = min(q.Limit*2, max(maxPage, p.Limit)) {
		listing, err := s.Resource.List(ctx, q, nil)
		if err != nil {
			return wire.ListMeta{}, err
		}
		if int64(len(listing.Objects)) > q.Limit { // resourceVersion 0 lifts the limit
			p.Limit = 0
		}
		looked, err := decodeItems(ctx, s.codec, listing.Objects, list, items, p)
		if err != nil {
			return wire.ListMeta{}, err
		}
		listing.Meta.Remaining = nil // as in upstream: only lists without selectors have it
		if looked < len(listing.Objects) {
			prefix := strings.TrimSuffix(s.layout.root+q.prefix(), "/")
			next := s.layout.root + listing.Objects[looked-1].Key() + "\x00"
			listing.Meta.Continue, err = storage.EncodeContinue(next, prefix, listing.Meta.Revision)
			return listing.Meta, err
		}
		if listing.Meta.Continue == "" || p.Limit > 0 && int64(items.Len()) >= p.Limit {
			return listing.Meta, nil
		}
		q.Continue, q.ResourceVersion, q.Match = listing.Meta.Continue, "", ""
	}
}

func (s *adapter) Stats(ctx context.Context) (storage.Stats, error) {
	if s.Cache == nil || !s.Cache.Ready() {
		page, err := s.store.Range(ctx, kv.RangeOptions{Prefix: s.layout.root, CountOnly: true})
		return storage.Stats{ObjectCount: page.Count}, etcdError(err)
	}
	snapshot := s.Cache.Snapshot()
	stats := storage.Stats{ObjectCount: int64(snapshot.Len())}
	if stats.ObjectCount > 0 {
		stats.EstimatedAverageObjectSizeBytes = snapshot.Stored() / stats.ObjectCount
	}
	return stats, nil
}

func (s *adapter) ReadinessCheck() error {
	if !s.Ready() {
		return storage.ErrStorageNotReady
	}
	return nil
}

func (s *adapter) RequestWatchProgress(ctx context.Context) error {
	return etcdError(s.store.RequestProgress(ctx))
}

func (s *adapter) GetCurrentResourceVersion(ctx context.Context) (uint64, error) {
	revision, err := s.store.Revision(ctx)
	if err != nil {
		return 0, etcdError(err)
	}
	if revision <= 0 {
		return 0, errors.New("the current resource version must be greater than 0")
	}
	return uint64(revision), nil
}

// EnableResourceSizeEstimation does nothing: sizes are known without estimating.
func (s *adapter) EnableResourceSizeEstimation(keys storage.KeysFunc) error {
	if keys == nil {
		return errors.New("KeysFunc cannot be nil")
	}
	return nil
}

func (s *adapter) CompactRevision() int64 { return s.store.Compaction() }

func (s *adapter) Watch(ctx context.Context, key string, opts storage.ListOptions) (apiwatch.Interface, error) {
	scope, err := s.scope(key, opts.Recursive)
	if err != nil {
		return nil, err
	}
	q := WatchRequest{
		Scope:             scope,
		ResourceVersion:   opts.ResourceVersion,
		SendInitialEvents: opts.SendInitialEvents,
		Bookmarks:         opts.Predicate.AllowWatchBookmarks || opts.ProgressNotify,
		Label:             opts.Predicate.Label,
		Field:             opts.Predicate.Field,
		Shard:             opts.Predicate.ShardSelector,
	}
	late := s.selectsLate(&opts.Predicate)
	if late {
		q.Label, q.Field = nil, nil
	}
	w, err := s.Resource.Watch(ctx, q)
	var inStream *StreamError
	if errors.As(err, &inStream) {
		return failedWatch(inStream), nil
	}
	if err != nil {
		return nil, err
	}
	return newStoreWatch(ctx, s.codec, w, opts, late), nil
}

// selectsLate reports whether p selects objects only after a webhook has converted them, which may
// change labels and fields. It makes p safe for concurrent use.
func (s *adapter) selectsLate(p *storage.SelectionPredicate) bool {
	if p.Empty() || !s.codec.Converts() {
		return false
	}
	p.GetAttrs = s.codec.Attrs
	return true
}

// itemsOf returns the settable slice of a list's items.
func itemsOf(list runtime.Object) (reflect.Value, error) {
	ptr, err := meta.GetItemsPtr(list)
	if err != nil {
		return reflect.Value{}, err
	}
	items, err := conversion.EnforcePtr(ptr)
	if err != nil || items.Kind() != reflect.Slice {
		return reflect.Value{}, fmt.Errorf("need ptr to slice: %w", err)
	}
	return items, nil
}

// decodeItems appends new objects to items, up to its limit: all, or if selects is not nil, the objects that selects
// selects. It returns the number of objects that it examined.
func decodeItems(ctx context.Context, codec *encoding.Codec, objects []*cache.Object, list runtime.Object, items reflect.Value, selects *storage.SelectionPredicate) (int, error) {
	kept := items.Len()
	items.Grow(len(objects))
	for i, o := range objects {
		if ctx.Err() != nil {
			return 0, storage.NewTimeoutError(o.Key(), "request did not complete within requested timeout")
		}
		items.SetLen(kept + 1)
		if codec.IsCustom() {
			items.Index(kept).Set(reflect.ValueOf(newItem(list, items)).Elem())
		}
		obj, ok := items.Index(kept).Addr().Interface().(runtime.Object)
		if !ok {
			return 0, fmt.Errorf("registry: items of %T are not objects", list)
		}
		if err := codec.DecodeObject(ctx, o, obj, true); err != nil {
			return 0, err
		}
		if selects != nil {
			matches, err := selects.Matches(obj)
			if err != nil {
				return 0, err
			}
			if !matches {
				items.SetLen(kept)
				continue
			}
		}
		kept++
		if selects != nil && selects.Limit > 0 && int64(kept) >= selects.Limit {
			return i + 1, nil
		}
	}
	return len(objects), nil
}

// newItem makes an empty element for items. Unstructured ones keep their version.
func newItem(list runtime.Object, items reflect.Value) runtime.Object {
	if l, ok := list.(*unstructured.UnstructuredList); ok && l.GetAPIVersion() != "" {
		return &unstructured.Unstructured{Object: map[string]any{"apiVersion": l.GetAPIVersion()}}
	}
	return reflect.New(items.Type().Elem()).Interface().(runtime.Object)
}
