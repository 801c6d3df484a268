package cache

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/larder-io/larder/kv"
	"github.com/larder-io/larder/kv/kvtest"
)

// TestReflectorReplaysThePast checks that after a start a cache is not ready until it has reached the current revision.
// Then its log has all events that the store still has, up to the limits of the Tail.
func TestReflectorReplaysThePast(t *testing.T) {
	const writes = 50 // revisions 2 to 51
	compact := func(store *kvtest.Memory, revision int64) error { return store.Compact(revision) }
	for _, c := range []struct {
		name   string
		tail   kv.TailConfig
		before func(store *kvtest.Memory) error            // runs before the start
		list   func(store *kvtest.Memory, pages int) error // runs before a page is read
		slow   time.Duration                               // how long a page takes
		oldest int64
	}{
		{name: "no replay", oldest: writes + 1},
		{name: "all", tail: kv.TailConfig{Replay: 1000}, oldest: 1},
		{name: "bounded", tail: kv.TailConfig{Replay: 20}, oldest: writes + 1 - 20},
		{
			name: "compacted", tail: kv.TailConfig{Replay: 1000}, oldest: 30,
			before: func(store *kvtest.Memory) error { return compact(store, 30) },
		},
		{
			name: "compacted before the load", tail: kv.TailConfig{Replay: 1000}, oldest: 40,
			list: func(store *kvtest.Memory, pages int) error {
				if pages == 1 {
					return compact(store, 40)
				}
				return nil
			},
		},
		{
			name: "compacted before each of three loads", tail: kv.TailConfig{Replay: 1000}, oldest: 49,
			list: func(store *kvtest.Memory, pages int) error {
				if pages <= 3 {
					return compact(store, 40+3*int64(pages))
				}
				return nil
			},
		},
		{
			name: "load repeated", tail: kv.TailConfig{Replay: 1000}, oldest: 1,
			list: func(_ *kvtest.Memory, pages int) error {
				if pages < 3 {
					return errors.New("unavailable")
				}
				return nil
			},
		},
		{
			name: "too much for the queue", tail: kv.TailConfig{Replay: 1000, QueueBytes: 1000}, oldest: writes + 1,
			slow: time.Second,
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				store := kvtest.NewMemory()
				for i := range writes {
					store.PutAll(map[string][]byte{fmt.Sprintf("%s%d", testPrefix, i%7): fmt.Append(nil, i)})
				}
				if c.before != nil {
					if err := c.before(store); err != nil {
						t.Fatal(err)
					}
				}
				pages := 0
				store.SetHook(func(op, key string) error {
					if op != "list" || !strings.HasPrefix(key, testPrefix) {
						return nil
					}
					time.Sleep(c.slow)
					if c.list == nil {
						return nil
					}
					pages++
					return c.list(store, pages)
				})
				m := mirrorOf(t, store, c.tail)
				m.start(t)
				if err := m.cache.WaitReady(t.Context()); err != nil {
					t.Fatal(err)
				}
				if got := m.cache.Snapshot().Revision(); got < writes+1 {
					t.Errorf("ready at revision %d, want %d", got, writes+1)
				}
				store.SetHook(nil)
				m.awaitStore(t)
				if got := m.cache.Log().Oldest(); got != c.oldest {
					t.Errorf("the log reaches back to %d, want %d", got, c.oldest)
				}
				m.checkPast(t, c.oldest, writes+1)
			})
		})
	}
}

// checkPast compares past states with the store, and checks that older ones cannot be read.
func (m *mirror) checkPast(t *testing.T, from, to int64) {
	t.Helper()
	for revision := from; revision <= to; revision++ {
		s, err := m.cache.At(revision)
		if err != nil {
			t.Fatalf("at %d: %v", revision, err)
		}
		page, err := m.store.Range(t.Context(), kv.RangeOptions{Prefix: testPrefix, Revision: revision})
		if err != nil {
			t.Fatal(err)
		}
		for _, item := range page.Items {
			o := s.Get(strings.TrimPrefix(item.Key, testPrefix))
			if o == nil || o.Revision() != item.Revision || string(o.Body()) != string(item.Value) {
				t.Errorf("at %d, %s differs from the store", revision, item.Key)
			}
		}
		if s.Len() != len(page.Items) {
			t.Errorf("at %d: %d objects, want %d", revision, s.Len(), len(page.Items))
		}
	}
	if _, err := m.cache.At(from - 1); !errors.As(err, new(ErrTooOld)) {
		t.Errorf("at %d: got error %v, want ErrTooOld", from-1, err)
	}
}

// TestCacheIsReadyAfterTheReplay checks that the cache cannot be read until the watch has delivered the past events.
func TestCacheIsReadyAfterTheReplay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := kvtest.NewMemory()
		for i := range 10 {
			store.PutAll(map[string][]byte{testPrefix + "a": fmt.Append(nil, i)})
		}
		store.PutAll(map[string][]byte{"/registry/others/x": nil, "/registry/others/y": []byte("1")})
		store.Hold()
		m := mirrorOf(t, store, kv.TailConfig{Replay: 5})
		m.start(t)
		time.Sleep(time.Second)
		if s := m.cache.Snapshot(); m.cache.Ready() || s.Epoch() != 1 || s.Revision() != 7 {
			t.Errorf("before the events: ready %v at revision %d of epoch %d, want false, 7 and 1", m.cache.Ready(), s.Revision(), s.Epoch())
		}
		if _, err := m.cache.At(7); !errors.Is(err, ErrNotReady) {
			t.Errorf("At before the cache is ready: got error %v, want ErrNotReady", err)
		}
		store.Release()
		if err := m.cache.WaitReady(t.Context()); err != nil {
			t.Fatal(err)
		}
		if got := m.cache.Snapshot().Revision(); got < 12 {
			t.Errorf("ready at revision %d, want 12", got)
		}
		m.awaitStore(t)
	})
}

// TestReplacementDuringAReplay checks that the cache does not wait for a revision of the old history, which may never
// come.
func TestReplacementDuringAReplay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := kvtest.NewMemory()
		for i := range 10 {
			store.PutAll(map[string][]byte{testPrefix + "a": fmt.Append(nil, i)})
		}
		store.Hold()
		m := mirrorOf(t, store, kv.TailConfig{Replay: 8})
		m.start(t)
		synctest.Wait()
		store.Restore(5, true)
		store.Release()
		if err := m.cache.WaitReady(t.Context()); err != nil {
			t.Fatal(err)
		}
		m.awaitStore(t)
	})
}

// TestReflectorReplaysAfterAGap checks that after a gap the Log has all events that the store still has, and that the
// revision of the cache does not decrease.
func TestReflectorReplaysAfterAGap(t *testing.T) {
	const writes = 50 // revisions 2 to 51
	for name, c := range map[string]struct {
		reloaded  bool // at revision 71, while the watch delivers nothing
		compacted int64
		oldest    int64
	}{
		"compacted":                      {false, 60, 60},
		"compacted up to the last write": {false, 81, 81},
		"reloaded before":                {true, 60, 71},
		"reloaded, then compacted":       {true, 75, 75},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				store := kvtest.NewMemory()
				write := func(n int) {
					for i := range n {
						store.PutAll(map[string][]byte{fmt.Sprintf("%s%d", testPrefix, i%7): fmt.Append(nil, n, i)})
					}
				}
				write(writes)
				m := mirrorOf(t, store, kv.TailConfig{Replay: 1000})
				shown := int64(0)
				m.cache.config.OnAppend = func() {
					now := m.cache.Snapshot().Revision()
					if now < shown && m.cache.Ready() {
						t.Errorf("the cache is at revision %d after %d", now, shown)
					}
					shown = now
				}
				m.start(t)
				epoch := m.awaitStore(t).Epoch()
				store.Hold()
				store.EndWatches(errors.New("connection lost"))
				write(20)
				if c.reloaded {
					m.reflector.Reload()
					time.Sleep(time.Second)
				}
				write(10)
				if err := store.Compact(c.compacted); err != nil {
					t.Fatal(err)
				}
				store.Release()
				time.Sleep(10 * time.Second)
				if got := m.awaitStore(t).Epoch(); got == epoch {
					t.Error("a gap did not begin a new epoch")
				}
				if got := m.cache.Log().Oldest(); got != c.oldest {
					t.Errorf("the log reaches back to %d, want %d", got, c.oldest)
				}
				m.checkPast(t, c.oldest, 81)
			})
		})
	}
}

// TestReplacementWithNewWritesDuringAReplay replaces the store while the cache waits for the store's revision. The
// cache must then wait for the revision of the new history, which has a write of its own.
func TestReplacementWithNewWritesDuringAReplay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := kvtest.NewMemory()
		for i := range 100 {
			store.PutAll(map[string][]byte{testPrefix + "a": fmt.Append(nil, i)})
		}
		first := true
		store.SetHook(func(op, key string) error {
			if op != "list" || key != testPrefix || !first {
				return nil
			}
			first = false
			store.Restore(50, true)
			time.Sleep(time.Second)
			store.PutAll(map[string][]byte{testPrefix + "a": []byte("new")})
			store.EndWatches(kv.ErrCompacted)
			time.Sleep(time.Second)
			return nil
		})
		m := mirrorOf(t, store, kv.TailConfig{Replay: 80})
		m.start(t)
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		if err := m.cache.WaitReady(ctx); err != nil {
			t.Fatal(err)
		}
		if s := m.awaitStore(t); s.Revision() != 51 || m.cache.Log().Oldest() != 50 {
			t.Errorf("the cache is at revision %d and its log reaches back to %d, want 51 and 50", s.Revision(), m.cache.Log().Oldest())
		}
	})
}

// TestReplayedEventsAreKeptLonger checks that replayed events, whose times are unknown, are kept for minutes longer than
// an event written at the start, because clients may resume their watches late.
func TestReplayedEventsAreKeptLonger(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := kvtest.NewMemory()
		for i := range 500 {
			store.PutAll(map[string][]byte{testPrefix + "a": fmt.Append(nil, i)})
		}
		time.Sleep(time.Hour)
		m := mirrorOf(t, store, kv.TailConfig{Replay: 1000})
		m.start(t)
		m.awaitStore(t)
		time.Sleep(4 * time.Minute)
		if n := m.cache.Log().Len(); n != 500 {
			t.Errorf("%d events four minutes after the start, want 500", n)
		}
		time.Sleep(time.Minute)
		if n := m.cache.Log().Len(); n != 128 {
			t.Errorf("%d events five minutes after the start, want 128", n)
		}
	})
}
