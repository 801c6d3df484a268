package registry

import (
	"fmt"
	"reflect"

	"k8s.io/apimachinery/pkg/runtime/schema"
	genericregistry "k8s.io/apiserver/pkg/registry/generic/registry"
	"k8s.io/apiserver/pkg/registry/rest"
	printerstorage "k8s.io/kubernetes/pkg/printers/storage"

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

// newView returns the View of a version that upstream serves. Upstream's printer makes the tables. Upstream's
// Decorator is applied once, when an object enters the cache.
func newView(r *storage.Resource, gvk schema.GroupVersionKind, upstream rest.Storage) (*View, error) {
	printer, ok := upstream.(rest.TableConvertor)
	if !ok {
		return nil, fmt.Errorf("storage %T of %s cannot print tables", upstream, r.GroupResource)
	}
	if store := storeOf(upstream); store != nil && store.Decorator != nil {
		r.Codec().Decorate = store.Decorator
	}
	version, err := r.Codec().NewVersion(gvk, gvk.Kind+"List")
	if err != nil {
		return nil, err
	}
	return &View{Resource: r, Version: version, Printer: table.New(version, printer)}, nil
}

// shareTables makes a storage print with tables. Each of upstream's stores, even of a status, has a copy of the
// printers of all built-in types: together 2 MB.
func shareTables(upstream rest.Storage, tables printerstorage.TableConvertor) {
	if store := storeOf(upstream); store != nil {
		if _, ok := store.TableConvertor.(printerstorage.TableConvertor); ok {
			store.TableConvertor = tables
		}
	}
}

// storeOf finds the generic store in a field of upstream's storages; nil if there is none.
func storeOf(upstream rest.Storage) *genericregistry.Store {
	v := reflect.Indirect(reflect.ValueOf(upstream))
	if v.Kind() != reflect.Struct {
		return nil
	}
	for _, name := range []string{"Store", "store"} {
		if field := v.FieldByName(name); field.IsValid() && field.Type() == reflect.TypeFor[*genericregistry.Store]() {
			return (*genericregistry.Store)(field.UnsafePointer())
		}
	}
	return nil
}
