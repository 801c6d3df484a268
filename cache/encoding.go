package cache

import (
	"sync"
	"sync/atomic"

	"github.com/larder-io/larder/internal/invariants"
)

// keptOverhead is the memory of a kept encoding besides its bytes.
const keptOverhead = 144

// cells are the encodings of an Object or the frames of an Event, by number. They are a linked list with one cell for
// each number ever requested. New cells are added at the head, so reading takes no lock. The bytes come and go inside
// the cell.
type cells struct {
	head atomic.Pointer[cell]
	// state has the bit retired, and those of hashBits.
	state atomic.Uint32
	// extra is for the owner. It uses what would be padding.
	extra uint32
}

// retired is set when the owner leaves the cache. Later encodings are made for callers that still hold it, but not
// kept.
const retired = 1

type cell struct {
	number uint32
	next   *cell // immutable
	kept   atomic.Pointer[keptBytes]

	mu sync.Mutex // held while the bytes are made; guards nothing else
}

// account says where kept bytes are counted.
type account struct {
	schema *ResourceSchema
	frame  bool // of an event
	// urgent bytes replace others, even those in use, because many readers are about to request them or they are
	// expensive to make.
	urgent bool
}

// keptBytes is one kept encoding or frame and its position in the Budget's order.
type keptBytes struct {
	seal  invariants.Seal // of bytes
	bytes []byte
	cell  *cell
	account
	round     atomic.Uint32 // of the budget, when the bytes were last used
	allocated uint32        // the size of the allocation

	older, newer *keptBytes // guarded by Budget.mu
}

// counted returns the sum in which the bytes are counted.
func (s *keptBytes) counted() *atomic.Int64 {
	if s.frame {
		return &s.schema.frames
	}
	return &s.schema.encodings
}

// shared returns the bytes to a reader. Builds tagged invariants check that no reader wrote to them.
func (s *keptBytes) shared() []byte {
	s.seal.Check(s.bytes, "cache: an encoding or frame")
	return s.bytes
}

func (cs *cells) find(number uint32, budget *Budget) ([]byte, bool) {
	for c := cs.head.Load(); c != nil; c = c.next {
		if c.number == number {
			if s := c.kept.Load(); s != nil {
				budget.touch(s)
				return s.shared(), true
			}
			return nil, false
		}
	}
	return nil, false
}

// Kept returns a secondary encoding if it is kept.
func (o *Object) Kept(id EncodingID) ([]byte, bool) { return o.cells.find(uint32(id), o.schema.budget) }

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

// fill builds the encoding of a number and keeps it if the budget allows. One of several concurrent callers builds
// it; the others wait.
func (cs *cells) fill(number uint32, a account, build func() ([]byte, error)) ([]byte, error) {
	c := cs.cell(number)
	c.mu.Lock()
	defer c.mu.Unlock()
	if s := c.kept.Load(); s != nil {
		return s.shared(), nil
	}
	b, err := build()
	if err != nil {
		return nil, err
	}
	b, allocated := trim(b)
	a.schema.budget.add(cs, &keptBytes{seal: invariants.SealOf(b), bytes: b, cell: c, account: a, allocated: allocated})
	return b, nil
}

// retire drops all kept bytes and keeps none afterwards. If none were ever kept, it costs two atomic operations.
func (cs *cells) retire(budget *Budget) {
	cs.state.Or(retired)
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
