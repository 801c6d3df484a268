package costs

import (
	"slices"
	"unique"
)

const (
	// keep is how many entries, for each kind of costs, stay when a summary drops some.
	keep = 100
	// mostEntries is how many entries a summary has at most.
	mostEntries = 6 * keep
)

// summary adds up costs by name, for no more than mostEntries names at a time.
//
// Invariant: what a name has been charged of a kind is between the entry's seen and seen plus
// missed, or at most missed of the summary if it has no entry. missed*(keep+1) <= total.
type summary struct {
	total  Usage
	missed Usage // what a name without an entry has been charged at most
	index  map[unique.Handle[Key]]int
	all    []entry
}

// entry is what a summary knows of one name.
type entry struct {
	key    unique.Handle[Key]
	seen   Usage // what it was charged since the entry was made
	missed Usage // what it was charged before that at most
	left   Usage // seen, less what all entries lost when some were dropped
}

// add charges key with u.
func (s *summary) add(key unique.Handle[Key], u *Usage) {
	s.total.add(u)
	at, ok := s.index[key]
	if !ok {
		if len(s.all) == mostEntries {
			s.prune()
		}
		if s.index == nil {
			s.index = make(map[unique.Handle[Key]]int)
		}
		at = len(s.all)
		s.index[key] = at
		s.all = append(s.all, entry{key: key, missed: s.missed})
	}
	s.all[at].seen.add(u)
	s.all[at].left.add(u)
}

// prune drops entries. Of each kind, the entries lose what the one behind the first keep has:
// of that kind no more than these have anything left, and an entry that has nothing left of
// any kind is dropped.
func (s *summary) prune() {
	column := make([]int64, len(s.all))
	for k := range kinds {
		for i := range s.all {
			column[i] = s.all[i].left[k]
		}
		slices.Sort(column)
		floor := column[len(column)-1-keep]
		s.missed[k] += floor
		for i := range s.all {
			s.all[i].left[k] = max(0, s.all[i].left[k]-floor)
		}
	}
	s.all = slices.DeleteFunc(s.all, func(e entry) bool { return e.left == Usage{} })
	clear(s.index)
	for i := range s.all {
		s.index[s.all[i].key] = i
	}
}

// tally is what several summaries know together.
type tally struct {
	total, missed Usage
	rows          map[unique.Handle[Key]]*entry
}

// merge adds s, which is of a later time than those before.
func (t *tally) merge(s *summary) {
	for i := range s.all {
		e := &s.all[i]
		row := t.rows[e.key]
		if row == nil {
			row = &entry{key: e.key, missed: t.missed}
			t.rows[e.key] = row
		}
		row.seen.add(&e.seen)
		row.missed.add(&e.missed)
	}
	for key, row := range t.rows {
		if _, ok := s.index[key]; !ok {
			row.missed.add(&s.missed)
		}
	}
	t.total.add(&s.total)
	t.missed.add(&s.missed)
}
