package storage

import (
	"context"
	"reflect"
	"time"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/storage"

	"github.com/larder-io/larder/kv"
)

// recordTimeout limits a read or an update of a record, which is a stored value that is no API object. Upstream's
// interfaces of records pass no context, and the client of etcd waits without limit for a store that does not answer.
const recordTimeout = 10 * time.Second

// getRecord reads a record from the store. Records have no canonical encoding.
func (s *stored) getRecord(ctx context.Context, key string, opts storage.GetOptions, out runtime.Object) error {
	ctx, cancel := context.WithTimeout(ctx, recordTimeout)
	defer cancel()
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

// listRecords lists the records under key in their newest state. A single record is not listed.
func (s *stored) listRecords(ctx context.Context, key string, opts storage.ListOptions, list runtime.Object, items reflect.Value) error {
	ctx, cancel := context.WithTimeout(ctx, recordTimeout)
	defer cancel()
	full, err := s.layout.full(key, true)
	if err != nil {
		return err
	}
	page, err := s.store.Range(ctx, kv.RangeOptions{Prefix: full})
	if err != nil {
		return etcdError(err)
	}
	items.Set(reflect.MakeSlice(items.Type(), 0, len(page.Items)))
	for _, item := range page.Items {
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
	return s.codec.Versioner().UpdateList(list, uint64(page.Revision), "", nil)
}
