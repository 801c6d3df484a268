package registry

import (
	"fmt"
	"reflect"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	genericregistry "k8s.io/apiserver/pkg/registry/generic/registry"
	"k8s.io/apiserver/pkg/registry/rest"

	"github.com/larder-io/larder/internal/registry/encoding"
	"github.com/larder-io/larder/internal/registry/storage"
	"github.com/larder-io/larder/internal/registry/table"
)

// Resource is the resource that a View reads: see package storage.
type Resource = storage.Resource

// View is one served version of a stored resource: the Resource, the encoders of the version, and its
// table printer. It is immutable.
type View struct {
	Resource *storage.Resource
	*encoding.Version
	*table.Printer
}

// newView adds a version that upstream serves. Its printer makes the tables. Its Decorator is applied
// once, when an object enters the cache.
func newView(r *storage.Resource, gvk schema.GroupVersionKind, upstream rest.Storage) (*View, error) {
	printer, ok := upstream.(rest.TableConvertor)
	if !ok {
		return nil, fmt.Errorf("storage %T of %s makes no tables", upstream, r.GroupResource)
	}
	if decorate := decoratorOf(upstream); decorate != nil {
		r.Codec().Decorate(decorate)
	}
	version, err := r.Codec().NewVersion(gvk, gvk.Kind+"List")
	if err != nil {
		return nil, err
	}
	return &View{Resource: r, Version: version, Printer: table.New(version, printer)}, nil
}

// decoratorOf finds the Decorator of a storage, nil for most. It is a field of the generic
// store that upstream's storages embed.
func decoratorOf(upstream rest.Storage) func(runtime.Object) {
	v := reflect.Indirect(reflect.ValueOf(upstream))
	if v.Kind() != reflect.Struct {
		return nil
	}
	field := v.FieldByName("Store")
	if !field.IsValid() || !field.CanInterface() {
		return nil
	}
	if store, ok := field.Interface().(*genericregistry.Store); ok && store != nil {
		return store.Decorator
	}
	return nil
}
