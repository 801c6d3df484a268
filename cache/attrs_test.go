package cache

import (
	"bytes"
	"fmt"
	"maps"
	"math"
	"strings"
	"sync"
	"testing"

	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"pgregory.net/rapid"
)

// TestPackedAttributesEqualTheirMaps compares packed labels and fields with the maps that they were made from.
func TestPackedAttributesEqualTheirMaps(t *testing.T) {
	schema := NewResourceSchema("things", nil) // shared: names are learned over all rounds
	rapid.Check(t, func(t *rapid.T) {
		text := rapid.OneOf(rapid.StringN(0, 5, 20), rapid.StringN(120, 140, 400))
		labelSet := rapid.MapOfN(rapid.StringN(0, 3, 9), text, 0, 20).Draw(t, "labels")
		fieldSet := rapid.MapOfN(rapid.SampledFrom([]string{"a", "b", "c", "d", "metadata.name", "metadata.namespace"}), text, 0, 6).Draw(t, "fields")
		key := rapid.SampledFrom([]string{"ns/name", "name", "a/b/c"}).Draw(t, "key")
		size := rapid.OneOf(rapid.IntRange(0, 300), rapid.IntRange(0, math.MaxUint32)).Draw(t, "size")
		o := NewObject(ObjectConfig{Key: key, Labels: labelSet, Fields: fieldSet, StoredSize: size}, schema)
		if o.StoredSize() != int64(size) {
			t.Fatalf("stored as %d bytes, want %d", o.StoredSize(), size)
		}
		if o.Namespace()+"/"+o.Name() != key && o.Name() != key || o.Key() != key {
			t.Fatalf("key %q is namespace %q, name %q", key, o.Namespace(), o.Name())
		}
		for name := range labelSet {
			compareLabels(t, o, labelSet, name)
			compareLabels(t, o, labelSet, name+"x")
		}
		want := map[string]string{"metadata.name": o.Name(), "metadata.namespace": o.Namespace()}
		maps.Copy(want, fieldSet)
		for _, name := range []string{"a", "b", "c", "d", "e", "metadata.name", "metadata.namespace"} {
			_, has := want[name]
			if o.Fields().Get(name) != want[name] || o.Fields().Has(name) != has {
				t.Fatalf("field %s is %q, want %q", name, o.Fields().Get(name), want[name])
			}
		}
	})
}

func compareLabels(t *rapid.T, o *Object, set labels.Set, name string) {
	want, has := set[name]
	if got, ok := o.Labels().Lookup(name); got != want || ok != has || o.Labels().Has(name) != has || o.Labels().Get(name) != want {
		t.Fatalf("label %q is %q %t, want %q %t", name, got, ok, want, has)
	}
}

// TestBodiesAreTrimmed checks that a body with much spare capacity is copied, and another is not.
func TestBodiesAreTrimmed(t *testing.T) {
	grown := make([]byte, 100, 1000)
	o := NewObject(ObjectConfig{Key: "a", Body: grown}, NewResourceSchema("things", nil))
	if !bytes.Equal(o.Body(), grown) || cap(o.Body()) > 150 {
		t.Errorf("a body of %d bytes has capacity %d, want at most 150", len(o.Body()), cap(o.Body()))
	}
	tight := make([]byte, 100, 108)
	o = NewObject(ObjectConfig{Key: "a", Body: tight}, NewResourceSchema("things", nil))
	if &o.Body()[0] != &tight[0] || cap(o.Body()) != 100 {
		t.Error("a body without spare capacity was copied, or has spare capacity")
	}
}

// TestLabelsAreShared checks that objects of one workload share their label string.
func TestLabelsAreShared(t *testing.T) {
	schema := NewResourceSchema("things", nil)
	object := func(i, workload int) *Object {
		return NewObject(ObjectConfig{Key: fmt.Sprint(i), Labels: labels.Set{"app": strings.Repeat("x", workload), "tier": "web", "track": "stable"}}, schema)
	}
	for i := range 1000 {
		if a, b := object(i, i), object(i, i); a.labels != b.labels {
			t.Fatalf("two objects of workload %d have separate label strings", i)
		}
	}
}

func TestFieldSelectorsSeeAbsentFieldsAsEmpty(t *testing.T) {
	schema := NewResourceSchema("things", nil)
	old := NewObject(ObjectConfig{Key: "a"}, schema)
	NewObject(ObjectConfig{Key: "b", Fields: fields.Set{"spec.late": "x"}}, schema)
	if !fields.ParseSelectorOrDie("spec.late=").Matches(old.Fields()) || old.Fields().Has("spec.late") {
		t.Error("a field name that was learned after the object was made is not absent from it")
	}
}

// TestObjectsAreMadeWhileFieldsAreLearned makes objects concurrently while field names are added to the schema.
func TestObjectsAreMadeWhileFieldsAreLearned(t *testing.T) {
	schema := NewResourceSchema("things", nil)
	var workers sync.WaitGroup
	for range 4 {
		workers.Go(func() {
			for i := range 2000 {
				name, value := fmt.Sprint("field", i/100), fmt.Sprint(i)
				o := NewObject(ObjectConfig{Key: value, Fields: fields.Set{name: value}, Labels: labels.Set{"l": value}}, schema)
				if o.Fields().Get(name) != value || o.Labels().Get("l") != value {
					t.Errorf("%s is %q, label %q, want %s", name, o.Fields().Get(name), o.Labels().Get("l"), value)
					return
				}
			}
		})
	}
	workers.Wait()
	if names := *schema.fields.Load(); len(names) != 20 {
		t.Errorf("learned %d field names, want 20: %q", len(names), names)
	}
}

// FuzzPacked packs random pairs as labels and fields, and looks up these and other names.
func FuzzPacked(f *testing.F) {
	f.Add("app", "web", "tier", "")
	f.Add("", strings.Repeat("v", 200), "metadata.name", "a")
	f.Add("metadata.name", "", "metadata.namespace", "ns")
	f.Fuzz(func(t *testing.T, k1, v1, k2, v2 string) {
		set := map[string]string{k1: v1, k2: v2}
		o := NewObject(ObjectConfig{Key: "ns/a", Labels: set, Fields: set, StoredSize: len(v1)}, NewResourceSchema("things", nil))
		for _, name := range []string{k1, k2, v1, v2, k1 + k2, ""} {
			want, has := set[name]
			if got, ok := o.Labels().Lookup(name); ok != has || got != want {
				t.Errorf("label %q is %q, %v; want %q, %v", name, got, ok, want, has)
			}
			if derived, ok := o.derivedField(name); ok && !has {
				want, has = derived, true
			}
			if got, ok := o.lookupField(name); ok != has || got != want {
				t.Errorf("field %q is %q, %v; want %q, %v", name, got, ok, want, has)
			}
		}
	})
}
