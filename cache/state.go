package cache

import (
	"slices"
	"sync"

	"github.com/google/btree"

	"github.com/larder-io/larder/internal/invariants"
)

// degree of the trees. A batch copies one path from the root: wide nodes make
// paths short but copies large.
const degree = 32

// pivots are objects that only have a key, for lookups without an allocation.
type pivots struct{ pool sync.Pool }

func (p *pivots) get(key string) *Object {
	o, ok := p.pool.Get().(*Object)
	if !ok {
		o = new(Object)
	}
	o.setKey(key)
	return o
}

func (p *pivots) put(o *Object) {
	o.setKey("")
	p.pool.Put(o)
}

// entry is an object and its value in an index tree.
type entry struct {
	value  string
	object *Object
}

// index is a tree of objects by the value of one label or field.
type index struct {
	Index
	tree   *btree.BTreeG[entry]
	learnt *learnt // nil if the schema declares it
}

// replace replaces the entry of prev by the entry of next, which has the same key; either may be nil. If both have the
// same value, the new entry overwrites the old one.
func (ix *index) replace(prev, next *Object) {
	var (
		value   string
		indexed bool // whether the index has next
	)
	if next != nil {
		value, indexed = ix.value(next)
	}
	if prev != nil {
		if old, was := ix.value(prev); was && !(indexed && value == old) {
			ix.tree.Delete(entry{old, prev})
		}
	}
	if indexed {
		ix.tree.ReplaceOrInsert(entry{value, next})
	}
}

func lessObject(a, b *Object) bool { return a.Key() < b.Key() }

func lessEntry(a, b entry) bool {
	if a.value != b.value {
		return a.value < b.value
	}
	return a.object.Key() < b.object.Key()
}

// state is the content of a Snapshot: the resource at one revision. It never changes after publication. The next state
// shares all nodes that a batch did not touch.
type state struct {
	schema  *ResourceSchema
	pivots  *pivots
	objects *btree.BTreeG[*Object]
	indexes []index // none in past states: see withoutIndexes
	// hashes has all objects if the schema knows their identities, nil in past states.
	hashes  *btree.BTreeG[hashed]
	learner *learner // nil in past states
	// corrupt are the objects with an error; nil if there never was one, which is usual.
	corrupt  *btree.BTreeG[*Object]
	bytes    int64    // of all bodies
	stored   int64    // bytes of all values in the store
	revision int64    // of the last change
	exactTo  int64    // revision up to which the state is exact, as far as is known without the Source
	position Position // after the events of this revision
	epoch    uint64
	history  uint64 // of the store, see Snapshot.History
	repairs  int    // how often publishRepaired has changed the objects in this epoch
	// events are the events that led from the previous state to this one.
	events []*Event
}

func newState(schema *ResourceSchema) *state {
	s := &state{schema: schema, pivots: new(pivots), objects: btree.NewG(degree, lessObject)}
	if schema.identify != nil {
		s.hashes = btree.NewG(degree, lessHashed)
	}
	for _, ix := range schema.indexes {
		s.addIndex(ix, nil)
	}
	return s
}

func (s *state) addIndex(ix Index, learnt *learnt) {
	s.indexes = append(s.indexes, index{Index: ix, tree: btree.NewG(degree, lessEntry), learnt: learnt})
}

// labelIndex returns the position in indexes of the index of a label, or -1.
func (s *state) labelIndex(key string) int {
	return slices.IndexFunc(s.indexes, func(ix index) bool { return ix.Label == key })
}

// clone returns a copy that may be changed while others read or clone this state.
func (s *state) clone() *state {
	next := *s
	next.events = nil
	next.objects = cloneTree(s.objects)
	next.indexes = slices.Clone(s.indexes)
	for i := range next.indexes {
		next.indexes[i].tree = cloneTree(s.indexes[i].tree)
	}
	if s.hashes != nil {
		next.hashes = cloneTree(s.hashes)
	}
	if s.corrupt != nil {
		next.corrupt = cloneTree(s.corrupt)
	}
	return &next
}

// withoutIndexes returns the same state without indexes, which takes a third of the memory. Past states are rarely
// read.
func (s *state) withoutIndexes() *state {
	p := *s
	p.indexes, p.hashes, p.events, p.learner = nil, nil, nil, nil
	return &p
}

// cloneTree clones a published tree. Clone writes to its receiver, so it gets a copy of the header. Both trees copy
// nodes on write.
func cloneTree[T any](tree *btree.BTreeG[T]) *btree.BTreeG[T] {
	header := *tree
	return header.Clone()
}

func (s *state) get(key string) *Object {
	pivot := s.pivots.get(key)
	o, _ := s.objects.Get(pivot)
	s.pivots.put(pivot)
	return o
}

// put inserts or replaces an object and returns the one it replaced.
func (s *state) put(o *Object) *Object {
	prev, _ := s.objects.ReplaceOrInsert(o)
	s.reindex(prev, o)
	if o.Err() != nil {
		if s.corrupt == nil {
			s.corrupt = btree.NewG(degree, lessObject)
		}
		s.corrupt.ReplaceOrInsert(o)
	}
	s.bytes += int64(len(o.body))
	s.stored += o.StoredSize()
	return prev
}

// remove takes an object out and returns it, or nil if there was none.
func (s *state) remove(key string) *Object {
	o := s.get(key)
	if o == nil {
		return nil
	}
	s.objects.Delete(o)
	s.reindex(o, nil)
	return o
}

// reindex updates the indexes when next replaces prev; either may be nil. It also subtracts prev from the
// sums and the corrupt objects.
func (s *state) reindex(prev, next *Object) {
	for i := range s.indexes {
		s.indexes[i].replace(prev, next)
	}
	if s.hashes != nil {
		reindexHash(s.hashes, prev, next)
	}
	if prev == nil {
		return
	}
	if prev.Err() != nil {
		s.corrupt.Delete(prev)
	}
	s.bytes -= int64(len(prev.body))
	s.stored -= prev.StoredSize()
}

func (s *state) corruptCount() int {
	if s.corrupt == nil {
		return 0
	}
	return s.corrupt.Len()
}

// corruptFrom returns at most limit corrupt objects from a key on, in order.
func (s *state) corruptFrom(key string, limit int) (found []*Object) {
	if s.corrupt == nil || limit == 0 {
		return nil
	}
	pivot := s.pivots.get(key)
	defer s.pivots.put(pivot)
	s.corrupt.AscendGreaterOrEqual(pivot, func(o *Object) bool {
		found = append(found, o)
		return len(found) < limit
	})
	return found
}

// apply returns the state after a batch. at is the batch's Time by Log.clock.
func (s *state) apply(batch Batch, at int64) *state {
	next := s.clone()
	events := make([]Event, 0, len(batch.Changes))
	for _, change := range batch.Changes {
		var prev *Object
		if o := change.Object; o != nil {
			if invariants.Enabled {
				invariants.Assertf(o.Key() == change.Key, "cache: object %q under key %q", o.Key(), change.Key)
			}
			prev = next.put(o)
		} else if prev = next.remove(change.Key); prev == nil {
			continue // the cache never had it
		}
		events = append(events, Event{
			Pos: next.position, Revision: batch.Revision, Object: change.Object, Prev: prev, time: at,
		})
		next.position++
	}
	next.revision, next.exactTo = batch.Revision, max(batch.Revision, s.exactTo)
	next.events = make([]*Event, len(events))
	for i := range events {
		next.events[i] = &events[i]
	}
	if len(events) > 0 {
		events[len(events)-1].Last = true
	}
	return next
}

// undo reverts events, given in the order in which they happened.
func (s *state) undo(events []*Event) {
	for _, e := range slices.Backward(events) {
		if e.Prev != nil {
			s.put(e.Prev)
		} else {
			s.remove(e.Object.Key())
		}
		s.position--
	}
}

// spotCheck calls check for some states, fewer if there are many objects. Otherwise caches would lag by seconds in
// tests on busy machines.
func (s *state) spotCheck() {
	if s.revision%int64(1+s.objects.Len()/16) == 0 {
		s.check()
	}
}

// check asserts the invariants of a published state, in builds tagged invariants. It walks everything.
func (s *state) check() {
	invariants.Assertf(s.exactTo >= s.revision, "cache: exact up to %d, changed at %d", s.exactTo, s.revision)
	var last *Object
	var bytes, stored int64
	var corrupt int
	s.objects.Ascend(func(o *Object) bool {
		invariants.Assertf(last == nil || last.Key() < o.Key(), "cache: %q out of order", o.Key())
		if o.Err() != nil {
			corrupt++
		}
		bytes += int64(len(o.body))
		stored += o.StoredSize()
		last = o
		return true
	})
	invariants.Assertf(bytes == s.bytes, "cache: %d bytes counted, %d kept", bytes, s.bytes)
	invariants.Assertf(stored == s.stored, "cache: %d stored bytes counted, %d kept", stored, s.stored)
	invariants.Assertf(corrupt == s.corruptCount(), "cache: %d corrupt, %d listed", corrupt, s.corruptCount())
	if s.hashes != nil {
		invariants.Assertf(s.hashes.Len() == s.objects.Len(), "cache: %d of %d objects with hashes", s.hashes.Len(), s.objects.Len())
	}
	for _, ix := range s.indexes {
		entries := 0
		ix.tree.Ascend(func(e entry) bool {
			value, ok := ix.value(e.object)
			invariants.Assertf(ok && value == e.value, "cache: %q filed under %q, has %q", e.object.Key(), e.value, value)
			invariants.Assertf(s.get(e.object.Key()) == e.object, "cache: index %q holds an old %q", ix.Name(), e.object.Key())
			entries++
			return true
		})
		want := s.objects.Len()
		if ix.Label != "" {
			want = s.countLabelled(ix.Label)
		}
		invariants.Assertf(entries == want, "cache: %d of %d objects in index %q", entries, want, ix.Name())
	}
}

func (s *state) countLabelled(key string) (n int) {
	s.objects.Ascend(func(o *Object) bool {
		if _, ok := o.label(key); ok {
			n++
		}
		return true
	})
	return n
}
