package embedded_test

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/larder-io/larder/kv"
	"github.com/larder-io/larder/kv/embedded"
	"github.com/larder-io/larder/kv/kvtest"
)

// TestReplayIsBoundedByBytes writes large values and replays with a limit of bytes. A Tail must replay as many events as
// the limit allows. A subscription after more writes must replay as many.
func TestReplayIsBoundedByBytes(t *testing.T) {
	const writes, size = 40, 500_000
	dir := t.TempDir()
	store := open(t, embedded.Config{Dir: dir})
	for i := range writes {
		kvtest.Put(t, store, fmt.Sprintf("/registry/configmaps/%d", i%4), strings.Repeat("x", size))
	}
	store.Stop()
	for _, c := range []struct {
		name           string
		most, replayed int64
	}{
		{"none fits", size, 0},
		{"some fit", 7*size + size/2, 7},
		{"all fit", 1 << 40, writes},
	} {
		t.Run(c.name, func(t *testing.T) {
			store := open(t, embedded.Config{Dir: dir})
			defer store.Stop()
			tail := kv.NewTail(kv.TailConfig{
				Store: store, Prefix: "/registry", Replay: writes,
				ReplayFrom: func(ctx context.Context, past, present int64) (int64, error) {
					return store.Recent(ctx, past, present, c.most)
				},
			})
			first := tail.Subscribe("/registry/configmaps/")
			stop := kvtest.RunUntilEnd(t, tail.Run)
			defer stop()
			if got := replayed(t, first); got != c.replayed {
				t.Errorf("replays %d events, want %d", got, c.replayed)
			}
			first.Close()
			var last int64
			for range 8 {
				last = kvtest.Put(t, store, "/registry/configmaps/0", strings.Repeat("x", size))
			}
			if err := tail.Wait(t.Context(), last); err != nil {
				t.Fatal(err)
			}
			if got := replayed(t, tail.Subscribe("/registry/configmaps/")); got != c.replayed {
				t.Errorf("a later subscription replays %d events, want %d", got, c.replayed)
			}
		})
	}
}

// replayed returns the number of events that are replayed for a subscription.
func replayed(t *testing.T, s *kv.Subscription) (events int64) {
	t.Helper()
	past, until, err := s.Begin(t.Context(), 0)
	if err != nil {
		t.Fatal(err)
	}
	if past == 0 {
		return 0
	}
	s.Loaded(past)
	for at := past; at < until; {
		batches, err := s.Next(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		events += int64(len(batches))
		at = batches[len(batches)-1].Revision
		s.Applied(len(batches))
	}
	return events
}
