package customresources

import (
	"fmt"
	"slices"
	"testing"

	"k8s.io/apimachinery/pkg/runtime/schema"
)

// TestIndexesAreImmutable checks that an index does not change when others are made from it, and that a group is
// removed with its last resource.
func TestIndexesAreImmutable(t *testing.T) {
	one, other, third := schema.GroupResource{Group: "a", Resource: "x"}, schema.GroupResource{Group: "a", Resource: "y"}, schema.GroupResource{Group: "b", Resource: "x"}
	servings := []*serving{new(serving), new(serving), new(serving)}
	var empty index
	first := empty.with(one, servings[0])
	both := first.with(other, servings[1])
	all := both.with(third, servings[2])
	changed := all.with(one, servings[2])
	fewer := changed.with(one, nil).with(other, nil).with(other, nil)
	for i, step := range []struct {
		index index
		want  []*serving
	}{
		{empty, []*serving{nil, nil, nil}}, {first, []*serving{servings[0], nil, nil}}, {both, []*serving{servings[0], servings[1], nil}},
		{all, servings}, {changed, []*serving{servings[2], servings[1], servings[2]}}, {fewer, []*serving{nil, nil, servings[2]}},
	} {
		got := []*serving{step.index.of(one), step.index.of(other), step.index.of(third)}
		if !slices.Equal(got, step.want) {
			t.Errorf("index %d: of returned %v, want %v", i, got, step.want)
		}
		n := 0
		for _, group := range step.index {
			for _, s := range group {
				if n++; !slices.Contains(step.want, s) {
					t.Errorf("index %d has a serving that was not put into it", i)
				}
			}
		}
		if want := len(step.want) - len(slices.DeleteFunc(slices.Clone(step.want), func(s *serving) bool { return s != nil })); n != want {
			t.Errorf("index %d has %d servings, want %d", i, n, want)
		}
	}
	if got := fmt.Sprint(len(fewer), len(all)); got != "1 2" {
		t.Errorf("numbers of groups: %s, want 1 2", got)
	}
}
