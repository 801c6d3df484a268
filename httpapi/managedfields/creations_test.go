package managedfields

import (
	"fmt"
	"math/rand"
	"strings"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/managedfields"
	"k8s.io/kubernetes/pkg/api/legacyscheme"

	"github.com/larder-io/larder/internal/registry/registrytest"
)

func newCache(m *managers, kind schema.GroupVersionKind) *Cache {
	m.t.Helper()
	scheme := legacyscheme.Scheme
	hub := schema.GroupVersion{Group: kind.Group, Version: runtime.APIVersionInternal}
	c, err := New(m.types, runtime.UnsafeObjectConvertor(scheme), scheme, scheme, kind, hub, "", nil)
	if err != nil {
		m.t.Fatal(err)
	}
	return c
}

// TestManagedFieldsOfCreationsMatchUpstream creates objects of every kind in every version, each slightly different
// from the one before, and compares their managedFields with those of upstream's field manager.
func TestManagedFieldsOfCreationsMatchUpstream(t *testing.T) {
	t.Parallel()
	bases, steps, enough := 2, 40, 1000
	if testing.Short() {
		bases, steps, enough = 1, 16, 200 // still every kind and version
	}
	upstream, own := newManagers(t, managedfields.NewDefaultFieldManager), newManagers(t, newManager)
	hits, kept := 0, 0
	for kind, versions := range kinds(t, upstream.types) {
		for _, version := range versions {
			of := version.WithKind(kind.Kind)
			creations := newCache(own, of)
			random := rand.New(rand.NewSource(7))
			for range bases {
				h := &history{t: t, kind: kind, versions: versions, random: random}
				obj := h.object()
				for range steps {
					if hasCreation(creations, obj) {
						hits++
					}
					want := created(t, upstream, of, obj)
					if want == nil { // a client cannot send such an object
						obj = h.object()
						continue
					}
					got := obj.DeepCopyObject()
					if err := creations.Create(got, "creator"); err != nil {
						t.Fatal(err)
					}
					blankTimes(t, got)
					compare(t, of, want, got)
					if !registrytest.Mutate(obj, random) {
						obj = h.object()
					}
				}
			}
			kept += len(creations.results)
		}
	}
	if hits < enough || kept < enough {
		t.Errorf("%d of the results came from the caches, which have %d; want at least %d of each", hits, kept, enough)
	}
}

// created returns obj with the managedFields of upstream's field manager. It returns nil if that panics,
// because obj cannot be converted to a version.
func created(t *testing.T, by *managers, kind schema.GroupVersionKind, obj runtime.Object) (made runtime.Object) {
	t.Helper()
	defer func() {
		if recover() != nil {
			made = nil
		}
	}()
	live, err := legacyscheme.Scheme.New(kind)
	if err != nil {
		t.Fatal(err)
	}
	obj = by.of(kind).UpdateNoErrors(live, obj.DeepCopyObject(), "creator")
	blankTimes(t, obj)
	return obj
}

// hasCreation reports whether the cache has the managedFields of obj.
func hasCreation(c *Cache, obj runtime.Object) bool {
	obj = obj.DeepCopyObject()
	object, err := meta.Accessor(obj)
	if err != nil {
		return false
	}
	return c.result(c.creationKey(obj, object, "creator", new(identifiers))) != nil
}

// TestCreationsThatAreNotCached checks that managedFields that depend on more than the fields of the object are not
// cached, that one manager's results are not used for another, and that the cache keeps its limits.
func TestCreationsThatAreNotCached(t *testing.T) {
	own := newManagers(t, newManager)
	creations := newCache(own, corev1.SchemeGroupVersion.WithKind("Pod"))
	pod := func() *corev1.Pod {
		pod := registrytest.Pod(1)
		pod.ManagedFields = nil
		return pod
	}
	create := func(pod *corev1.Pod, manager string) []metav1.ManagedFieldsEntry {
		internal, err := legacyscheme.Scheme.UnsafeConvertToVersion(pod, schema.GroupVersion{Version: runtime.APIVersionInternal})
		if err != nil {
			t.Fatal(err)
		}
		if err := creations.Create(internal, manager); err != nil {
			t.Fatal(err)
		}
		object, _ := meta.Accessor(internal)
		return object.GetManagedFields()
	}
	for range 3 {
		for _, manager := range []string{"one", "two"} {
			if got := create(pod(), manager); len(got) != 1 || got[0].Manager != manager || got[0].Time == nil {
				t.Fatalf("created by %s: managedFields %v", manager, got)
			}
		}
	}
	known := len(creations.results)
	sent := pod()
	sent.ManagedFields = []metav1.ManagedFieldsEntry{{Manager: "x", Operation: "Update", APIVersion: "v1", FieldsType: "FieldsV1", FieldsV1: metav1.NewFieldsV1(`{"f:spec":{"f:nodeName":{}}}`)}}
	create(sent, "one")
	applied := pod()
	applied.Annotations = map[string]string{corev1.LastAppliedConfigAnnotation: "{}"}
	create(applied, "kubectl")
	long := pod()
	long.Labels = map[string]string{strings.Repeat("x", maxKey): ""}
	create(long, "one")
	if n := len(creations.results); n != known {
		t.Errorf("%d results are cached, want %d", n, known)
	}
	for i := range 2 * maxResults {
		some := pod()
		some.Labels = map[string]string{strings.Repeat("x", i): ""}
		create(some, "one")
	}
	if n := len(creations.results); n > maxResults {
		t.Errorf("%d results are cached, want at most %d", n, maxResults)
	}
	peak := 0
	for i := range maxResults - 1 {
		some := pod()
		for j := range 60 {
			some.Labels[fmt.Sprintf("%s-%d-%d", strings.Repeat("x", 50), i, j)] = ""
		}
		create(some, "one")
		size := 0
		for key, result := range creations.results {
			size += len(key) + len(result[0].entry.FieldsV1.GetRawBytes())
		}
		peak = max(peak, size)
	}
	if peak > maxBytes || peak < maxBytes/2 {
		t.Errorf("the cache has up to %d bytes, want at most %d and at least half of that", peak, maxBytes)
	}
}

// TestManagedFieldsAreNotShared checks that a change of one object's managedFields does not change another's, while
// many objects are created concurrently.
func TestManagedFieldsAreNotShared(t *testing.T) {
	creations := newCache(newManagers(t, newManager), corev1.SchemeGroupVersion.WithKind("ConfigMap"))
	var workers sync.WaitGroup
	for range 4 {
		workers.Go(func() {
			for range 50 {
				obj, err := legacyscheme.Scheme.New(schema.GroupVersionKind{Version: runtime.APIVersionInternal, Kind: "ConfigMap"})
				if err != nil {
					t.Error(err)
					return
				}
				object, _ := meta.Accessor(obj)
				object.SetLabels(map[string]string{"a": "b"})
				if err := creations.Create(obj, "m"); err != nil {
					t.Error(err)
					return
				}
				entries := object.GetManagedFields()
				if len(entries) != 1 || string(entries[0].FieldsV1.GetRawBytes()) != `{"f:metadata":{"f:labels":{".":{},"f:a":{}}}}` {
					t.Errorf("managedFields %v, want one entry with the label", entries)
					return
				}
				clear(entries[0].FieldsV1.GetRawBytes())
				*entries[0].Time = metav1.Time{}
			}
		})
	}
	workers.Wait()
}

func BenchmarkCreate(b *testing.B) {
	m := newManagers(b, newManager)
	pod := registrytest.Pod(1)
	pod.ManagedFields = nil
	internal, err := legacyscheme.Scheme.UnsafeConvertToVersion(pod, schema.GroupVersion{Version: runtime.APIVersionInternal})
	if err != nil {
		b.Fatal(err)
	}
	object, _ := meta.Accessor(internal)
	kind := corev1.SchemeGroupVersion.WithKind("Pod")
	creations := newCache(m, kind)
	for name, create := range map[string]func(){
		"manager":   func() { m.of(kind).UpdateNoErrors(&corev1.Pod{}, internal, "m") },
		"creations": func() { _ = creations.Create(internal, "m") },
	} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				object.SetManagedFields(nil)
				create()
			}
		})
	}
}
