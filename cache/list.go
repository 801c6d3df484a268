package cache

import (
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
)

// Query selects objects of a Snapshot. The zero Query selects all.
type Query struct {
	// Prefix of the keys. A namespace is "name/", with the slash, so that "a" does not select "a-b".
	Prefix string
	// From is the smallest key, inclusive: Page.Next of the previous page.
	From string
	// Label and Field filter; nil selects everything.
	Label labels.Selector
	Field fields.Selector
	// Shard also filters; nil selects everything.
	Shard *Shard
	// Limit is the maximum number of objects; 0 or less is no limit.
	Limit int
	// OmitRemaining leaves Page.Remaining 0, which saves a walk over the rest.
	OmitRemaining bool
}

// Page is the result of a Query.
type Page struct {
	// Objects is the dst passed to List, with the matching objects appended in key order.
	Objects []*Object
	// Next is the From of the next page, or "" at the end of the range. It is set if objects remain, whether or not
	// they match, so the next page may be empty.
	Next string
	// Remaining is the number of objects from Next on, in any Shard. It is 0 if there are none, if a selector makes it
	// unknown, and if Query.OmitRemaining is set.
	Remaining int64
	// Scanned is the number of objects examined.
	Scanned int
	// OutsideShard is the number of scanned objects that are not in the Shard.
	OutsideShard int
	// Index names the index used, "" if the range was scanned. Learnt says that the cache
	// has built it by itself, because clients often select by that label.
	Index  string
	Learnt bool
}

// List appends the matching objects to dst, in key order. It allocates nothing per object. A corrupt object within
// the range makes it fail with a CorruptError, because it is unknown whether the object matches.
func (s Snapshot) List(q Query, dst []*Object) (Page, error) {
	l := lister{query: q, state: s.state, page: Page{Objects: dst}}
	if q.Label != nil && !q.Label.Empty() {
		l.label = q.Label
	}
	if q.Field != nil && !q.Field.Empty() {
		l.field = q.Field
	}
	l.run()
	if l.corrupt != nil {
		return l.page, &CorruptError{Object: l.corrupt}
	}
	if l.label != nil && s.state.learner != nil {
		s.state.learner.observe(s.state, l.label, l.page.Scanned-l.page.OutsideShard, l.found)
	}
	return l.page, nil
}

type lister struct {
	query Query
	state *state
	label labels.Selector // nil: everything
	field fields.Selector // nil: everything

	page    Page
	found   int
	last    *Object // the object that reached the limit
	corrupt *Object
}

func (l *lister) run() {
	start := max(l.query.Prefix, l.query.From)
	pivot := l.state.pivots.get(start)
	defer l.state.pivots.put(pivot)
	if ix, value := l.chooseIndex(pivot); ix != nil {
		ix.tree.AscendGreaterOrEqual(entry{value, pivot}, func(e entry) bool { return e.value == value && l.visit(e.object) })
		l.checkCorrupt(start)
		return
	}
	if l.query.Shard != nil && l.state.hashes != nil {
		l.scanHashes(start, pivot)
	} else if start == "" {
		if l.label == nil && l.field == nil && l.query.Shard == nil && l.query.Limit <= 0 && l.query.Prefix == "" {
			l.page.Objects = slices.Grow(l.page.Objects, l.state.objects.Len())
		}
		l.state.objects.Ascend(l.visit)
	} else {
		l.state.objects.AscendGreaterOrEqual(pivot, l.visit)
	}
	if l.page.Next != "" && l.label == nil && l.field == nil && !l.query.OmitRemaining {
		l.page.Remaining = l.state.count(l.query.Prefix, l.page.Next, start, l.page.Scanned)
	}
}

// visit examines one object and reports whether to continue.
func (l *lister) visit(o *Object) bool {
	if !strings.HasPrefix(o.Key(), l.query.Prefix) {
		return false
	}
	if l.last != nil {
		l.page.Next = l.last.Key() + "\x00"
		return false
	}
	l.page.Scanned++
	if o.Err() != nil {
		l.corrupt = o
		return false
	}
	if l.query.Shard != nil && !l.query.Shard.Matches(o) {
		l.page.OutsideShard++
		return true
	}
	if l.label != nil && !l.label.Matches((*objectLabels)(o)) {
		return true
	}
	if l.field != nil && !l.field.Matches((*objectFields)(o)) {
		return true
	}
	l.page.Objects = append(l.page.Objects, o)
	if l.found++; l.found == l.query.Limit {
		l.last = o
	}
	return true
}

// chooseIndex returns the index with the fewest objects among those that a selector restricts to one value, and that
// value. It returns nil if there is none.
func (l *lister) chooseIndex(start *Object) (*index, string) {
	var space [4]pinnedIndex
	pinned := space[:0]
	for i := range l.state.indexes {
		ix := &l.state.indexes[i]
		if value, ok := ix.pinned(l.label, l.field); ok {
			pinned = append(pinned, pinnedIndex{ix, value})
		}
	}
	if len(pinned) == 0 {
		return nil, ""
	}
	best := pinned[0]
	if len(pinned) > 1 {
		best = smallest(pinned, start, l.query.Prefix)
	}
	l.page.Index = best.index.Name()
	if best.index.learnt != nil {
		best.index.learnt.uses.Add(1)
		l.page.Learnt = true
	}
	return best.index, best.value
}

// pinnedIndex is an index and the only value that the query selects.
type pinnedIndex struct {
	index *index
	value string
}

// smallest returns the index with the fewest objects in range. It counts in all indexes up to a bound, which grows
// until one index stays below it. So the cost depends on the smallest index.
func smallest(pinned []pinnedIndex, start *Object, prefix string) pinnedIndex {
	for bound := 16; ; bound *= 4 {
		best, least := 0, bound
		for i, p := range pinned {
			if n := p.count(start, prefix, least); n < least {
				best, least = i, n
			}
		}
		if least < bound {
			return pinned[best]
		}
	}
}

func (p pinnedIndex) count(start *Object, prefix string, limit int) (n int) {
	p.index.tree.AscendGreaterOrEqual(entry{p.value, start}, func(e entry) bool {
		if e.value != p.value || !strings.HasPrefix(e.object.Key(), prefix) {
			return false
		}
		n++
		return n < limit
	})
	return n
}

// pinned returns the one value that the selectors allow for the index's field or label.
func (ix Index) pinned(label labels.Selector, field fields.Selector) (string, bool) {
	switch {
	case ix.Field != "" && field != nil:
		return field.RequiresExactMatch(ix.Field)
	case ix.Field == "" && label != nil:
		return label.RequiresExactMatch(ix.Label)
	}
	return "", false
}

// checkCorrupt finds the corrupt object that a scan of the same range would have found. A search in an index can miss
// it, because its labels and fields are not known.
func (l *lister) checkCorrupt(start string) {
	for _, o := range l.state.corruptFrom(start, 1) {
		if strings.HasPrefix(o.Key(), l.query.Prefix) && (l.page.Next == "" || o.Key() < l.page.Next) {
			l.corrupt = o
		}
	}
}

// count returns the number of objects with a prefix from a key on. It does not walk if the range began with the first
// object: then seen objects precede the key.
func (s *state) count(prefix, from, start string, seen int) int64 {
	if start == "" {
		return int64(s.objects.Len() - seen)
	}
	var n int64
	pivot := s.pivots.get(from)
	defer s.pivots.put(pivot)
	s.objects.AscendGreaterOrEqual(pivot, func(o *Object) bool {
		if !strings.HasPrefix(o.Key(), prefix) {
			return false
		}
		n++
		return true
	})
	return n
}
