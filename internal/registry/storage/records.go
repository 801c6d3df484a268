package storage

import (
	"context"
	"reflect"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/storage"

	"github.com/larder-io/larder/kv"
)

// records are stored values that are no API objects.
type records struct{ *stored }

// get reads a record from the store. Records have no canonical encoding.
func (r records) get(ctx context.Context, key string, opts storage.GetOptions, out runtime.Object) error {
	full, err := r.layout.full(key, false)
	if err != nil {
		return err
	}
	item, found, revision, err := r.store.Get(ctx, full)
	if err != nil {
		return etcdError(err)
	}
	if err := r.atLeast(opts.ResourceVersion, revision); err != nil {
		return err
	}
	if !found {
		if opts.IgnoreNotFound {
			return runtime.SetZeroValue(out)
		}
		return storage.NewKeyNotFoundError(full, 0)
	}
	data, _, err := r.codec.Decrypt(ctx, full, item.Value)
	if err != nil {
		return err
	}
	return r.codec.DecodeStored(data, out, item.Revision)
}

// list lists all records in their newest state.
func (r records) list(ctx context.Context, key string, opts storage.ListOptions, list runtime.Object, items reflect.Value) error {
	full, err := r.layout.full(key, opts.Recursive)
	if err != nil {
		return err
	}
	found, revision, err := r.read(ctx, full, opts.Recursive)
	if err != nil {
		return err
	}
	items.Set(reflect.MakeSlice(items.Type(), 0, len(found)))
	for _, item := range found {
		data, _, err := r.codec.Decrypt(ctx, item.Key, item.Value)
		if err != nil {
			return err
		}
		obj := newItem(list, items)
		if err := r.codec.DecodeStored(data, obj, item.Revision); err != nil {
			return err
		}
		if matched, err := opts.Predicate.Matches(obj); err == nil && matched {
			items.Set(reflect.Append(items, reflect.ValueOf(obj).Elem()))
		}
	}
	return r.codec.Versioner().UpdateList(list, uint64(revision), "", nil)
}

// read reads one key, or all below it.
func (r records) read(ctx context.Context, full string, recursive bool) ([]kv.Item, int64, error) {
	if !recursive {
		item, found, revision, err := r.store.Get(ctx, full)
		if err != nil || !found {
			return nil, revision, etcdError(err)
		}
		return []kv.Item{item}, revision, nil
	}
	page, err := r.store.Range(ctx, kv.RangeOptions{Prefix: full})
	return page.Items, page.Revision, etcdError(err)
}
