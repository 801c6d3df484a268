package consistency

import (
	"cmp"
	"fmt"
	"slices"
	"time"
)

// listedRevision is a resourceVersion that one process sent in a list or a bookmark.
type listedRevision struct {
	resource, what string
	began, ended   time.Duration // the time of the request and of the response
	requested      int64         // revision must not be lower
	exact          bool          // revision must equal the requested one, however old
	revision       int64
}

func (l listedRevision) String() string {
	return fmt.Sprintf("%s of %s, requested %d, from %v to %v: %d", l.what, l.resource, l.requested, l.began, l.ended, l.revision)
}

// checkRevisions checks that the resourceVersions that one process returned for a resource, in any encoding, do not
// decrease: B.
func checkRevisions(revisions []listedRevision) (broken []error) {
	byBegin, byEnd := slices.Clone(revisions), slices.Clone(revisions)
	slices.SortFunc(byBegin, func(a, b listedRevision) int { return cmp.Compare(a.began, b.began) })
	slices.SortFunc(byEnd, func(a, b listedRevision) int { return cmp.Compare(a.ended, b.ended) })
	newest := make(map[string]listedRevision) // of completed responses, by resource
	for _, l := range byBegin {
		for len(byEnd) > 0 && byEnd[0].ended < l.began {
			if e := byEnd[0]; e.revision > newest[e.resource].revision {
				newest[e.resource] = e
			}
			byEnd = byEnd[1:]
		}
		switch before := newest[l.resource]; {
		case l.exact && l.revision != l.requested, l.revision < l.requested:
			broken = append(broken, fmt.Errorf("B: not the requested revision: %v", l))
		case !l.exact && l.revision < before.revision:
			broken = append(broken, fmt.Errorf("B: %v\nfollows %v", l, before))
		}
	}
	return broken
}
