package cache

import (
	"math/bits"
	"sync/atomic"
)

// Position counts the entries ever appended to a Log. An entry's position never
// changes; positions of different Logs are unrelated.
type Position uint64

// ring is a queue with one writer and any number of readers, each of which keeps its own Position.
// Readers take no lock. The writer does not wait for them: Read reports to a reader that it was lapped.
//
// Entries must not change after Append. Only the writer calls Append, Replace, Discard and Skip.
//
// Implementation: a slice of atomic pointers, whose length is a power of two. The writer raises first before it clears
// a slot. A reader loads entries, and then first: if first has passed them, the reader was lapped. To grow or shrink,
// the writer publishes a new slice with all live entries, and never writes to the old one again.
type ring[T any] struct {
	slots atomic.Pointer[[]atomic.Pointer[T]]
	// first is the oldest entry, next the position after the newest.
	// Invariant: first <= next, next-first <= len(slots)
	first, next atomic.Uint64

	smallest int // minimum len(slots)

	grown, shrunk atomic.Int64
}

// newRing makes a ring that starts with room for smallest entries, rounded up to a power of two.
func newRing[T any](smallest int) *ring[T] {
	r := &ring[T]{smallest: 1 << bits.Len(uint(max(smallest, 1)-1))}
	slots := make([]atomic.Pointer[T], r.smallest)
	r.slots.Store(&slots)
	return r
}

// First is the position of the oldest entry, or Next when there is none.
func (r *ring[T]) First() Position { return Position(r.first.Load()) }

// Next is the position that the next entry will have.
func (r *ring[T]) Next() Position { return Position(r.next.Load()) }

// Append adds the entries. Readers see all of them or none.
func (r *ring[T]) Append(entries ...*T) {
	first, next := r.first.Load(), r.next.Load()
	if room := r.room(int(next-first) + len(entries)); room != len(*r.slots.Load()) {
		r.resize(room)
	}
	slots := *r.slots.Load()
	for i, e := range entries {
		slots[(next+uint64(i))&uint64(len(slots)-1)].Store(e)
	}
	r.next.Store(next + uint64(len(entries)))
}

// room returns the length of the slice for used entries: doubled while they do not fit, halved while they fill less
// than a quarter.
func (r *ring[T]) room(used int) int {
	room := len(*r.slots.Load())
	for used > room {
		room *= 2
	}
	for room > r.smallest && used < room/4 {
		room /= 2
	}
	return room
}

func (r *ring[T]) resize(room int) {
	old := *r.slots.Load()
	slots := make([]atomic.Pointer[T], room)
	for at := r.first.Load(); at != r.next.Load(); at++ {
		slots[at&uint64(room-1)].Store(old[at&uint64(len(old)-1)].Load())
	}
	r.slots.Store(&slots)
	if room > len(old) {
		r.grown.Add(1)
	} else {
		r.shrunk.Add(1)
	}
}

// Discard drops every entry before the position, at most all.
func (r *ring[T]) Discard(before Position) {
	first, to := r.first.Load(), min(uint64(before), r.next.Load())
	if to <= first {
		return
	}
	r.first.Store(to)
	slots := *r.slots.Load()
	for at := first; at != to; at++ {
		slots[at&uint64(len(slots)-1)].Store(nil)
	}
	if room := r.room(int(r.next.Load() - to)); room != len(slots) {
		r.resize(room)
	}
}

// Replace replaces the entry at a position, which must exist.
func (r *ring[T]) Replace(p Position, e *T) {
	slots := *r.slots.Load()
	slots[uint64(p)&uint64(len(slots)-1)].Store(e)
}

// Skip drops every entry and leaves one position unused, so that all earlier positions are too old.
func (r *ring[T]) Skip() {
	r.Discard(r.Next())
	r.first.Store(r.next.Load() + 1)
	r.next.Store(r.first.Load())
}

// Read appends at most limit entries from a position on to dst, and returns the position after the
// last one. lapped reports that entries at the position were dropped. Then Read returns dst unchanged.
func (r *ring[T]) Read(from Position, dst []*T, limit int) (entries []*T, next Position, lapped bool) {
	// Load next before slots: a slice loaded later holds every live entry before next.
	end := r.next.Load()
	slots := *r.slots.Load()
	length := len(dst)
	at := uint64(from)
	for ; at < end && limit > 0; limit-- {
		dst = append(dst, slots[at&uint64(len(slots)-1)].Load())
		at++
	}
	if uint64(from) < r.first.Load() {
		clear(dst[length:])
		return dst[:length], from, true
	}
	return dst, Position(at), false
}

// at returns the entry at a position, or nil if it was dropped or does not exist yet.
func (r *ring[T]) at(p Position) *T {
	if uint64(p) >= r.next.Load() {
		return nil
	}
	slots := *r.slots.Load()
	e := slots[uint64(p)&uint64(len(slots)-1)].Load()
	if uint64(p) < r.first.Load() {
		return nil
	}
	return e
}
