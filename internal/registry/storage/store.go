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

// adapter implements storage.Interface over a Resource. Writes go to the store. Reads decode objects from the cache;
// the caller owns the decoded objects.
//
// It behaves as apiserver pkg/storage/etcd3 with its cacher. The conformance tests in storage/testing of
// the same module check that.
type adapter struct {
	*Resource
	codec *encoding.Codec // of the version that the storage is for
}

var _ storage.Interface = (*adapter)(nil)

// Storage returns the resource as a storage.Interface for upstream's REST storages.
func (r *Resource) Storage() storage.Interface { return &adapter{r, r.codec} }

// StorageOf is Storage for the REST storages of one version of a CRD. codec is the version's.
func (r *Resource) StorageOf(codec *encoding.Codec) storage.Interface { return &adapter{r, codec} }

func (a *adapter) Versioner() storage.Versioner { return a.codec.Versioner() }

// scope returns the scope of key. A recursive key names a namespace or the whole resource.
func (a *adapter) scope(key string, recursive bool) (Scope, error) {
	full, err := a.layout.full(key, recursive)
	if err != nil {
		return Scope{}, err
	}
	rest := a.layout.rest(full)
	if recursive {
		return Scope{Namespace: strings.TrimSuffix(rest, "/")}, nil
	}
	slash := strings.LastIndexByte(rest, '/')
	return Scope{Namespace: rest[:max(slash, 0)], Name: rest[slash+1:], one: true}, nil
}

func (a *adapter) Get(ctx context.Context, key string, opts storage.GetOptions, out runtime.Object) error {
	scope, err := a.scope(key, false)
	if err != nil {
		return err
	}
	o, err := a.getTraced(ctx, scope, opts.ResourceVersion)
	if storage.IsNotFound(err) && opts.IgnoreNotFound {
		return runtime.SetZeroValue(out)
	}
	if err != nil {
		return err
	}
	return a.corrupt(a.layout.root+scope.key(), o, a.codec.Restore(o.Body(), out))
}

// getTraced is Get within a new span, if the span of ctx is recorded.
func (a *adapter) getTraced(ctx context.Context, scope Scope, version string) (*cache.Object, error) {
	ctx, end := a.startSpan(ctx, "cacher.Get", attribute.String("key", a.KeyOf(scope)), attribute.String("resource-version", version))
	defer end()
	if version == "" { // upstream's cacher reads such objects from etcd
		addSpanEvent(ctx, "About to Get from underlying storage")
		return a.Resource.Get(ctx, scope, version)
	}
	addSpanEvent(ctx, "About to fetch object from cache")
	o, err := a.Resource.Get(ctx, scope, version)
	if err == nil || storage.IsNotFound(err) {
		addSpanEvent(ctx, "watchCache fresh enough")
	}
	return o, err
}

func (a *adapter) GetList(ctx context.Context, key string, opts storage.ListOptions, list runtime.Object) error {
	scope, err := a.scope(key, opts.Recursive)
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
	var found Listing
	if a.selectsConverted(&opts.Predicate) {
		found.Meta, err = a.appendSelected(ctx, q, &opts.Predicate, list, items)
	} else if found, err = a.Resource.List(ctx, q, nil); err == nil {
		_, err = decodeItems(ctx, a.codec, found.Objects, list, items, nil)
	}
	if err != nil {
		return err
	}
	opts.Predicate.SetShardInfoOnList(list)
	return a.codec.Versioner().UpdateList(list, uint64(found.Meta.Revision), found.Meta.Continue, found.Meta.Remaining)
}

// appendSelected appends the objects that p selects to items. Like a read of the store with selectors, it fetches
// pages, which grow, until it has as many objects as q allows.
func (a *adapter) appendSelected(ctx context.Context, q ListRequest, p *storage.SelectionPredicate, list runtime.Object, items reflect.Value) (wire.ListMeta, error) {
	for q.Label, q.Field = nil, nil; ; q.Limit = min(q.Limit*2, max(maxPage, p.Limit)) {
		listing, err := a.Resource.List(ctx, q, nil)
		if err != nil {
			return wire.ListMeta{}, err
		}
		if int64(len(listing.Objects)) > q.Limit { // resourceVersion 0 lifts the limit
			p.Limit = 0
		}
		examined, err := decodeItems(ctx, a.codec, listing.Objects, list, items, p)
		if err != nil {
			return wire.ListMeta{}, err
		}
		listing.Meta.Remaining = nil // as in upstream: only lists without selectors have it
		if examined < len(listing.Objects) {
			prefix := strings.TrimSuffix(a.layout.root+q.prefix(), "/")
			next := a.layout.root + listing.Objects[examined-1].Key() + "\x00"
			listing.Meta.Continue, err = storage.EncodeContinue(next, prefix, listing.Meta.Revision)
			return listing.Meta, err
		}
		if listing.Meta.Continue == "" || p.Limit > 0 && int64(items.Len()) >= p.Limit {
			return listing.Meta, nil
		}
		q.Continue, q.ResourceVersion, q.Match = listing.Meta.Continue, "", ""
	}
}

func (a *adapter) Stats(ctx context.Context) (storage.Stats, error) {
	if a.Cache == nil || !a.Cache.Ready() {
		page, err := a.store.Range(ctx, kv.RangeOptions{Prefix: a.layout.root, CountOnly: true})
		return storage.Stats{ObjectCount: page.Count}, etcdError(err)
	}
	snapshot := a.Cache.Snapshot()
	stats := storage.Stats{ObjectCount: int64(snapshot.Len())}
	if stats.ObjectCount > 0 {
		stats.EstimatedAverageObjectSizeBytes = snapshot.StoredBytes() / stats.ObjectCount
	}
	return stats, nil
}

func (a *adapter) ReadinessCheck() error {
	if !a.Ready() {
		return storage.ErrStorageNotReady
	}
	return nil
}

func (a *adapter) RequestWatchProgress(ctx context.Context) error {
	return etcdError(a.store.RequestProgress(ctx))
}

func (a *adapter) GetCurrentResourceVersion(ctx context.Context) (uint64, error) {
	revision, err := a.store.Revision(ctx)
	if err != nil {
		return 0, etcdError(err)
	}
	if revision <= 0 {
		return 0, errors.New("the current resource version must be greater than 0")
	}
	return uint64(revision), nil
}

// EnableResourceSizeEstimation does nothing: sizes are known without estimating.
func (a *adapter) EnableResourceSizeEstimation(keys storage.KeysFunc) error {
	if keys == nil {
		return errors.New("KeysFunc cannot be nil")
	}
	return nil
}

func (a *adapter) CompactRevision() int64 { return a.store.Compaction() }

func (a *adapter) Watch(ctx context.Context, key string, opts storage.ListOptions) (apiwatch.Interface, error) {
	scope, err := a.scope(key, opts.Recursive)
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
	late := a.selectsConverted(&opts.Predicate)
	if late {
		q.Label, q.Field = nil, nil
	}
	w, err := a.Resource.Watch(ctx, q)
	var inStream *StreamError
	if errors.As(err, &inStream) {
		return failedWatch(inStream), nil
	}
	if err != nil {
		return nil, err
	}
	return newStoreWatch(ctx, a.codec, w, opts, late), nil
}

// selectsConverted reports whether p must be applied after a webhook has converted objects, which may change labels and
// fields. It makes p safe for concurrent use.
func (a *adapter) selectsConverted(p *storage.SelectionPredicate) bool {
	if p.Empty() || !a.codec.Converts() {
		return false
	}
	p.GetAttrs = a.codec.Attrs
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
