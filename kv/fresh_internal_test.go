package kv

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
)

// lasting is a store that is never replaced, and nothing else.
type lasting struct{ Store }

func (lasting) Replacements() uint64 { return 0 }

// TestFreshOfOneHistory has histories follow each other while readers ask how fresh the
// owner is. In every other one the owner never applies what came last, so nobody may be
// told of it, although as much is applied as was queued in the others. Builds with
// invariants look for trouble where it is most likely.
func TestFreshOfOneHistory(t *testing.T) {
	const before, last, small = 90, 100, 2
	ctx := context.Background()
	tail := NewTail(TailConfig{Store: lasting{}, Prefix: "/registry"})
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
		tail.restart(revision, 0, place{present: revision, foreign: true})
		if _, err := sub.Next(ctx); !errors.Is(err, ErrLost) {
			t.Errorf("Next: %v, want ErrLost", err)
		}
		sub.Loaded(revision)
	}
	event := Event{Kind: Create, Key: "/registry/pods/a", Revision: last}
	for range 3000 {
		tail.lose(true)
		begin(small)
		tail.lose(true)
		begin(before)
		tail.dispatch(WatchResponse{Batches: []Batch{{Revision: last, Events: []Event{event}}}, Progress: last})
	}
	over.Store(true)
	readers.Wait()
}
