package cache

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/larder-io/larder/kv"
	"github.com/larder-io/larder/kv/kvtest"
)

// TestLoadsDoNotMixHistories replaces the store between two pages of a load by one that soon has the same revision.
func TestLoadsDoNotMixHistories(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMirror(t)
		values := make(map[string][]byte)
		for i := range 3000 {
			values[testPrefix+string(rune('a'+i%26))+string(rune('0'+i/26))] = []byte("old")
		}
		m.store.PutAll(values)
		m.put(t, testPrefix+"a0", "lost")
		pages, loaded := 0, false
		m.store.SetHook(func(op, _ string) error {
			if op != "list" {
				return nil
			}
			switch pages++; pages {
			case 2:
				m.store.Restore(2, true)
				m.put(t, testPrefix+"z9", "new")
			case 3:
				loaded = m.cache.Snapshot().Epoch() > 0
			}
			return nil
		})
		m.start(t)
		s := m.awaitStore(t)
		if loaded || pages <= 3 {
			t.Errorf("the cache published pages of two histories: %t, after %d pages; want a repeated load", loaded, pages)
		}
		if s.History() != 1 || string(s.Get("a0").Body()) != "old" || string(s.Get("z9").Body()) != "new" {
			t.Errorf("the cache has %q and %q of history %d, want old and new of 1", s.Get("a0").Body(), s.Get("z9").Body(), s.History())
		}
	})
}

// TestSnapshotsNameTheirHistory checks that a snapshot is of the old history until the new one is loaded, and that Wait
// does not return before.
func TestSnapshotsNameTheirHistory(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMirror(t)
		m.put(t, testPrefix+"a", "kept")
		kept := m.put(t, testPrefix+"b", "kept")
		m.start(t)
		last := m.put(t, testPrefix+"b", "lost")
		m.awaitStore(t)
		loading := make(chan struct{})
		m.store.SetHook(func(op, _ string) error {
			if op == "list" {
				<-loading
			}
			return nil
		})
		m.store.Restore(kept, false)
		revision, err := m.store.Revision(t.Context())
		if err != nil || revision != kept {
			t.Fatalf("revision after the restore is %d, error %v, want %d", revision, err, kept)
		}
		if s := m.cache.Snapshot(); s.History() != 0 || m.store.Replacements() != 1 {
			t.Errorf("the snapshot is of history %d, the store has %d; want 0 and 1", s.History(), m.store.Replacements())
		}
		waited := make(chan error, 1)
		go func() { waited <- m.cache.Wait(t.Context(), revision) }()
		synctest.Wait()
		if len(waited) > 0 {
			t.Fatal("Wait for a revision of the new store returned with the snapshot of the old one")
		}
		close(loading)
		if err := <-waited; err != nil {
			t.Fatal(err)
		}
		if s := m.cache.Snapshot(); s.History() != 1 || s.Revision() != kept || string(s.Get("b").Body()) != "kept" {
			t.Errorf("the cache has %q at %d of history %d, want kept at %d of 1", s.Get("b").Body(), s.Revision(), s.History(), kept)
		}
		if err := m.cache.Wait(t.Context(), kept); err != nil {
			t.Error(err)
		}
		go func() { waited <- m.cache.Wait(t.Context(), last+100) }()
		synctest.Wait()
		m.store.Restore(kept, true)
		if err := <-waited; !errors.Is(err, kv.ErrReplaced) {
			t.Errorf("Wait for a revision of the old history: got error %v, want ErrReplaced", err)
		}
	})
}

// TestRevisionAfterReplacementIsOfTheNewHistory replaces the store. The new history has further writes before the cache
// loads. The cache had reached a later revision of the lost history, and must not claim it in the new one.
func TestRevisionAfterReplacementIsOfTheNewHistory(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := mirrorOf(t, kvtest.NewMemory(), kv.TailConfig{Replay: 1000})
		kept := m.put(t, testPrefix+"a", "kept")
		m.start(t)
		for range 30 {
			m.put(t, "/registry/others/a", "lost")
		}
		m.awaitStore(t)
		m.store.EndWatches(kv.ErrCompacted) // the cache reloads at an earlier revision and replays up to the current one
		time.Sleep(10 * time.Second)
		m.awaitStore(t)
		m.store.SetHook(func(op, key string) error {
			if op == "list" && strings.HasPrefix(key, testPrefix) {
				return errors.New("unavailable")
			}
			return nil
		})
		m.store.Restore(kept, true)
		for range 5 {
			time.Sleep(10 * time.Second)
			m.put(t, testPrefix+"a", "new")
		}
		m.store.EndWatches(kv.ErrCompacted)
		time.Sleep(10 * time.Second)
		m.store.SetHook(nil)
		if s := m.awaitStore(t); s.Revision() != kept+5 {
			t.Errorf("the cache claims revision %d, the store is at %d", s.Revision(), kept+5)
		}
		m.checkPast(t, kept, kept+5)
	})
}

// TestPastStatesDoNotMixHistories checks that a slow reader of a state before a reload does not get past states of the
// reloaded history.
func TestPastStatesDoNotMixHistories(t *testing.T) {
	schema := NewResourceSchema("things", nil)
	c, err := New(Config{Schema: schema})
	if err != nil {
		t.Fatal(err)
	}
	grow := func(first, last int64) {
		c.Reset(nil, first)
		for revision := first + 1; revision <= last; revision++ {
			o := NewObject(ObjectConfig{Key: fmt.Sprint(revision), Revision: revision}, schema)
			c.Apply(Batch{Revision: revision, Changes: []Change{{Key: o.Key(), Object: o}}})
		}
	}
	grow(10, 20)
	before := c.current.Load()
	grow(5, 15)
	for revision := int64(5); revision < 15; revision++ {
		if _, err := c.past(before, revision); !errors.As(err, new(ErrTooOld)) {
			t.Errorf("revision %d of the state before the reload: got error %v, want ErrTooOld", revision, err)
		}
		s, err := c.At(revision)
		if err != nil {
			t.Fatal(err)
		}
		if s.Len() != int(revision)-5 {
			t.Errorf("revision %d has %d objects, want %d", revision, s.Len(), revision-5)
		}
	}
}
