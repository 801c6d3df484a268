package cache

import (
	"sync"
	"sync/atomic"

	"github.com/larder-io/larder/internal/invariants"
)

// storedOverhead is what a kept encoding costs beside its bytes.
const storedOverhead = 144

// cells are the byte strings derived from one Object or Event, found by number.
// Reading one that exists takes no lock.
//
// Implementation: a list that only ever grows at its head, by one cell per number
// that was ever asked for (a handful). The bytes come and go inside the cell.
type cells struct {
	head atomic.Pointer[cell]
	// retired is set when the owner left the cache: from then on bytes are still
	// made for those who hold it, but no longer kept.
	retired atomic.Bool
	// extra is for the owner: room that would be padding otherwise.
	extra uint32
}

type cell struct {
	number uint32
	next   *cell // immutable
	kept   atomic.Pointer[stored]

	mu sync.Mutex // held while the bytes are made; guards nothing else
}

// stored is one kept byte string and its place in the Budget's order.
type stored struct {
	bytes []byte
	cell  *cell
	count *atomic.Int64

	older, newer *stored // guarded by Budget.mu
}

func (cs *cells) find(number uint32) ([]byte, bool) {
	for c := cs.head.Load(); c != nil; c = c.next {
		if c.number == number {
			if s := c.kept.Load(); s != nil {
				return s.bytes, true
			}
			return nil, false
		}
	}
	return nil, false
}

// Kept gives a secondary encoding if it is at hand.
func (o *Object) Kept(id EncodingID) ([]byte, bool) { return o.cells.find(uint32(id)) }

// cell finds or adds the cell of a number.
func (cs *cells) cell(number uint32) *cell {
	for {
		head := cs.head.Load()
		for c := head; c != nil; c = c.next {
			if c.number == number {
				return c
			}
		}
		c := &cell{number: number, next: head}
		if cs.head.CompareAndSwap(head, c) {
			return c
		}
	}
}

// fill makes the bytes of a number and keeps them if the budget allows. When
// several callers meet, one makes and the others wait.
func (cs *cells) fill(number uint32, budget *Budget, count *atomic.Int64, build func() ([]byte, error)) ([]byte, error) {
	c := cs.cell(number)
	c.mu.Lock()
	defer c.mu.Unlock()
	if s := c.kept.Load(); s != nil {
		return s.bytes, nil
	}
	b, err := build()
	if err != nil {
		return nil, err
	}
	b = trim(b)
	budget.add(cs, &stored{bytes: b, cell: c, count: count})
	return b, nil
}

// retire drops what is kept and keeps nothing more. It costs one atomic store
// when nothing was ever derived.
func (cs *cells) retire(budget *Budget) {
	cs.retired.Store(true)
	if cs.head.Load() == nil {
		return
	}
	budget.mu.Lock()
	defer budget.mu.Unlock()
	for c := cs.head.Load(); c != nil; c = c.next {
		if s := c.kept.Load(); s != nil {
			budget.dropLocked(s)
		}
	}
}

// Budget bounds the bytes kept in secondary encodings and frames, over all
// caches that share it. What was made first is dropped first; whoever asks for
// it again has it made again.
type Budget struct {
	limit int64
	used  atomic.Int64

	mu             sync.Mutex // guards the order below and additions to used
	oldest, newest *stored
}

// NewBudget allows limit bytes; 0 or less means no limit.
func NewBudget(limit int64) *Budget { return &Budget{limit: limit} }

// Used is the number of bytes kept, with what keeping them costs.
func (b *Budget) Used() int64 { return b.used.Load() }

// Limit is the number of bytes allowed, 0 or less for no limit.
func (b *Budget) Limit() int64 { return b.limit }

// add publishes s in its cell, then drops the oldest until the rest fits. What is
// larger than the budget is not kept: it would drop everything else for nothing.
func (b *Budget) add(owner *cells, s *stored) {
	b.mu.Lock()
	defer b.mu.Unlock()
	// retire sets the flag before it looks for bytes to drop, so either this
	// sees the flag or retire sees the bytes.
	if owner.retired.Load() || b.limit > 0 && s.cost() > b.limit {
		return
	}
	s.older = b.newest
	if b.newest != nil {
		b.newest.newer = s
	} else {
		b.oldest = s
	}
	b.newest = s
	s.count.Add(int64(len(s.bytes)))
	b.used.Add(s.cost())
	s.cell.kept.Store(s)
	for b.limit > 0 && b.used.Load() > b.limit {
		b.dropLocked(b.oldest)
	}
}

func (b *Budget) dropLocked(s *stored) {
	if s.older != nil {
		s.older.newer = s.newer
	} else {
		b.oldest = s.newer
	}
	if s.newer != nil {
		s.newer.older = s.older
	} else {
		b.newest = s.older
	}
	s.older, s.newer = nil, nil
	s.count.Add(-int64(len(s.bytes)))
	used := b.used.Add(-s.cost())
	if invariants.Enabled {
		invariants.Assertf(used >= 0, "cache: budget below zero: %d", used)
		invariants.Assertf(s.cell.kept.Load() == s, "cache: dropped an encoding that is not kept")
	}
	s.cell.kept.Store(nil)
}

func (s *stored) cost() int64 { return int64(cap(s.bytes)) + storedOverhead }
