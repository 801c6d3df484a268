package kv_test

import (
	"errors"
	"fmt"
	"testing"
	"testing/synctest"

	"github.com/larder-io/larder/kv"
	"github.com/larder-io/larder/kv/kvtest"
)

// TestFreshIsExact checks the value of Fresh while events are queued, delivered, applied and dropped. It decreases only
// when the store is replaced.
func TestFreshIsExact(t *testing.T) {
	const pods, nodes = "/registry/pods/", "/registry/nodes/"
	synctest.Test(t, func(t *testing.T) {
		store := kvtest.NewMemory()
		tail := kv.NewTail(kv.TailConfig{Store: store, Prefix: "/registry", QueueBytes: 2000})
		kvtest.RunUntilEnd(t, tail.Run)
		synctest.Wait()
		sub := tail.Subscribe(pods)
		expect := func(when string, want int64) {
			t.Helper()
			synctest.Wait()
			if got := sub.Fresh(); got != want {
				t.Errorf("%s: Fresh = %d, want %d", when, got, want)
			}
		}
		expect("before the load", 0)
		load(t, store, sub, pods)
		other := kvtest.Put(t, store, nodes+"n", "1")
		expect("another prefix changed", other)
		first := kvtest.Put(t, store, pods+"a/x", "1")
		expect("an own change is queued", first-1)
		kvtest.Put(t, store, nodes+"n", "2")
		expect("another prefix changed after it", first-1)
		second := kvtest.Put(t, store, pods+"a/x", "2")
		synctest.Wait()
		_, n := next(t, sub)
		expect("own changes are delivered", first-1)
		sub.Applied(1)
		expect("the first is applied", second-1)
		third := kvtest.Put(t, store, pods+"a/x", "3")
		expect("a third is queued", second-1)
		sub.Applied(n - 1)
		expect("the second is applied", third-1)
		_, n = next(t, sub)
		sub.Applied(n)
		expect("all changes are applied", third)

		sub.Reload()
		expect("after Reload", third)
		if _, err := sub.Next(t.Context()); !errors.Is(err, kv.ErrLost) {
			t.Fatalf("Next: %v, want ErrLost", err)
		}
		expect("after ErrLost", third)
		load(t, store, sub, pods)
		last := kvtest.Put(t, store, nodes+"n", "3")
		expect("reloaded", last)
		for i := range 20 {
			kvtest.Put(t, store, pods+"a/x", fmt.Sprint(i))
		}
		expect("the queue has overflowed", last)
		store.Restore(2, true)
		synctest.Wait()
		if _, err := sub.Next(t.Context()); !errors.Is(err, kv.ErrLost) {
			t.Fatalf("Next: %v, want ErrLost", err)
		}
		expect("the store was replaced", 0)
		load(t, store, sub, pods)
		expect("loaded from the new history", 2)
	})
}
