package registry

import (
	"slices"
	"testing"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/larder-io/larder/internal/registry/storage"
)

// TestStatesOfCustomResources checks which state of a custom resource is the newest, and that the order of all states
// does not change between two calls: the consistency checker compares one after the other.
func TestStatesOfCustomResources(t *testing.T) {
	var c customs
	begin := func(name string) (*storage.Resource, func()) {
		r := &storage.Resource{GroupResource: schema.GroupResource{Group: "example.com", Resource: name}}
		return r, c.begin(r)
	}
	check := func(all []*storage.Resource, newest ...*storage.Resource) {
		t.Helper()
		for range 20 {
			if !slices.Equal(c.all(), all) {
				t.Fatalf("all: %v, want %v", c.all(), all)
			}
		}
		if got := c.allNewest(); len(got) != len(newest) {
			t.Errorf("newest: %v, want %v", got, newest)
		}
		for _, want := range newest {
			if got := c.newest(want.GroupResource); got != want {
				t.Errorf("newest of %s: %p, want %p", want.GroupResource, got, want)
			}
		}
	}
	old, endOld := begin("a")
	b, endB := begin("b")
	a, endA := begin("a")
	d, _ := begin("d")
	check([]*storage.Resource{old, b, a, d}, a, b, d)
	endOld()
	endOld() // a second call changes nothing
	check([]*storage.Resource{b, a, d}, a, b, d)
	older, endOlder := a, endA
	a, endA = begin("a")
	check([]*storage.Resource{b, older, d, a}, a, b, d)
	endA() // the newest may end first
	check([]*storage.Resource{b, older, d}, older, b, d)
	endB()
	endOlder()
	check([]*storage.Resource{d}, d)
	if got := c.newest(a.GroupResource); got != nil {
		t.Errorf("a resource that has ended: %v", got)
	}
}
