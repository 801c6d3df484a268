package kv

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
)

// lasting is a store that is never replaced. It has no other methods.
type lasting struct{ Store }

func (lasting) Replacements() uint64 { return 0 }

// changing is a store that counts its replacements. It has no other methods.
type changing struct {
	Store
	replacements atomic.Uint64
}

func (c *changing) Replacements() uint64 { return c.replacements.Load() }

// TestFreshOfOneHistory loses the history again and again while readers call Fresh. The owner never applies the last
// event of a history, so Fresh must never return its revision. Other histories apply as many events as this one has
// queued. Builds with the tag invariants yield where such a race is most likely.
func TestFreshOfOneHistory(t *testing.T) {
	const before, last, small = 90, 100, 2
	ctx := context.Background()
	store := new(changing)
	tail := NewTail(TailConfig{Store: store, Prefix: "/registry"})
	sub := tail.Subscribe("/registry/pods/")
	var over atomic.Bool
	var readers sync.WaitGroup
	for range 2 {
		readers.Go(func() {
			for !over.Load() {
				if got := sub.Fresh(); got == last {
					t.Errorf("fresh up to %d, which was never applied", got)
					return
				}
			}
		})
	}
	begin := func(revision int64) {
		replacements := store.replacements.Add(1)
		tail.lose()
		tail.restart(revision, 0, position{present: revision, replacements: replacements, foreign: true})
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

// TestProgressDoesNotGoBack checks that a progress response of a member that lags does not lower Fresh, and is no sign
// of life of the watch.
func TestProgressDoesNotGoBack(t *testing.T) {
	tail := NewTail(TailConfig{Store: lasting{}, Prefix: "/registry"})
	sub := tail.Subscribe("/registry/pods/")
	sub.Loaded(10)
	tail.restart(10, 0, position{present: 10})
	tail.dispatch(WatchResponse{Progress: 20})
	advances := tail.advances.Load()
	for _, progress := range []int64{15, 20} {
		tail.dispatch(WatchResponse{Progress: progress})
		if sub.Fresh() != 20 || tail.advances.Load() != advances {
			t.Errorf("after progress to 20 and %d: fresh up to %d, %d advances more", progress, sub.Fresh(), tail.advances.Load()-advances)
		}
	}
}
