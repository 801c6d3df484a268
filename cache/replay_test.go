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

// replayed returns a mirror of a store with past revisions.
func replayed(t *testing.T, store *kvtest.Memory, tail kv.TailConfig) *mirror {
	t.Helper()
	m := &mirror{store: store}
	tail.Store, tail.Prefix = store, "/registry"
	m.tail = kv.NewTail(tail)
	m.sub = m.tail.Subscribe(testPrefix)
	schema := NewResourceSchema("things", nil)
	var err error
	if m.cache, err = New(Config{Schema: schema, Decode: decodeTest(schema), Source: m.sub}); err != nil {
		t.Fatal(err)
	}
	m.reflector, err = NewReflector(ReflectorConfig{Store: store, Sub: m.sub, Cache: m.cache, Prefix: testPrefix, Workers: 3})
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// TestReflectorReplaysThePast checks that after a start a cache is not ready until it has reached the current revision.
// Then its log reaches back as far as the store does.
func TestReflectorReplaysThePast(t *testing.T) {
	const writes = 50 // revisions 2 to 51
	compact := func(store *kvtest.Memory, revision int64) error { return store.Compact(revision) }
	for _, c := range []struct {
		name   string
		tail   kv.TailConfig
		before func(store *kvtest.Memory) error            // the start
		list   func(store *kvtest.Memory, pages int) error // before a page is read
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
			name: "compacted before the loads", tail: kv.TailConfig{Replay: 1000}, oldest: 49,
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
				m := replayed(t, store, c.tail)
				m.start(t)
				if err := m.cache.WaitReady(t.Context()); err != nil {
					t.Fatal(err)
				}
				if got := m.cache.Snapshot().Revision(); got < writes+1 {
					t.Errorf("ready at revision %d", got)
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

// checkPast compares past states with the store's.
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
		t.Errorf("at %d: %v", from-1, err)
	}
}

// TestReflectorIsReadyAtThePresent checks that the cache cannot be read until the watch has delivered the past,
// and that later writes do not delay this.
func TestReflectorIsReadyAtThePresent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := kvtest.NewMemory()
		for i := range 10 {
			store.PutAll(map[string][]byte{testPrefix + "a": fmt.Append(nil, i)})
		}
		store.PutAll(map[string][]byte{"/registry/others/x": nil, "/registry/others/y": []byte("1")})
		store.Hold()
		m := replayed(t, store, kv.TailConfig{Replay: 5})
		m.start(t)
		time.Sleep(time.Second)
		if s := m.cache.Snapshot(); m.cache.Ready() || s.Epoch() != 1 || s.Revision() != 7 {
			t.Errorf("ready %v at revision %d of epoch %d", m.cache.Ready(), s.Revision(), s.Epoch())
		}
		if _, err := m.cache.At(7); !errors.Is(err, ErrNotReady) {
			t.Errorf("a past state: %v", err)
		}
		store.Release()
		if err := m.cache.WaitReady(t.Context()); err != nil {
			t.Fatal(err)
		}
		if got := m.cache.Snapshot().Revision(); got < 12 {
			t.Errorf("ready at revision %d", got)
		}
		m.awaitStore(t)
	})
}

// TestReflectorReplaysOfReplacedStore checks that a store that is replaced during the replay does not leave the
// cache waiting for a revision that may never come.
func TestReflectorReplaysOfReplacedStore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := kvtest.NewMemory()
		for i := range 10 {
			store.PutAll(map[string][]byte{testPrefix + "a": fmt.Append(nil, i)})
		}
		store.Hold()
		m := replayed(t, store, kv.TailConfig{Replay: 8})
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

// TestReflectorReloadsThePast checks that after a gap the Log goes back as far as the store does, and does not
// contradict what readers saw before.
func TestReflectorReloadsThePast(t *testing.T) {
	const writes = 50 // revisions 2 to 51
	for name, c := range map[string]struct {
		reloaded  bool // at revision 71, while the watch delivers nothing
		compacted int64
		oldest    int64
	}{
		"compacted":                   {false, 60, 60},
		"compacted up to the present": {false, 81, 81},
		"loaded anew before":          {true, 60, 71},
		"loaded anew, then compacted": {true, 75, 75},
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
				m := replayed(t, store, kv.TailConfig{Replay: 1000})
				shown := int64(0)
				m.cache.config.OnAppend = func() {
					now := m.cache.Snapshot().Revision()
					if now < shown && m.cache.Ready() {
						t.Errorf("%d is shown after %d", now, shown)
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

// TestReflectorIsReadyInAnotherHistory checks a cache that waits for the present of a store that is then replaced. It
// must wait for the present of the new store, which has a past by then.
func TestReflectorIsReadyInAnotherHistory(t *testing.T) {
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
		m := replayed(t, store, kv.TailConfig{Replay: 80})
		m.start(t)
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		if err := m.cache.WaitReady(ctx); err != nil {
			t.Fatal(err)
		}
		if s := m.awaitStore(t); s.Revision() != 51 || m.cache.Log().Oldest() != 50 {
			t.Errorf("at %d, from %d on", s.Revision(), m.cache.Log().Oldest())
		}
	})
}

// TestReplayedEventsAge checks that replayed events, whose times are unknown, are kept for minutes longer than an event
// of the time of the start, because clients may resume their watches late.
func TestReplayedEventsAge(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := kvtest.NewMemory()
		for i := range 500 {
			store.PutAll(map[string][]byte{testPrefix + "a": fmt.Append(nil, i)})
		}
		time.Sleep(time.Hour)
		m := replayed(t, store, kv.TailConfig{Replay: 1000})
		m.start(t)
		m.awaitStore(t)
		time.Sleep(4 * time.Minute)
		if n := m.cache.Log().Len(); n != 500 {
			t.Errorf("%d events four minutes after the start", n)
		}
		time.Sleep(time.Minute)
		if n := m.cache.Log().Len(); n != 128 {
			t.Errorf("%d events five minutes after the start", n)
		}
	})
}
