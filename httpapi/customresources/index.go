package customresources

import (
	"iter"
	"maps"

	"k8s.io/apimachinery/pkg/runtime/schema"
)

// index are servings by group and resource. It is immutable: with makes another one, which
// shares the groups that are the same, because there may be thousands of definitions.
type index map[string]map[string]*serving

// of returns the serving of a resource, nil if there is none.
func (x index) of(gr schema.GroupResource) *serving { return x[gr.Group][gr.Resource] }

// all yields all servings.
func (x index) all() iter.Seq[*serving] {
	return func(yield func(*serving) bool) {
		for _, group := range x {
			for _, s := range group {
				if !yield(s) {
					return
				}
			}
		}
	}
}

// with returns x with s in the place of gr; nil removes it.
func (x index) with(gr schema.GroupResource, s *serving) index {
	next, group := maps.Clone(x), maps.Clone(x[gr.Group])
	if s == nil {
		delete(group, gr.Resource)
	} else {
		if group == nil {
			group = make(map[string]*serving)
		}
		group[gr.Resource] = s
	}
	if next == nil {
		next = make(index)
	}
	if next[gr.Group] = group; len(group) == 0 {
		delete(next, gr.Group)
	}
	return next
}
