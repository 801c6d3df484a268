package storage

import (
	"context"
	"fmt"
	"reflect"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/conversion"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/storage"

	"github.com/larder-io/larder/cache"
	"github.com/larder-io/larder/internal/registry/encoding"
)

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

// decodeItems fills items with new objects. Items are not nil afterwards.
func decodeItems(ctx context.Context, codec *encoding.Codec, objects []*cache.Object, list runtime.Object, items reflect.Value) error {
	items.Set(reflect.MakeSlice(items.Type(), len(objects), len(objects)))
	for i, o := range objects {
		if ctx.Err() != nil {
			return storage.NewTimeoutError(o.Key(), "request did not complete within requested timeout")
		}
		if codec.IsCustom() {
			items.Index(i).Set(reflect.ValueOf(newItem(list, items)).Elem())
		}
		obj, ok := items.Index(i).Addr().Interface().(runtime.Object)
		if !ok {
			return fmt.Errorf("registry: items of %T are not objects", list)
		}
		body, err := codec.BodyOf(o)
		if err != nil {
			return err
		}
		if err := codec.Restore(body, obj); err != nil {
			return err
		}
	}
	return nil
}

// selectItems removes the items that predicate does not select.
func selectItems(items reflect.Value, predicate storage.SelectionPredicate) error {
	kept := 0
	for i := range items.Len() {
		obj, ok := items.Index(i).Addr().Interface().(runtime.Object)
		if !ok {
			return fmt.Errorf("registry: item of type %s is not an object", items.Index(i).Type())
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

// newItem makes an empty element for items. Unstructured ones keep their version.
func newItem(list runtime.Object, items reflect.Value) runtime.Object {
	if l, ok := list.(*unstructured.UnstructuredList); ok && l.GetAPIVersion() != "" {
		return &unstructured.Unstructured{Object: map[string]any{"apiVersion": l.GetAPIVersion()}}
	}
	return reflect.New(items.Type().Elem()).Interface().(runtime.Object)
}
