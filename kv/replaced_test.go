package kv_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/larder-io/larder/kv"
	"github.com/larder-io/larder/kv/embedded"
	"github.com/larder-io/larder/kv/kvtest"
)

// replaced is a loaded subscription whose store was then restored to an older state. A response has revealed this, but
// the Tail has not reacted yet.
type replaced struct {
	*kvtest.Memory
	tail *kv.Tail
	sub  *kv.Subscription
	old  int64 // the last revision before
}

func newReplaced(t *testing.T) replaced {
	t.Helper()
	r := replaced{Memory: kvtest.NewMemory()}
	r.tail = startTail(t, r)
	r.sub = r.tail.Subscribe("/registry/pods/")
	for range 5 {
		r.old = kvtest.Put(t, r, "/registry/pods/a/x", "lost")
	}
	load(t, r, r.sub, "/registry/pods/")
	synctest.Wait()
	if got := r.sub.Fresh(); got != r.old {
		t.Fatalf("Fresh = %d, want %d", got, r.old)
	}
	r.Restore(3, false)
	if revision, err := r.Revision(t.Context()); err != nil || revision != 3 || r.Replacements() != 1 || r.ReplacedRevision() != r.old {
		t.Fatalf("revision %d, %v; %d replacements, lost %d", revision, err, r.Replacements(), r.ReplacedRevision())
	}
	return r
}

// TestFreshIsZeroUntilTheReload checks that Fresh returns 0 once a response shows that the store was replaced, and that
// Wait waits until the owner has reloaded.
func TestFreshIsZeroUntilTheReload(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newReplaced(t)
		if got := r.sub.Fresh(); got != 0 {
			t.Errorf("Fresh = %d after the replacement, want 0", got)
		}
		waited := make(chan error, 1)
		go func() { waited <- r.sub.Wait(t.Context(), 3) }()
		synctest.Wait()
		select {
		case err := <-waited:
			t.Fatalf("Wait for the store's revision returned with the lost history: %v", err)
		default:
		}
		if _, err := r.sub.Next(t.Context()); !errors.Is(err, kv.ErrLost) {
			t.Fatalf("Next: %v, want ErrLost", err)
		}
		load(t, r, r.sub, "/registry/pods/")
		if err := <-waited; err != nil || r.sub.Fresh() != 3 {
			t.Errorf("after the reload: Wait: %v, Fresh = %d, want 3", err, r.sub.Fresh())
		}
	})
}

// TestWaitFailsAfterAReplacement checks that Wait fails with ErrReplaced if the store is replaced, because revisions of
// the new history are unrelated.
func TestWaitFailsAfterAReplacement(t *testing.T) {
	for name, loads := range map[string]bool{"after the load": true, "before the load": false} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				store := kvtest.NewMemory()
				tail := startTail(t, store)
				sub := tail.Subscribe("/registry/pods/")
				last := kvtest.Put(t, store, "/registry/pods/a/x", "1")
				if loads {
					load(t, store, sub, "/registry/pods/")
				}
				waited, tailWaited := make(chan error, 1), make(chan error, 1)
				go func() { waited <- sub.Wait(t.Context(), last+100) }()
				go func() { tailWaited <- tail.Wait(t.Context(), last+100) }()
				synctest.Wait()
				store.Restore(1, true)
				synctest.Wait()
				load(t, store, sub, "/registry/pods/")
				time.Sleep(time.Second)
				if _, err := sub.Next(t.Context()); !errors.Is(err, kv.ErrLost) {
					t.Fatal(err)
				}
				load(t, store, sub, "/registry/pods/")
				if err := <-waited; !errors.Is(err, kv.ErrReplaced) {
					t.Errorf("Wait: %v, want ErrReplaced", err)
				}
				if err := <-tailWaited; !errors.Is(err, kv.ErrReplaced) {
					t.Errorf("the Tail's Wait: %v, want ErrReplaced", err)
				}
			})
		})
	}
}

// TestLoadOfAReplacedStoreIsRejected checks that a load from the old history does not count in the new one, even if the
// Tail starts after the replacement.
func TestLoadOfAReplacedStoreIsRejected(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := kvtest.NewMemory()
		for range 5 {
			kvtest.Put(t, store, "/registry/pods/a/x", "lost")
		}
		tail := kv.NewTail(kv.TailConfig{Store: store, Prefix: "/registry"})
		early, late := tail.Subscribe("/registry/pods/"), tail.Subscribe("/registry/pods/")
		load(t, store, early, "/registry/pods/")
		store.Restore(3, true)
		late.Loaded(6)
		kvtest.RunUntilEnd(t, tail.Run)
		synctest.Wait()
		for name, sub := range map[string]*kv.Subscription{"Loaded before the replacement": early, "Loaded after the replacement": late} {
			if got := sub.Fresh(); got != 0 {
				t.Errorf("%s: Fresh = %d, want 0", name, got)
			}
			ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
			if _, err := sub.Next(ctx); !errors.Is(err, kv.ErrLost) {
				t.Errorf("%s: Next: %v, want ErrLost", name, err)
			}
			cancel()
			if load(t, store, sub, "/registry/pods/"); sub.Fresh() != 3 {
				t.Errorf("%s: Fresh = %d after the reload, want 3", name, sub.Fresh())
			}
		}
	})
}

// TestLeasesAndCompactionsOfAReplacedStoreAreNotUsed checks the first lease and compaction after a replacement.
func TestLeasesAndCompactionsOfAReplacedStoreAreNotUsed(t *testing.T) {
	store := openEmbedded(t, embedded.Config{StoreConfig: kv.StoreConfig{CompactionInterval: time.Hour}})
	lease := func(key string) int64 {
		t.Helper()
		if _, err := store.Put(t.Context(), key, nil, kv.PutOptions{TTL: time.Hour}); err != nil {
			t.Fatal(err)
		}
		item, _, _, err := store.Get(t.Context(), key)
		if err != nil {
			t.Fatal(err)
		}
		return item.Lease
	}
	move := func() {
		t.Helper()
		if err := store.CompactOnce(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	first := kvtest.Put(t, store, "/registry/a", "1")
	move() // records the revision
	second := kvtest.Put(t, store, "/registry/a", "2")
	move() // compacts there
	kvtest.Put(t, store, "/registry/a", "3")
	if compacted := store.Compaction(); compacted < first || compacted >= second {
		t.Fatalf("compacted at %d, want from %d to below %d", compacted, first, second)
	}
	before := lease("/registry/b")
	store.ForgeHistory(1 << 40)
	if _, _, _, err := store.Get(t.Context(), "/registry/a"); err != nil || store.Replacements() != 1 || store.ReplacedRevision() != 1<<40 {
		t.Fatalf("%d replacements, replaced at %d, error %v; want 1 at %d", store.Replacements(), store.ReplacedRevision(), err, 1<<40)
	}
	if after := lease("/registry/c"); after == before {
		t.Error("a key got a lease of the replaced history")
	}
	move() // has no revision of the new history
	if _, err := store.Range(t.Context(), kv.RangeOptions{Prefix: "/registry/", Revision: second}); err != nil {
		t.Errorf("compacted at a revision recorded in the replaced history: %v", err)
	}
}
