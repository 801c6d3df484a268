package registry_test

import (
	"reflect"
	"testing"

	genericregistry "k8s.io/apiserver/pkg/registry/generic/registry"

	"github.com/larder-io/larder/internal/registry/registrytest"
)

// TestNothingChangesWhatAWriteReturns checks that no hook of upstream's storages changes an object that
// storage.Interface has returned. Exceptions are a Decorator, which storage.Written takes into account, and the hook
// of deleted services, which decorates them.
func TestNothingChangesWhatAWriteReturns(t *testing.T) {
	server := registrytest.New(t, nil, everything)
	stores := 0
	for _, group := range server.Registry.Groups() {
		for _, version := range group.Versions {
			for _, e := range version.Endpoints {
				for _, store := range storesIn(reflect.ValueOf(e.Storage), 4) {
					stores++
					for _, hook := range []string{"AfterCreate", "AfterUpdate", "AfterDelete"} {
						if !store.FieldByName(hook).IsNil() && (hook != "AfterDelete" || e.GVR.Resource != "services") {
							t.Errorf("%s %s has a hook %s", e.GVR, e.Subresource, hook)
						}
					}
					if decorates := !store.FieldByName("Decorator").IsNil(); decorates && e.Subresource == "" && e.View.Resource.Codec().Decorate == nil {
						t.Errorf("the codec of %s does not decorate", e.GVR)
					}
				}
			}
		}
	}
	if stores < 80 {
		t.Errorf("only %d stores", stores)
	}
}

// storesIn returns the generic stores in v, a REST storage.
func storesIn(v reflect.Value, depth int) (stores []reflect.Value) {
	for v.Kind() == reflect.Pointer || v.Kind() == reflect.Interface {
		if v.IsNil() {
			return nil
		}
		v = v.Elem()
	}
	switch {
	case v.Type() == reflect.TypeFor[genericregistry.Store]():
		return []reflect.Value{v}
	case v.Kind() != reflect.Struct || depth == 0:
		return nil
	}
	for i := range v.NumField() {
		stores = append(stores, storesIn(v.Field(i), depth-1)...)
	}
	return stores
}
