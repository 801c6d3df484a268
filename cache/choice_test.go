package cache

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"pgregory.net/rapid"
)

// TestTheSmallestIndexIsUsed checks that a query uses the matching index with the fewest objects, whether declared or
// learnt, and that the result equals a scan's.
func TestTheSmallestIndexIsUsed(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		indexes := []Index{{Label: "a"}, {Label: "b"}, {Field: "f"}}
		schema := NewResourceSchema("things", nil, indexes...)
		c, err := New(Config{Schema: schema})
		if err != nil {
			t.Fatal(err)
		}
		c.limitLearning(learnConfig{maxIndexes: -1})
		var objects []*Object
		value := func(name string, i int) string {
			values := rapid.SampledFrom([]int{1, 2, 40}).Draw(t, name)
			return fmt.Sprint(i % values)
		}
		for i := range rapid.IntRange(0, 200).Draw(t, "objects") {
			objects = append(objects, NewObject(ObjectConfig{
				Key:      fmt.Sprintf("ns%d/%d", i%3, i),
				Revision: 1,
				Labels:   labels.Set{"a": value("a", i), "b": value("b", i)},
				Fields:   fields.Set{"f": value("f", i)},
			}, schema))
		}
		c.Reset(slices.Clone(objects), 1)
		slices.SortFunc(objects, func(a, b *Object) int { return strings.Compare(a.Key(), b.Key()) })

		q := Query{Prefix: rapid.SampledFrom([]string{"", "ns0/", "ns1/", "ns9/"}).Draw(t, "prefix")}
		text := rapid.SampledFrom([]string{"", "a=1", "b=0", "a=0,b=1", "a=39,b=0", "a!=1"}).Draw(t, "labels")
		if q.Label, err = labels.Parse(text); err != nil {
			t.Fatal(err)
		}
		q.Field = fields.ParseSelectorOrDie(rapid.SampledFrom([]string{"", "f=0", "f=1"}).Draw(t, "fields"))
		page, err := c.Snapshot().List(q, nil)
		if err != nil {
			t.Fatal(err)
		}
		var want []*Object
		for _, o := range objects {
			if strings.HasPrefix(o.Key(), q.Prefix) && q.Label.Matches(o.Labels()) && q.Field.Matches(o.Fields()) {
				want = append(want, o)
			}
		}
		if !slices.Equal(page.Objects, want) {
			t.Fatalf("%d objects by index %q, want %d", len(page.Objects), page.Index, len(want))
		}
		least := len(objects)
		for _, ix := range indexes {
			if value, ok := ix.pinned(q.Label, q.Field); ok {
				least = min(least, inRange(objects, q.Prefix, ix, value))
			}
		}
		if page.Scanned > least {
			t.Fatalf("%q, %q: scanned %d objects by index %q, want at most %d", text, q.Field, page.Scanned, page.Index, least)
		}
	})
}

// inRange counts the objects with the prefix that have the value.
func inRange(objects []*Object, prefix string, ix Index, value string) (n int) {
	for _, o := range objects {
		if v, ok := ix.value(o); ok && v == value && strings.HasPrefix(o.Key(), prefix) {
			n++
		}
	}
	return n
}

// TestBetterIndexIsLearntBesideADeclaredOne checks that a declared index with few distinct values does not prevent a
// better one from being learnt and used.
func TestBetterIndexIsLearntBesideADeclaredOne(t *testing.T) {
	schema := NewResourceSchema("things", nil, Index{Label: "tier"})
	c, err := New(Config{Schema: schema})
	if err != nil {
		t.Fatal(err)
	}
	var objects []*Object
	for i := range 2000 {
		set := labels.Set{"tier": "backend", "app": fmt.Sprint(i % 100)}
		objects = append(objects, NewObject(ObjectConfig{Key: fmt.Sprintf("ns/%04d", i), Revision: 1, Labels: set}, schema))
	}
	c.Reset(objects, 1)
	const text = "tier=backend,app=7"
	if index := query(t, c, text, 5); index != "tier" {
		t.Errorf("listed by index %q before another was learnt, want tier", index)
	}
	c.learn()
	page, err := c.Snapshot().List(Query{Label: selector(t, text)}, nil)
	if err != nil || page.Index != "app" || page.Scanned != 20 || len(page.Objects) != 20 {
		t.Errorf("scanned %d objects by index %q and found %d, error %v; want 20 by index app", page.Scanned, page.Index, len(page.Objects), err)
	}
}
