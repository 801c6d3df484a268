package consistency

import (
	"cmp"
	"fmt"
	"slices"
	"time"
)

// label is the resourceVersion that one process gave a list or a bookmark.
type label struct {
	resource, what string
	began, ended   time.Duration // interval within which it was given
	asked          int64         // it must not be lower
	exact          bool          // must equal the requested revision, however old
	revision       int64
}

func (l label) String() string {
	return fmt.Sprintf("%s of %s, requested %d, from %v to %v: %d", l.what, l.resource, l.asked, l.began, l.ended, l.revision)
}

// checkLabels compares the versions that one process returned for each resource with those it had returned before, in
// any encoding: B.
func checkLabels(labels []label) (broken []error) {
	byBegin, byEnd := slices.Clone(labels), slices.Clone(labels)
	slices.SortFunc(byBegin, func(a, b label) int { return cmp.Compare(a.began, b.began) })
	slices.SortFunc(byEnd, func(a, b label) int { return cmp.Compare(a.ended, b.ended) })
	newest := make(map[string]label) // of those that had ended, by resource
	for _, l := range byBegin {
		for len(byEnd) > 0 && byEnd[0].ended < l.began {
			if e := byEnd[0]; e.revision > newest[e.resource].revision {
				newest[e.resource] = e
			}
			byEnd = byEnd[1:]
		}
		switch before := newest[l.resource]; {
		case l.exact && l.revision != l.asked, l.revision < l.asked:
			broken = append(broken, fmt.Errorf("B: not what was requested: %v", l))
		case !l.exact && l.revision < before.revision:
			broken = append(broken, fmt.Errorf("B: %v\nafter %v", l, before))
		}
	}
	return broken
}
