package kv

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
)

// replaceable is a store that only counts its replacements.
type replaceable struct {
	Store
	replacements atomic.Uint64
}

func (c *replaceable) Replacements() uint64 { return c.replacements.Load() }

// TestFreshDoesNotMixHistories replaces the history again and again while readers call Fresh. The owner never applies
// the last event of a history, so Fresh must never return its revision. Other histories, those with an odd number,
// apply as many events as this one has queued, and have lower revisions. Builds with the tag invariants yield where such
// a race is most likely.
func TestFreshDoesNotMixHistories(t *testing.T) {
	const before, last, small = 90, 100, 2
	ctx := context.Background()
	store := new(replaceable)
	tail := NewTail(TailConfig{Store: store, Prefix: "/registry"})
	sub := tail.Subscribe("/registry/pods/")
	var over atomic.Bool
	var readers sync.WaitGroup
	for range 2 {
		readers.Go(func() {
			for !over.Load() {
				history := store.Replacements()
				got := sub.Fresh()
				if got == last {
					t.Errorf("Fresh = %d, which was never applied", got)
					return
				}
				if history%2 == 1 && got > small && store.Replacements() == history {
					t.Errorf("Fresh = %d in a history that has reached %d", got, small)
					return
				}
			}
		})
	}
	begin := func(revision int64) {
		replacements := store.replacements.Add(1)
		tail.lose()
		tail.restart(revision, 0, position{present: revision, replacements: replacements})
		if _, err := sub.Next(ctx); !errors.Is(err, ErrLost) {
			t.Errorf("Next: %v, want ErrLost", err)
		}
		sub.Loaded(revision)
	}
	event := Event{Kind: Create, Key: "/registry/pods/a", Revision: last}
	for range 3000 {
		begin(small)
		begin(before)
		tail.dispatch(WatchResponse{Batches: []Batch{{Revision: last, Events: []Event{event}}}, Progress: last})
	}
	over.Store(true)
	readers.Wait()
}

// TestOldProgressIsIgnored checks that a progress response of a member that lags does not lower Fresh, and does not
// count as an advance of the watch.
func TestOldProgressIsIgnored(t *testing.T) {
	tail := NewTail(TailConfig{Store: new(replaceable), Prefix: "/registry"})
	sub := tail.Subscribe("/registry/pods/")
	sub.Loaded(10)
	tail.restart(10, 0, position{present: 10})
	tail.dispatch(WatchResponse{Progress: 20})
	advances := tail.advances.Load()
	for _, progress := range []int64{15, 20} {
		tail.dispatch(WatchResponse{Progress: progress})
		if sub.Fresh() != 20 || tail.advances.Load() != advances {
			t.Errorf("after progress to 20 and %d: Fresh = %d, want 20; %d more advances, want 0", progress, sub.Fresh(), tail.advances.Load()-advances)
		}
	}
}

// TestLoadsOfAnotherHistoryAreRejected checks that an owner cannot load the state of a replaced store while the Tail
// still follows the old one: events of the old store would be applied to that state. A caller of Wait waits for the new
// history, not for the old one.
func TestLoadsOfAnotherHistoryAreRejected(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := new(replaceable)
		tail := NewTail(TailConfig{Store: store, Prefix: "/registry"})
		sub := tail.Subscribe("/registry/pods/")
		tail.restart(10, 0, position{present: 10})
		sub.Loaded(10)
		waited := make(chan error, 1)
		for _, reload := range []bool{false, true} {
			if reload {
				sub.Reload()
			}
			history := store.replacements.Add(1)
			if reload {
				if _, err := sub.Next(t.Context()); !errors.Is(err, ErrLost) {
					t.Fatalf("Next: %v, want ErrLost", err)
				}
			}
			go func() { waited <- sub.Wait(t.Context(), 12) }()
			synctest.Wait()
			sub.Loaded(11)
			event := Event{Kind: Create, Key: "/registry/pods/a", Revision: 20}
			tail.dispatch(WatchResponse{Batches: []Batch{{Revision: 20, Events: []Event{event}}}, Progress: 20})
			if batches, err := sub.take(); len(batches) > 0 || err != nil || sub.Fresh() != 0 {
				t.Fatalf("%d batches of the old history, %v; Fresh = %d, want 0", len(batches), err, sub.Fresh())
			}
			tail.lose()
			tail.restart(12, 0, position{present: 12, replacements: history})
			if fresh := sub.Fresh(); fresh != 0 {
				t.Fatalf("Fresh = %d before the load, want 0", fresh)
			}
			if _, err := sub.Next(t.Context()); !errors.Is(err, ErrLost) {
				t.Fatalf("Next: %v, want ErrLost", err)
			}
			sub.Loaded(12)
			if err := <-waited; err != nil || sub.Fresh() != 12 {
				t.Fatalf("Wait: %v; Fresh = %d, want 12", err, sub.Fresh())
			}
		}
	})
}

// TestWaitsEndWithTheirHistory checks that Wait returns ErrReplaced once the Tail follows another history than at the
// call, also if the Tail had lost its position before. A Wait for the new history continues, whatever revision the old
// one reaches.
func TestWaitsEndWithTheirHistory(t *testing.T) {
	for _, noticed := range []bool{false, true} { // before the Tail finds its position
		synctest.Test(t, func(t *testing.T) {
			store := new(replaceable)
			tail := NewTail(TailConfig{Store: store, Prefix: "/registry"})
			waitFor := func(revision int64) <-chan error {
				waited := make(chan error, 1)
				go func() { waited <- tail.Wait(t.Context(), revision) }()
				synctest.Wait()
				return waited
			}
			tail.restart(10, 0, position{present: 10})
			before := waitFor(100)
			if noticed {
				tail.lose() // the store was compacted
			}
			history := store.replacements.Add(1)
			after := waitFor(12)
			tail.dispatch(WatchResponse{Progress: 12}) // of the old history
			if noticed {
				tail.lose()
			}
			synctest.Wait()
			if len(after) > 0 {
				t.Fatalf("Wait in the new history returned in the old one: error %v", <-after)
			}
			tail.restart(11, 0, position{present: 11, replacements: history})
			synctest.Wait()
			if len(before) == 0 {
				t.Fatal("Wait in the old history does not return")
			}
			if err := <-before; !errors.Is(err, ErrReplaced) {
				t.Errorf("Wait in the old history: got error %v, want ErrReplaced", err)
			}
			tail.dispatch(WatchResponse{Progress: 12})
			if err := <-after; err != nil {
				t.Errorf("Wait in the new history: %v", err)
			}
		})
	}
}
