package openapi

import (
	"math/rand"
	"testing"

	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	fieldmanager "k8s.io/apimachinery/pkg/util/managedfields"

	"github.com/larder-io/larder/httpapi/managedfields"
	"github.com/larder-io/larder/internal/registry"
	"github.com/larder-io/larder/internal/registry/registrytest"
)

// TestCreationsUnderServedSchemas checks that under the served schemas, the cached managedFields of created objects
// equal those of upstream's field manager, and that nearly all kinds are cached.
func TestCreationsUnderServedSchemas(t *testing.T) {
	back := registrytest.New(t, nil)
	m := NewModels()
	kinds, cached := 0, 0
	for _, g := range back.Registry.Groups() {
		converter := m.Converter(g)
		for _, v := range g.Versions {
			for _, e := range v.Endpoints {
				if e.View == nil {
					continue
				}
				kinds++
				if checkCreations(t, g, e, converter) {
					cached++
				} else {
					t.Logf("managedFields of %s are not cached", e.GVK)
				}
			}
		}
	}
	if kinds < 50 || cached < kinds*9/10 {
		t.Errorf("managedFields of %d kinds of %d are cached", cached, kinds)
	}
}

// checkCreations reports whether managedFields of e's kind are cached.
func checkCreations(t *testing.T, g *registry.Group, e *registry.Endpoint, converter fieldmanager.TypeConverter) bool {
	t.Helper()
	scheme := g.Info.Scheme
	hub := schema.GroupVersion{Group: e.GVK.Group, Version: runtime.APIVersionInternal}
	convertor := runtime.UnsafeObjectConvertor(scheme)
	upstream, err := fieldmanager.NewDefaultFieldManager(converter, convertor, scheme, scheme, e.GVK, hub, "", nil)
	if err != nil {
		t.Fatal(err)
	}
	creations, err := managedfields.New(converter, convertor, scheme, scheme, e.GVK, hub, "", nil)
	if err != nil {
		t.Fatal(err)
	}
	random := rand.New(rand.NewSource(3))
	obj := e.View.Resource.Codec().New()
	for step := range 40 {
		if step%20 == 1 { // the first one is empty
			registrytest.Fill(obj, rand.NewSource(random.Int63()))
		}
		clearRecord(t, obj)
		want, got, live := obj.DeepCopyObject(), obj.DeepCopyObject(), newOf(t, scheme, e.GVK)
		if !updated(upstream, live, want) { // it cannot be converted
			obj = e.View.Resource.Codec().New()
			continue
		}
		for range 2 { // the second one uses the cache
			clearRecord(t, got)
			if err := creations.Create(got, "creator"); err != nil {
				t.Fatal(err)
			}
			if w, g := recordOf(t, want), recordOf(t, got); !equality.Semantic.DeepEqual(w, g) {
				t.Fatalf("%s: recorded\n%v\nwant\n%v", e.GVK, g, w)
			}
		}
		registrytest.Mutate(obj, random)
	}
	return creations.Len() > 0
}

func newOf(t *testing.T, scheme *runtime.Scheme, kind schema.GroupVersionKind) runtime.Object {
	t.Helper()
	obj, err := scheme.New(kind)
	if err != nil {
		t.Fatal(err)
	}
	return obj
}

// updated reports whether the manager has recorded obj without a panic of upstream's.
func updated(manager *fieldmanager.FieldManager, live, obj runtime.Object) (ok bool) {
	defer func() {
		if recover() != nil {
			ok = false
		}
	}()
	manager.UpdateNoErrors(live, obj, "creator")
	return true
}

func clearRecord(t *testing.T, obj runtime.Object) {
	t.Helper()
	object, err := meta.Accessor(obj)
	if err != nil {
		t.Fatal(err)
	}
	object.SetManagedFields(nil)
}

// recordOf is the record of obj, without its times.
func recordOf(t *testing.T, obj runtime.Object) []metav1.ManagedFieldsEntry {
	t.Helper()
	object, err := meta.Accessor(obj)
	if err != nil {
		t.Fatal(err)
	}
	record := object.GetManagedFields()
	for i := range record {
		record[i].Time = nil
	}
	return record
}
