package cache

import (
	"sync"
	"sync/atomic"
	"testing"

	"pgregory.net/rapid"
)

// TestRingMatchesItsModel applies the same operations to rings of several sizes and to a slice.
func TestRingMatchesItsModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		smallest := rapid.IntRange(1, 4).Draw(t, "smallest")
		r := newRing[int](smallest)
		var all []int // all entries so far, by position
		first := 0
		room, grown, shrunk := len(*r.slots.Load()), int64(0), int64(0)
		t.Repeat(map[string]func(*rapid.T){
			"append": func(t *rapid.T) {
				n := rapid.IntRange(0, 9).Draw(t, "entries")
				entries := make([]*int, n)
				for i := range entries {
					all = append(all, len(all))
					entries[i] = &all[len(all)-1]
				}
				r.Append(entries...)
			},
			"discard": func(t *rapid.T) {
				to := rapid.IntRange(0, len(all)+2).Draw(t, "before")
				r.Discard(Position(to))
				first = max(first, min(to, len(all)))
			},
			"skip": func(*rapid.T) {
				r.Skip()
				all = append(all, -1)
				first = len(all)
			},
			"read": func(t *rapid.T) {
				from := rapid.IntRange(0, len(all)+2).Draw(t, "from")
				limit := rapid.IntRange(0, 12).Draw(t, "limit")
				prefix := []*int{nil}
				got, next, lapped := r.Read(Position(from), prefix, limit)
				if lapped != (from < first) {
					t.Fatalf("Read(%d) lapped %t, first is %d", from, lapped, first)
				}
				want := 0
				if !lapped {
					want = min(limit, max(len(all)-from, 0))
				}
				if len(got) != 1+want || next != Position(from+want) {
					t.Fatalf("Read(%d, %d) returned %d entries and position %d, want %d and %d", from, limit, len(got)-1, next, want, from+want)
				}
				for i, e := range got[1:] {
					if *e != from+i {
						t.Fatalf("entry %d is %d", from+i, *e)
					}
				}
			},
			"": func(t *rapid.T) {
				if r.First() != Position(first) || r.Next() != Position(len(all)) {
					t.Fatalf("the ring has positions %d to %d, want %d to %d", r.First(), r.Next(), first, len(all))
				}
				size := len(*r.slots.Load())
				if size < r.smallest {
					t.Fatalf("%d slots, want at least %d", size, r.smallest)
				}
				switch {
				case size > room:
					grown++
				case size < room:
					shrunk++
				}
				if room = size; r.grown.Load() != grown || r.shrunk.Load() != shrunk {
					t.Fatalf("counted as grown %d times, shrunk %d times; want %d, %d", r.grown.Load(), r.shrunk.Load(), grown, shrunk)
				}
			},
		})
	})
}

// TestRingReadersSeeConsecutiveEntries reads a ring while it is written, grown, shrunk and trimmed. Readers must see
// consecutive entries, or that they were lapped.
func TestRingReadersSeeConsecutiveEntries(t *testing.T) {
	r := newRing[uint64](2)
	var done atomic.Bool
	var readers sync.WaitGroup
	for range 3 {
		readers.Go(func() {
			var at Position
			var dst []*uint64
			for !done.Load() || at < r.Next() {
				got, next, lapped := r.Read(at, dst[:0], 50)
				if lapped {
					at = r.First()
					continue
				}
				for i, e := range got {
					if e == nil || Position(*e) != at+Position(i) {
						t.Errorf("at %d: wrong entry %v", at+Position(i), e)
						return
					}
				}
				dst, at = got, next
			}
		})
	}
	for next := uint64(0); next < 100_000; {
		batch := make([]*uint64, max(next%7, 1))
		for i := range batch {
			v := next + uint64(i)
			batch[i] = &v
		}
		r.Append(batch...)
		next += uint64(len(batch))
		if keep := next % 1000; next > keep {
			r.Discard(Position(next - keep))
		}
	}
	done.Store(true)
	readers.Wait()
}
