package consistency

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// outcome is what a writer knows about the result of its write.
type outcome int

const (
	unknown outcome = iota // there was no response, or an inconclusive one
	rejected
	acknowledged
)

// write is one attempt to change an object.
type write struct {
	of       *resource
	payload  payload // id 0 for a deletion
	key      string
	deletes  int64 // revision in a deletion's precondition
	revision int64 // of an acknowledged write; 0 if the response did not contain it

	transaction int64 // to which the write belongs; 0 means none
	outcome     outcome
	note        string // describes the response
}

func (w write) String() string {
	return fmt.Sprintf("write %v of %v %s (deletes %d) acknowledged at %d: %s", w.payload, w.of, w.key, w.deletes, w.revision, w.note)
}

// filter restricts a list or a watch; "" does not restrict it.
type filter struct{ group, name string }

func (f filter) selects(group, name string) bool {
	return (f.group == "" || f.group == group) && (f.name == "" || f.name == name)
}

func (f filter) query() string {
	switch {
	case f.group != "":
		return "&labelSelector=g%3D" + f.group
	case f.name != "":
		return "&fieldSelector=metadata.name%3D" + f.name
	}
	return ""
}

// found is an object in a response.
type found struct {
	name     string
	revision int64
	payload  payload
}

// read is one response, or all pages of one list.
type read struct {
	of         *resource
	what       string
	client     int
	name       string // of the object, "" for a list
	filter     filter
	consistent bool
	known      int64 // the newest revision that any client knew before the read began
	least      int64 // the read must not be older than this revision
	exact      int64 // the read must have this revision, unless it is 0
	revision   int64 // of a list, or of the object, 0 if there is none
	objects    []found
	remaining  []int // the remainingItemCount of each page, -1 if it has none
	sizes      []int // of the pages
	from       []string
	splits     bool // one of the pages is from a server that may return part of a revision
}

func (r *read) String() string {
	return fmt.Sprintf("client %d: %v: %s%s%s at %d from %v (known %d, least %d, exact %d)", r.client, r.of, r.what, r.name, r.filter.query(), r.revision, r.from, r.known, r.least, r.exact)
}

// checkLists replays the log and compares each list with the state at its revision: R.
func checkLists(p *past, reads []*read) (broken []error) {
	lists := slices.DeleteFunc(slices.Clone(reads), func(r *read) bool { return r.name != "" })
	slices.SortStableFunc(lists, func(a, b *read) int { return cmp.Compare(a.revision, b.revision) })
	state, at := make(map[string]found), 0
	for _, r := range lists {
		for ; at < len(p.entries) && p.entries[at].revision <= r.revision; at++ {
			e := p.entries[at]
			if e.payload.id == 0 {
				delete(state, e.key)
			} else {
				state[e.key] = found{e.key, e.revision, e.payload}
			}
		}
		var want []found
		for _, name := range slices.Sorted(maps.Keys(state)) {
			if s := state[name]; r.filter.selects(s.payload.group, name) {
				want = append(want, s)
			}
		}
		if r.splits && p.changes(r.revision) > 1 {
			continue
		}
		if !slices.Equal(want, r.objects) {
			broken = append(broken, fmt.Errorf("R: %v\n got %v\nwant %v", r, r.objects, want))
		}
		seen := 0
		for i, size := range r.sizes {
			seen += size
			if left := r.remaining[i]; left >= 0 && left != len(want)-seen {
				broken = append(broken, fmt.Errorf("R: %v: page %d says that %d objects remain, not %d", r, i, left, len(want)-seen))
			}
		}
	}
	return broken
}

// checkFresh finds reads that are older than their parameters allow: F.
func checkFresh(p *past, reads []*read) (broken []error) {
	for _, r := range reads {
		if r.name != "" {
			broken = append(broken, checkGet(p, r)...)
			continue
		}
		if r.consistent && r.revision < r.known {
			broken = append(broken, fmt.Errorf("F: %v is stale", r))
		}
		if r.revision < r.least || r.exact != 0 && r.revision != r.exact {
			broken = append(broken, fmt.Errorf("R: %v does not have the requested revision", r))
		}
	}
	return broken
}

// checkGet checks that a read object is one of its key's versions. A consistent read must not return a version if a
// later one was known before the read.
func checkGet(p *past, r *read) []error {
	versions := p.byKey[r.name]
	at := -1 // the index of the version that was read; -1 means that the object did not exist yet
	if len(r.objects) > 0 {
		o := r.objects[0]
		at = slices.IndexFunc(versions, func(e entry) bool { return e.revision == o.revision && e.payload == o.payload })
		if at < 0 {
			return []error{fmt.Errorf("R: %v returned %v, which never existed", r, o)}
		}
	} else if r.consistent { // the newest deletion that the read may have seen
		for i, e := range versions {
			if e.payload.id == 0 {
				at = i
			}
		}
	} else {
		return nil
	}
	if at+1 < len(versions) && r.consistent && versions[at+1].revision <= r.known {
		return []error{fmt.Errorf("F: %v returned %v, which was replaced at %d", r, r.objects, versions[at+1].revision)}
	}
	return nil
}

// checkMonotonic checks that the revisions of each client's consistent lists do not decrease: M. reads are in the order
// in which each client made them.
func checkMonotonic(reads []*read) (broken []error) {
	newest := make(map[int]*read)
	for _, r := range reads {
		if !r.consistent || r.name != "" {
			continue
		}
		if before := newest[r.client]; before != nil && r.revision < before.revision {
			broken = append(broken, fmt.Errorf("M: %v follows %v", r, before))
		}
		newest[r.client] = r
	}
	return broken
}

// checkWrites compares writes with the log: X.
func checkWrites(p *past, writes []write) (broken []error) {
	type deletion struct {
		key      string
		replaced int64
	}
	put, deleted := make(map[int64][]entry), make(map[deletion]entry)
	for _, e := range p.entries {
		if e.payload.id != 0 {
			put[e.payload.id] = append(put[e.payload.id], e)
		} else {
			deleted[deletion{e.key, e.replaced}] = e
		}
	}
	acked := make(map[deletion]int)
	possible := make(map[deletion]bool)
	tried := make(map[int64]bool)
	for _, w := range writes {
		if w.payload.id == 0 {
			d := deletion{w.key, w.deletes}
			possible[d] = possible[d] || w.outcome != rejected
			if w.outcome == acknowledged {
				acked[d]++
			}
			continue
		}
		tried[w.payload.id] = true
		at := put[w.payload.id]
		switch {
		case len(at) > 1:
			broken = append(broken, fmt.Errorf("X: %v was applied %d times", w, len(at)))
		case w.outcome == rejected && len(at) != 0:
			broken = append(broken, fmt.Errorf("X: %v was rejected and applied at %d", w, at[0].revision))
		case w.outcome == acknowledged && (len(at) == 0 || at[0].revision != w.revision || at[0].key != w.key):
			broken = append(broken, fmt.Errorf("X: %v is in the log as %v", w, at))
		}
	}
	for id, at := range put {
		if !tried[id] {
			broken = append(broken, fmt.Errorf("X: no client wrote %v", at))
		}
	}
	for d, times := range acked {
		if _, happened := deleted[d]; times > 1 || !happened {
			broken = append(broken, fmt.Errorf("X: the deletion of %v was acknowledged %d times; applied: %v", d, times, happened))
		}
	}
	for d := range deleted {
		if !possible[d] {
			broken = append(broken, fmt.Errorf("X: no client deleted %v", d))
		}
	}
	return broken
}

// checkTransactions finds transactions that were applied partly, or in several revisions: A.
func checkTransactions(p *past, writes []write) (broken []error) {
	type change struct {
		key      string
		id       int64 // the id of a payload, or
		replaced int64 // the revision that a deletion replaced
	}
	at := make(map[change]int64)
	for _, e := range p.entries {
		if e.payload.id != 0 {
			at[change{key: e.key, id: e.payload.id}] = e.revision
		} else {
			at[change{key: e.key, replaced: e.replaced}] = e.revision
		}
	}
	revisions := make(map[int64][]int64)
	for _, w := range writes {
		// Another write may have deleted the object of an unacknowledged deletion.
		if w.transaction != 0 && (w.outcome == acknowledged || w.payload.id != 0) {
			revisions[w.transaction] = append(revisions[w.transaction], at[change{w.key, w.payload.id, w.deletes}])
		}
	}
	for number, all := range revisions {
		if slices.Min(all) != slices.Max(all) {
			broken = append(broken, fmt.Errorf("A: transaction %d is in the log at %d", number, all))
		}
	}
	return broken
}

// first summarizes violations: their number, and the first of each kind.
func first(broken []error) string {
	if len(broken) == 0 {
		return "nothing"
	}
	kinds, examples := make(map[string]int), ""
	for _, err := range broken {
		kind, _, _ := strings.Cut(err.Error(), ":")
		if kinds[kind]++; kinds[kind] == 1 && len(kinds) < 5 {
			examples += "\n" + err.Error()
		}
	}
	return fmt.Sprintf("%d violations %v, the first of each kind:%s", len(broken), kinds, examples)
}
