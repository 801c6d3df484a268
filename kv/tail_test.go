package kv_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/larder-io/larder/kv"
	"github.com/larder-io/larder/kv/kvtest"
)

// startTail runs a Tail of /registry in a synctest bubble until the test ends.
func startTail(t *testing.T, store kv.Store) *kv.Tail {
	t.Helper()
	tail := kv.NewTail(kv.TailConfig{Store: store, Prefix: "/registry"})
	kvtest.RunUntilEnd(t, tail.Run)
	synctest.Wait()
	return tail
}

// load loads a subscription from a Range of its prefix.
func load(t *testing.T, store kv.Store, sub *kv.Subscription, prefix string) int64 {
	t.Helper()
	page, err := store.Range(t.Context(), kv.RangeOptions{Prefix: prefix})
	if err != nil {
		t.Fatal(err)
	}
	sub.Loaded(page.Revision)
	return page.Revision
}

// countWatches counts the watches that are opened from now on.
func countWatches(store *kvtest.Memory) *atomic.Int64 {
	opened := new(atomic.Int64)
	store.SetHook(func(op, _ string) error {
		if op == "watch" {
			opened.Add(1)
		}
		return nil
	})
	return opened
}

// startLoaded runs a Tail over an empty store, with a loaded subscription to pods.
func startLoaded(t *testing.T) (*kvtest.Memory, *kv.Tail, *kv.Subscription) {
	t.Helper()
	store := kvtest.NewMemory()
	tail := startTail(t, store)
	sub := tail.Subscribe("/registry/pods/")
	load(t, store, sub, "/registry/pods/")
	return store, tail, sub
}

// next returns the keys of the next batches without applying them.
func next(t *testing.T, sub *kv.Subscription) (keys []string, batches int) {
	t.Helper()
	got, err := sub.Next(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, batch := range got {
		for _, event := range batch.Events {
			keys = append(keys, fmt.Sprintf("%d:%s", batch.Revision, event.Key))
		}
	}
	return keys, len(got)
}

func TestBatchesReachSubscriptionsByPrefix(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := kvtest.NewMemory()
		tail := startTail(t, store)
		pods, again, specs := tail.Subscribe("/registry/pods/"), tail.Subscribe("/registry/pods/"), tail.Subscribe("/registry/services/specs/")
		for _, sub := range []*kv.Subscription{pods, again, specs} {
			sub.Loaded(1)
		}
		kvtest.Put(t, store, "/registry/pods/a/x", "1")
		kvtest.Put(t, store, "/registry/podsy/a", "1")
		kvtest.Put(t, store, "/elsewhere/a", "1")
		store.PutAll(map[string][]byte{
			"/registry/pods/a/y": []byte("1"), "/registry/pods/b/z": []byte("1"),
			"/registry/services/specs/a/s": []byte("1"), "/other": []byte("1"),
		})
		synctest.Wait()
		for _, c := range []struct {
			sub     *kv.Subscription
			want    []string
			batches int
		}{
			{pods, []string{"2:/registry/pods/a/x", "5:/registry/pods/a/y", "5:/registry/pods/b/z"}, 2},
			{specs, []string{"5:/registry/services/specs/a/s"}, 1},
			{again, []string{"2:/registry/pods/a/x", "5:/registry/pods/a/y", "5:/registry/pods/b/z"}, 2},
		} {
			keys, batches := next(t, c.sub)
			if !slices.Equal(keys, c.want) || batches != c.batches {
				t.Errorf("got %q in %d batches, want %q in %d", keys, batches, c.want, c.batches)
			}
		}
	})
}

func TestWaitRequestsProgress(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := kvtest.NewMemory()
		tail := startTail(t, store)
		revision := kvtest.Put(t, store, "/elsewhere", "1")
		start := time.Now()
		if err := tail.Wait(t.Context(), revision); err != nil {
			t.Fatal(err)
		}
		if took := time.Since(start); took > 2*time.Millisecond {
			t.Errorf("progress took %v", took)
		}
		// When the first request is lost, others follow.
		store.IgnoreProgressRequests(true)
		revision = kvtest.Put(t, store, "/elsewhere", "2")
		go func() { time.Sleep(30 * time.Millisecond); store.IgnoreProgressRequests(false) }()
		start = time.Now()
		if err := tail.Wait(t.Context(), revision); err != nil {
			t.Fatal(err)
		}
		if took := time.Since(start); took > 130*time.Millisecond {
			t.Errorf("progress took %v after requests were lost for 30ms", took)
		}
		// A Wait for a future revision lasts until its context ends, and delays no other caller.
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		future := make(chan error, 1)
		go func() { future <- tail.Wait(ctx, 1000) }()
		time.Sleep(30 * time.Second)
		revision = kvtest.Put(t, store, "/elsewhere", "3")
		start = time.Now()
		if err := tail.Wait(t.Context(), revision); err != nil {
			t.Fatal(err)
		}
		if took := time.Since(start); took > 2*time.Millisecond {
			t.Errorf("progress took %v beside a Wait for a future revision", took)
		}
		if err := <-future; !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("Wait for a future revision: got error %v, want DeadlineExceeded", err)
		}
		store.SetHook(func(op, _ string) error {
			if op == "progress" {
				t.Error("progress was requested although no caller waits")
			}
			return nil
		})
		time.Sleep(time.Minute)
	})
}

// TestWaitForTheHighestRevisionDelaysNoOther has one caller wait for the highest possible revision, and an earlier one
// for the current revision.
func TestWaitForTheHighestRevisionDelaysNoOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := kvtest.NewMemory()
		tail := startTail(t, store)
		store.IgnoreProgressRequests(true)
		revision := kvtest.Put(t, store, "/elsewhere", "1")
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		current, future := make(chan error, 1), make(chan error, 1)
		go func() { current <- tail.Wait(ctx, revision) }()
		synctest.Wait()
		go func() { future <- tail.Wait(ctx, math.MaxInt64) }()
		synctest.Wait()
		store.IgnoreProgressRequests(false)
		if err := <-current; err != nil {
			t.Error(err)
		}
		if err := <-future; !errors.Is(err, context.DeadlineExceeded) {
			t.Error(err)
		}
	})
}

func TestWaitReturnsOnceApplied(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store, _, sub := startLoaded(t)
		revision := kvtest.Put(t, store, "/registry/pods/a/x", "1")
		future, cancel := context.WithCancel(t.Context())
		defer cancel()
		go sub.Wait(future, revision+100)
		synctest.Wait()
		done := make(chan error, 1)
		go func() { done <- sub.Wait(t.Context(), revision) }()
		_, n := next(t, sub)
		time.Sleep(time.Second)
		select {
		case err := <-done:
			t.Fatalf("Wait returned %v before Applied", err)
		default:
		}
		kvtest.Put(t, store, "/registry/pods/a/x", "2") // queued later, not waited for
		synctest.Wait()
		sub.Applied(n)
		if err := <-done; err != nil {
			t.Fatal(err)
		}
	})
}

// TestWaitDoesNotReturnAfterALoss checks that Wait waits for the reload if the awaited events were dropped.
func TestWaitDoesNotReturnAfterALoss(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store, _, sub := startLoaded(t)
		revision := kvtest.Put(t, store, "/registry/pods/a/x", "1")
		synctest.Wait()
		done := make(chan error, 1)
		go func() { done <- sub.Wait(t.Context(), revision) }()
		next(t, sub)
		lost := make(chan error, 1)
		go func() { _, err := sub.Next(t.Context()); lost <- err }()
		synctest.Wait()
		sub.Reload()
		synctest.Wait()
		select {
		case err := <-done:
			t.Fatalf("Wait returned %v before the reload", err)
		default:
		}
		if err := <-lost; !errors.Is(err, kv.ErrLost) {
			t.Fatalf("Next: %v, want ErrLost", err)
		}
		load(t, store, sub, "/registry/pods/")
		if err := <-done; err != nil {
			t.Fatal(err)
		}
	})
}

func TestOwnersReloadAfterALoss(t *testing.T) {
	for _, c := range []struct {
		name   string
		lose   func(store *kvtest.Memory)
		before int64 // the value of Fresh until the reload
		want   int64 // revision of the reload
	}{
		{"compacted", func(store *kvtest.Memory) {
			store.Hold()
			store.EndWatches(errors.New("broken"))
			for range 10 {
				store.PutAll(map[string][]byte{"/registry/pods/a/x": []byte("2")})
			}
			if err := store.Compact(10); err != nil {
				panic(err)
			}
			store.Release()
		}, 4, 14},
		{"replaced", func(store *kvtest.Memory) { store.Restore(2, true) }, 0, 2},
		{"replaced without notice", func(store *kvtest.Memory) { store.Restore(2, false) }, 0, 2},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				store := kvtest.NewMemory()
				tail := startTail(t, store)
				sub, late := tail.Subscribe("/registry/pods/"), tail.Subscribe("/registry/nodes/")
				for i := range 3 {
					kvtest.Put(t, store, "/registry/pods/a/x", fmt.Sprint(i))
				}
				load(t, store, sub, "/registry/pods/")
				load(t, store, late, "/registry/nodes/")
				synctest.Wait()
				if got := sub.Fresh(); got != 4 {
					t.Fatalf("Fresh = %d before the loss, want 4", got)
				}
				c.lose(store)
				if _, err := sub.Next(t.Context()); !errors.Is(err, kv.ErrLost) {
					t.Fatalf("Next: %v, want ErrLost", err)
				}
				if got := sub.Fresh(); got != c.before {
					t.Errorf("Fresh = %d after the loss, want %d", got, c.before)
				}
				if got := tail.State().Losses; got != 1 {
					t.Errorf("%d losses, want 1", got)
				}
				waited := make(chan error, 1)
				go func() { waited <- sub.Wait(t.Context(), c.want) }()
				if got := load(t, store, sub, "/registry/pods/"); got != c.want {
					t.Errorf("reloaded at %d, want %d", got, c.want)
				}
				if err := <-waited; err != nil {
					t.Error(err)
				}
				if got := sub.Fresh(); got != c.want {
					t.Errorf("Fresh = %d after the reload, want %d", got, c.want)
				}
				// Loaded has no effect until the owner has received ErrLost.
				late.Loaded(100)
				if got := late.Fresh(); got != c.before {
					t.Errorf("Fresh = %d from a load before the loss, want %d", got, c.before)
				}
				if _, err := late.Next(t.Context()); !errors.Is(err, kv.ErrLost) {
					t.Errorf("Next: %v, want ErrLost", err)
				}
				revision := kvtest.Put(t, store, "/registry/pods/a/x", "new")
				if keys, _ := next(t, sub); !slices.Equal(keys, []string{fmt.Sprintf("%d:/registry/pods/a/x", revision)}) {
					t.Errorf("after the reload the events are %q, want one", keys)
				}
			})
		})
	}
}

// TestReplacementWithoutAnOpenWatch replaces the store by another one, which soon has higher revisions, while the Tail
// has no open watch: before its first one, and before it opens one again.
func TestReplacementWithoutAnOpenWatch(t *testing.T) {
	for _, opened := range []int{0, 1} {
		t.Run(fmt.Sprint(opened), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				store := kvtest.NewMemory()
				for i := range 3 {
					kvtest.Put(t, store, "/registry/pods/a/old", fmt.Sprint(i))
				}
				var watches atomic.Int64
				gate := make(chan struct{})
				store.SetHook(func(op, key string) error {
					if op == "watch" {
						if watches.Add(1) == int64(opened+1) {
							<-gate
						}
					}
					return nil
				})
				tail := startTail(t, store)
				sub := tail.Subscribe("/registry/pods/")
				load(t, store, sub, "/registry/pods/")
				synctest.Wait()
				store.EndWatches(errors.New("connection lost"))
				time.Sleep(time.Second)
				if got, n := sub.Fresh(), watches.Load(); got != 4 || n != int64(opened+1) {
					t.Fatalf("Fresh = %d, %d watches; want 4 and %d", got, n, opened+1)
				}
				store.Restore(1, true)
				for i := range 10 {
					kvtest.Put(t, store, fmt.Sprintf("/registry/pods/a/new%d", i), "1")
				}
				close(gate)
				ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
				defer cancel()
				if batches, err := sub.Next(ctx); !errors.Is(err, kv.ErrLost) {
					t.Fatalf("Next: %v, %v, want ErrLost", batches, err)
				}
				if got := load(t, store, sub, "/registry/pods/"); got != 11 {
					t.Errorf("reloaded at %d, want 11", got)
				}
				if err := sub.Wait(ctx, 11); err != nil {
					t.Error(err)
				}
			})
		})
	}
}

func TestTailResumesWithoutGap(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store, tail, sub := startLoaded(t)
		var want, got []string
		for i := range 20 {
			store.EndWatches(errors.New("connection lost"))
			key := fmt.Sprintf("/registry/pods/a/%d", i)
			want = append(want, fmt.Sprintf("%d:%s", kvtest.Put(t, store, key, "1"), key))
			if i%3 == 0 {
				time.Sleep(time.Minute)
			}
		}
		for len(got) < len(want) {
			keys, n := next(t, sub)
			got = append(got, keys...)
			sub.Applied(n)
		}
		if !slices.Equal(got, want) {
			t.Errorf("got %q, want %q", got, want)
		}
		if losses := tail.State().Losses; losses != 0 {
			t.Errorf("%d losses, want 0", losses)
		}
	})
}

func TestTailReopensStalledWatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store, tail, _ := startLoaded(t)
		store.Hold()
		revision := kvtest.Put(t, store, "/registry/pods/a/x", "1")
		opened := countWatches(store)
		time.Sleep(10 * time.Second)
		if opened.Load() == 0 {
			t.Error("the stalled watch was not reopened")
		}
		store.Release()
		if err := tail.Wait(t.Context(), revision); err != nil {
			t.Error(err)
		}
	})
}

func TestSubscriptionsWithFullQueuesLoseTheirPosition(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := kvtest.NewMemory()
		tail := kv.NewTail(kv.TailConfig{Store: store, Prefix: "/registry/", QueueBytes: 1000})
		kvtest.RunUntilEnd(t, tail.Run)
		synctest.Wait()
		slow, other := tail.Subscribe("/registry/pods/"), tail.Subscribe("/registry/nodes/")
		slow.Loaded(1)
		other.Loaded(1)
		for range 20 {
			kvtest.Put(t, store, "/registry/pods/a/x", "1")
		}
		synctest.Wait()
		if _, err := slow.Next(t.Context()); !errors.Is(err, kv.ErrLost) {
			t.Errorf("Next: %v, want ErrLost", err)
		}
		if got := other.Fresh(); got != 21 {
			t.Errorf("Fresh of the other subscription = %d, want 21", got)
		}
		if got, want := load(t, store, slow, "/registry/pods/"), int64(21); got != want || slow.Fresh() != want {
			t.Errorf("loaded at %d, Fresh = %d, want %d", got, slow.Fresh(), want)
		}
		lost := make(chan error, 1)
		go func() { _, err := other.Next(t.Context()); lost <- err }()
		synctest.Wait()
		kvtest.Put(t, store, "/registry/nodes/n", strings.Repeat("x", 2000))
		if err := <-lost; !errors.Is(err, kv.ErrLost) {
			t.Errorf("Next of a caller that waited: got error %v, want ErrLost", err)
		}
	})
}

func TestCloseEndsNextAndWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := kvtest.NewMemory()
		tail := startTail(t, store)
		sub := tail.Subscribe("/registry/pods/")
		results := make(chan error, 2)
		go func() { _, err := sub.Next(t.Context()); results <- err }()
		go func() { results <- sub.Wait(t.Context(), 5) }()
		synctest.Wait()
		sub.Close()
		sub.Close()
		for range 2 {
			if err := <-results; !errors.Is(err, kv.ErrClosed) {
				t.Errorf("got %v, want ErrClosed", err)
			}
		}
		kvtest.Put(t, store, "/registry/pods/a/x", "1") // no subscription receives it
		synctest.Wait()
	})
}

func TestTailStartsOnceTheStoreResponds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := kvtest.NewMemory()
		store.SetHook(func(op, key string) error { return errors.New("down") })
		tail := startTail(t, store)
		sub := tail.Subscribe("/registry/pods/")
		time.Sleep(time.Minute)
		if got := tail.State(); got != (kv.TailState{}) {
			t.Errorf("State = %+v while the store is down", got)
		}
		store.SetHook(nil)
		store.PutAll(map[string][]byte{"/registry/pods/a/x": []byte("1")})
		if err := tail.Wait(t.Context(), 2); err != nil {
			t.Fatal(err)
		}
		if got := load(t, store, sub, "/registry/pods/"); sub.Fresh() != got {
			t.Errorf("Fresh = %d, want %d", sub.Fresh(), got)
		}
	})
}

// TestLoadsBeforeTheTailStartsAreLost loads before the Tail has found its position. Writes in between must not be
// missed, so the owner must reload.
func TestLoadsBeforeTheTailStartsAreLost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := kvtest.NewMemory()
		down := func(op, _ string) error {
			if op == "revision" {
				return errors.New("down")
			}
			return nil
		}
		store.SetHook(down)
		tail := startTail(t, store)
		before, between := tail.Subscribe("/registry/pods/"), tail.Subscribe("/registry/nodes/")
		load(t, store, before, "/registry/pods/")
		store.PutAll(map[string][]byte{"/registry/pods/p": {1}, "/registry/nodes/n": {1}})
		store.SetHook(nil)
		if err := tail.Wait(t.Context(), 2); err != nil {
			t.Fatal(err)
		}
		between.Loaded(1)
		for i, sub := range []*kv.Subscription{before, between} {
			if got, want := sub.Fresh(), int64(1-i); got != want {
				t.Errorf("Fresh = %d, want %d", got, want)
			}
			if _, err := sub.Next(t.Context()); !errors.Is(err, kv.ErrLost) {
				t.Errorf("Next: %v, want ErrLost", err)
			}
		}
		// Without a position the Tail's Wait does not return.
		store.SetHook(down)
		store.EndWatches(kv.ErrReplaced)
		synctest.Wait()
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		if err := tail.Wait(ctx, 1); err == nil || tail.Seen() != 0 {
			t.Errorf("Wait: %v, Seen = %d", err, tail.Seen())
		}
	})
}

// TestFreshAndWaitDoNotAllocate checks that Fresh and Wait, which every consistent read calls, do not allocate.
func TestFreshAndWaitDoNotAllocate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, tail, sub := startLoaded(t)
		ctx := t.Context()
		allocs := testing.AllocsPerRun(100, func() {
			if sub.Fresh() != 1 || sub.Wait(ctx, 1) != nil || tail.Wait(ctx, 1) != nil {
				t.Error("Fresh or Wait does not return at once at the current revision")
			}
		})
		if allocs != 0 {
			t.Errorf("%v allocations, want 0", allocs)
		}
	})
}
