package registry

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"strings"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/conversion"
	"k8s.io/apimachinery/pkg/runtime"
	apiwatch "k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/storage"

	"github.com/larder-io/larder/cache"
	"github.com/larder-io/larder/internal/registry/encoding"
	"github.com/larder-io/larder/kv"
)

// store is a Resource as upstream's generic registry uses it: writes go to the
// store, reads come from the cache, decoded into objects of the caller's own.
//
// What it does to be seen from outside is what apiserver pkg/storage/etcd3 does
// behind its cacher; storage/testing of the same module describes it.
type store struct {
	*Resource
	codec *encoding.Codec // of the version that the storage is for
}

var _ storage.Interface = (*store)(nil)

// Versioner implements storage.Interface.
func (s *store) Versioner() storage.Versioner { return s.codec.Versioner() }

// scope says where key lies. A recursive key names a namespace or everything.
func (s *store) scope(key string, recursive bool) (Scope, error) {
	full, err := s.layout.full(key, recursive)
	if err != nil {
		return Scope{}, err
	}
	if recursive {
		rest := s.layout.rest(full)
		if rest == "" {
			return Scope{}, nil
		}
		return Scope{Namespace: rest[:len(rest)-1]}, nil
	}
	rest := s.layout.rest(full)
	namespace, name := splitKey(rest)
	return Scope{Namespace: namespace, Name: name, one: true, rest: rest}, nil
}

// Get implements storage.Interface.
func (s *store) Get(ctx context.Context, key string, opts storage.GetOptions, out runtime.Object) error {
	if s.codec.Records() {
		return s.getPlain(ctx, key, opts, out)
	}
	scope, err := s.scope(key, false)
	if err != nil {
		return err
	}
	o, err := s.Resource.Get(ctx, scope, opts.ResourceVersion)
	if storage.IsNotFound(err) && opts.IgnoreNotFound {
		return runtime.SetZeroValue(out)
	}
	if err != nil {
		return err
	}
	return s.codec.Decode(o.Body(), out)
}

// getPlain reads from the store, without a canonical form in between.
func (s *store) getPlain(ctx context.Context, key string, opts storage.GetOptions, out runtime.Object) error {
	full, err := s.layout.full(key, false)
	if err != nil {
		return err
	}
	item, found, revision, err := s.store.Get(ctx, full)
	if err != nil {
		return etcdError(err)
	}
	if err := s.atLeast(opts.ResourceVersion, revision); err != nil {
		return err
	}
	if !found {
		if opts.IgnoreNotFound {
			return runtime.SetZeroValue(out)
		}
		return storage.NewKeyNotFoundError(full, 0)
	}
	data, _, err := s.codec.Decrypt(ctx, full, item.Value)
	if err != nil {
		return err
	}
	return s.codec.DecodeStored(data, out, item.Revision)
}

// GetList implements storage.Interface.
func (s *store) GetList(ctx context.Context, key string, opts storage.ListOptions, list runtime.Object) error {
	scope, err := s.scope(key, opts.Recursive)
	if err != nil {
		return err
	}
	items, err := itemsOf(list)
	if err != nil {
		return err
	}
	if s.codec.Records() {
		return s.getListPlain(ctx, key, opts, list, items)
	}
	q := ListRequest{
		Scope:           scope,
		ResourceVersion: opts.ResourceVersion,
		Match:           opts.ResourceVersionMatch,
		Label:           opts.Predicate.Label,
		Field:           opts.Predicate.Field,
		Limit:           opts.Predicate.Limit,
		Continue:        opts.Predicate.Continue,
		ended:           strings.HasSuffix(key, "/"),
	}
	late := s.codec.Converts() && !opts.Predicate.Empty()
	if late {
		q.Label, q.Field, q.Limit = nil, nil, 0 // all on one page
	}
	listing, err := s.Resource.List(ctx, q, nil)
	if err != nil {
		return err
	}
	if err := s.decodeItems(ctx, listing.Objects, list, items); err != nil {
		return err
	}
	if late {
		if err := selectItems(items, opts.Predicate); err != nil {
			return err
		}
	}
	return s.codec.Versioner().UpdateList(list, uint64(listing.Meta.Revision), listing.Meta.Continue, listing.Meta.Remaining)
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

// decodeItems fills items, which are never nil afterwards, with objects that
// nobody else has.
func (s *store) decodeItems(ctx context.Context, objects []*cache.Object, list runtime.Object, items reflect.Value) error {
	items.Set(reflect.MakeSlice(items.Type(), len(objects), len(objects)))
	for i, o := range objects {
		if ctx.Err() != nil {
			return storage.NewTimeoutError(o.Key(), "request did not complete within requested timeout")
		}
		if s.codec.Custom() {
			items.Index(i).Set(reflect.ValueOf(newItem(list, items)).Elem())
		}
		obj, ok := items.Index(i).Addr().Interface().(runtime.Object)
		if !ok {
			return fmt.Errorf("registry: items of %T are no objects", list)
		}
		if err := s.codec.Decode(o.Body(), obj); err != nil {
			return err
		}
	}
	return nil
}

// selectItems leaves in items those that predicate selects.
func selectItems(items reflect.Value, predicate storage.SelectionPredicate) error {
	kept := 0
	for i := range items.Len() {
		obj, ok := items.Index(i).Addr().Interface().(runtime.Object)
		if !ok {
			return fmt.Errorf("registry: item of type %s is no object", items.Index(i).Type())
		}
		matches, err := predicate.Matches(obj)
		if err != nil {
			return err
		}
		if matches {
			items.Index(kept).Set(items.Index(i))
			kept++
		}
	}
	items.SetLen(kept)
	return nil
}

// getListPlain lists what has no canonical form: all of it, as it is now.
func (s *store) getListPlain(ctx context.Context, key string, opts storage.ListOptions, list runtime.Object, items reflect.Value) error {
	full, err := s.layout.full(key, opts.Recursive)
	if err != nil {
		return err
	}
	found, revision, err := s.rangePlain(ctx, full, opts.Recursive)
	if err != nil {
		return err
	}
	items.Set(reflect.MakeSlice(items.Type(), 0, len(found)))
	for _, item := range found {
		data, _, err := s.codec.Decrypt(ctx, item.Key, item.Value)
		if err != nil {
			return err
		}
		obj := newItem(list, items)
		if err := s.codec.DecodeStored(data, obj, item.Revision); err != nil {
			return err
		}
		if matched, err := opts.Predicate.Matches(obj); err == nil && matched {
			items.Set(reflect.Append(items, reflect.ValueOf(obj).Elem()))
		}
	}
	return s.codec.Versioner().UpdateList(list, uint64(revision), "", nil)
}

// rangePlain reads one key, or all below it.
func (s *store) rangePlain(ctx context.Context, full string, recursive bool) ([]kv.Item, int64, error) {
	if !recursive {
		item, found, revision, err := s.store.Get(ctx, full)
		if err != nil || !found {
			return nil, revision, etcdError(err)
		}
		return []kv.Item{item}, revision, nil
	}
	page, err := s.store.Range(ctx, kv.RangeOptions{Prefix: full})
	return page.Items, page.Revision, etcdError(err)
}

// newItem makes an empty element for items. Unstructured ones keep their version.
func newItem(list runtime.Object, items reflect.Value) runtime.Object {
	if l, ok := list.(*unstructured.UnstructuredList); ok && l.GetAPIVersion() != "" {
		return &unstructured.Unstructured{Object: map[string]any{"apiVersion": l.GetAPIVersion()}}
	}
	return reflect.New(items.Type().Elem()).Interface().(runtime.Object)
}

// Stats implements storage.Interface.
func (s *store) Stats(ctx context.Context) (storage.Stats, error) {
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

// ReadinessCheck implements storage.Interface.
func (s *store) ReadinessCheck() error {
	if !s.Ready() {
		return storage.ErrStorageNotReady
	}
	return nil
}

// RequestWatchProgress implements storage.Interface.
func (s *store) RequestWatchProgress(ctx context.Context) error {
	return etcdError(s.store.RequestProgress(ctx))
}

// GetCurrentResourceVersion implements storage.Interface.
func (s *store) GetCurrentResourceVersion(ctx context.Context) (uint64, error) {
	revision, err := s.store.Revision(ctx)
	if err != nil {
		return 0, etcdError(err)
	}
	if revision <= 0 {
		return 0, errors.New("the current resource version must be greater than 0")
	}
	return uint64(revision), nil
}

// EnableResourceSizeEstimation implements storage.Interface. Sizes are known
// without estimating.
func (s *store) EnableResourceSizeEstimation(keys storage.KeysFunc) error {
	if keys == nil {
		return errors.New("KeysFunc cannot be nil")
	}
	return nil
}

// CompactRevision implements storage.Interface.
func (s *store) CompactRevision() int64 { return s.store.Compaction() }

// Watch implements storage.Interface.
func (s *store) Watch(ctx context.Context, key string, opts storage.ListOptions) (apiwatch.Interface, error) {
	scope, err := s.scope(key, opts.Recursive)
	if err != nil {
		return nil, err
	}
	w, err := s.Resource.Watch(ctx, WatchRequest{
		Scope:             scope,
		ResourceVersion:   opts.ResourceVersion,
		SendInitialEvents: opts.SendInitialEvents,
		Bookmarks:         opts.Predicate.AllowWatchBookmarks || opts.ProgressNotify,
		Label:             opts.Predicate.Label,
		Field:             opts.Predicate.Field,
	})
	var late *StreamError
	if errors.As(err, &late) {
		return failedWatch(late), nil
	}
	if err != nil {
		return nil, err
	}
	return newStoreWatch(ctx, s.codec, w, opts), nil
}
