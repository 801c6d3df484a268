package kv_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"github.com/larder-io/larder/kv"
	"github.com/larder-io/larder/kv/kvtest"
)

// TestTailFindsThePast: where a Tail begins, what it asks the store for that, and
// what is told to those who ask too late.
func TestTailFindsThePast(t *testing.T) {
	const present = 1001
	for _, c := range []struct {
		name            string
		replay          int64
		compacted, told int64 // told: by the compaction protocol
		fail            string
		past            int64
		requests        int // at most
	}{
		{name: "no replay", past: 0},
		{name: "all", replay: 5000, past: 1, requests: 2},
		{name: "bounded", replay: 100, past: present - 100, requests: 2},
		{name: "compacted", replay: 5000, compacted: 700, told: 700, past: 700, requests: 2},
		{name: "compacted by hand", replay: 5000, compacted: 700, past: 700, requests: 13},
		{name: "protocol is behind", replay: 5000, compacted: 700, told: 300, past: 700, requests: 13},
		{name: "compacted before the bound", replay: 100, compacted: 700, told: 700, past: present - 100, requests: 2},
		{name: "compacted up to the present", replay: 100, compacted: present, past: 0, requests: 10},
		{name: "get fails", replay: 100, fail: "get", past: 0, requests: 1},
		{name: "list fails", replay: 100, fail: "list", past: 0, requests: 2},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				store := kvtest.NewMemory()
				if c.told > 0 {
					put(t, store, "compact_rev_key", strconv.FormatInt(c.told, 10))
				}
				for i := 0; ; i++ {
					if put(t, store, "/registry/pods/a", strconv.Itoa(i)) == present {
						break
					}
				}
				if c.compacted > 0 {
					if err := store.Compact(c.compacted); err != nil {
						t.Fatal(err)
					}
				}
				requests := 0
				store.SetHook(func(op, key string) error {
					if key == "compact_rev_key" {
						requests++
						if op == c.fail {
							return errors.New("no answer")
						}
					}
					return nil
				})
				tail := kv.NewTail(kv.TailConfig{Store: store, Prefix: "/registry", Replay: c.replay})
				sub := tail.Subscribe("/registry/pods/")
				runUntilEnd(t, tail.Run)
				synctest.Wait()
				past, until, err := sub.Begin(t.Context())
				if err != nil || past != c.past || past > 0 && until != present {
					t.Errorf("from %d to %d, %v; want from %d", past, until, err, c.past)
				}
				if requests > c.requests {
					t.Errorf("%d requests, want %d at most", requests, c.requests)
				}
				late := tail.Subscribe("/registry/pods/")
				if past, _, err := late.Begin(t.Context()); past != 0 || err != nil {
					t.Errorf("who comes late is sent to %d, %v", past, err)
				}
			})
		})
	}
}

// TestBeginWaits: nobody is sent anywhere before the place is known.
func TestBeginWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := kvtest.NewMemory()
		put(t, store, "/registry/pods/a", "1")
		tail := kv.NewTail(kv.TailConfig{Store: store, Prefix: "/registry", Replay: 10})
		sub, closed := tail.Subscribe("/registry/pods/"), tail.Subscribe("/registry/nodes/")
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		if _, _, err := sub.Begin(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("before Run: %v", err)
		}
		closed.Close()
		if past, _, err := closed.Begin(t.Context()); past != 0 || err != nil {
			t.Errorf("closed: %d, %v", past, err)
		}
		runUntilEnd(t, tail.Run)
		if past, present, err := sub.Begin(t.Context()); past != 1 || present != 2 || err != nil {
			t.Errorf("from %d to %d, %v", past, present, err)
		}
		sub.Loaded(1)
		if past, _, err := sub.Begin(t.Context()); past != 0 || err != nil {
			t.Errorf("loaded: %d, %v", past, err)
		}
	})
}

// TestPastIsLost: a history that was given up is not begun in its past again.
func TestPastIsLost(t *testing.T) {
	for name, fault := range map[string]func(*kvtest.Memory){
		"replaced":  func(store *kvtest.Memory) { store.Restore(5, true) },
		"compacted": func(store *kvtest.Memory) { store.EndWatches(kv.ErrCompacted) },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				store := kvtest.NewMemory()
				for i := range 10 {
					put(t, store, "/registry/pods/a", strconv.Itoa(i))
				}
				tail := kv.NewTail(kv.TailConfig{Store: store, Prefix: "/registry", Replay: 5})
				sub := tail.Subscribe("/registry/pods/")
				runUntilEnd(t, tail.Run)
				if past, _, err := sub.Begin(t.Context()); past != 6 || err != nil {
					t.Fatalf("from %d, %v", past, err)
				}
				fault(store)
				synctest.Wait()
				if past, _, err := sub.Begin(t.Context()); past != 0 || err != nil {
					t.Errorf("sent to %d, %v", past, err)
				}
			})
		})
	}
}

// TestEmbeddedReplay: an embedded etcd that is opened again still has its past.
func TestEmbeddedReplay(t *testing.T) {
	dir := t.TempDir()
	var first, last int64
	t.Run("before", func(t *testing.T) {
		store := openEmbedded(t, kv.EmbeddedConfig{Dir: dir})
		first = put(t, store, "/registry/pods/a", "0")
		for i := range 3000 { // more than etcd sends at once
			last = put(t, store, fmt.Sprintf("/registry/pods/%d", i%10), strconv.Itoa(i))
		}
	})
	store := openEmbedded(t, kv.EmbeddedConfig{Dir: dir})
	tail := kv.NewTail(kv.TailConfig{Store: store, Prefix: "/registry", Replay: 1_000_000})
	sub := tail.Subscribe("/registry/pods/")
	runUntilEnd(t, tail.Run)
	past, present, err := sub.Begin(t.Context())
	if err != nil || past >= first || present != last {
		t.Fatalf("from %d to %d, %v; want from before %d to %d", past, present, err, first, last)
	}
	sub.Loaded(past)
	for next := first; next <= last; {
		batches, err := sub.Next(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		for _, batch := range batches {
			if batch.Revision != next {
				t.Fatalf("revision %d, want %d", batch.Revision, next)
			}
			next++
		}
		sub.Applied(len(batches))
	}
}

// TestCatchUp replays a past that is read in parts, some of them empty, while the
// store fails in different ways: what is handed out has no gap and nothing twice.
func TestCatchUp(t *testing.T) {
	for name, c := range map[string]struct {
		fault func(store *kvtest.Memory)
		lost  bool
	}{
		"nothing happens": {fault: func(*kvtest.Memory) {}},
		"watches end":     {fault: func(store *kvtest.Memory) { store.EndWatches(errors.New("connection lost")) }},
		"compacted":       {fault: func(store *kvtest.Memory) { store.EndWatches(kv.ErrCompacted) }, lost: true},
		"replaced":        {fault: func(store *kvtest.Memory) { store.Restore(500, true) }, lost: true},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				store := kvtest.NewMemory()
				var want []int64
				for i := range 20_000 {
					key := "/elsewhere"
					if i < 9_000 || i == 15_500 || i > 19_000 && i < 19_500 {
						key = "/registry/pods/a"
					}
					revision := store.PutAll(map[string][]byte{key: []byte("x")})
					if key != "/elsewhere" {
						want = append(want, revision)
					}
				}
				store.Hold()
				tail := kv.NewTail(kv.TailConfig{Store: store, Prefix: "/registry", Replay: 1_000_000})
				sub := tail.Subscribe("/registry/pods/")
				runUntilEnd(t, tail.Run)
				past, _, err := sub.Begin(t.Context())
				if past != 1 || err != nil {
					t.Fatalf("from %d, %v", past, err)
				}
				sub.Loaded(past)
				synctest.Wait()
				c.fault(store)
				store.Release()
				var got []int64
				for len(got) < len(want) {
					batches, err := sub.Next(t.Context())
					if errors.Is(err, kv.ErrLost) && c.lost {
						return
					}
					if err != nil {
						t.Fatal(err)
					}
					for _, batch := range batches {
						got = append(got, batch.Revision)
					}
					sub.Applied(len(batches))
				}
				if c.lost || !slices.Equal(got, want) {
					t.Errorf("got %d revisions, want lost %v or %d", len(got), c.lost, len(want))
				}
				if err := sub.Wait(t.Context(), 20_001); err != nil || sub.Fresh() < 20_001 {
					t.Errorf("fresh up to %d, %v", sub.Fresh(), err)
				}
			})
		})
	}
}
