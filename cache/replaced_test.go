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

// TestLoadAcrossAReplacement replaces the store between two pages of a load by one that soon has the same
// revision. The cache must never publish the mixed result.
func TestLoadAcrossAReplacement(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMirror(t)
		values := make(map[string][]byte)
		for i := range 3000 {
			values[testPrefix+string(rune('a'+i%26))+string(rune('0'+i/26))] = []byte("old")
		}
		m.store.PutAll(values)
		m.put(t, testPrefix+"a0", "lost")
		pages, shown := 0, false
		m.store.SetHook(func(op, _ string) error {
			if op != "list" {
				return nil
			}
			switch pages++; pages {
			case 2:
				m.store.Restore(2, true)
				m.put(t, testPrefix+"z9", "new")
			case 3:
				shown = m.cache.Snapshot().Epoch() > 0
			}
			return nil
		})
		m.start(t)
		s := m.awaitStore(t)
		if shown || pages <= 3 {
			t.Errorf("the cache published objects of two histories (%d pages)", pages)
		}
		if s.History() != 1 || string(s.Get("a0").Body()) != "old" || string(s.Get("z9").Body()) != "new" {
			t.Errorf("history %d holds %q and %q", s.History(), s.Get("a0").Body(), s.Get("z9").Body())
		}
	})
}

// TestSnapshotOfALostHistory checks that readers can tell that a snapshot is of a replaced store until the new one
// is loaded.
func TestSnapshotOfALostHistory(t *testing.T) {
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
			t.Errorf("history %d is shown, of %d", s.History(), m.store.Replacements())
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
			t.Errorf("history %d at %d holds %q", s.History(), s.Revision(), s.Get("b").Body())
		}
		if err := m.cache.Wait(t.Context(), kept); err != nil {
			t.Error(err)
		}
		go func() { waited <- m.cache.Wait(t.Context(), last+100) }()
		synctest.Wait()
		m.store.Restore(kept, true)
		if err := <-waited; !errors.Is(err, kv.ErrReplaced) {
			t.Errorf("Wait: %v, want ErrReplaced", err)
		}
	})
}

// TestReplayOfAReplacedStore replaces the store, whose new history has its own past before the cache loads. The cache,
// which was exact up to a later revision of the lost history, must not claim that revision of the new one.
func TestReplayOfAReplacedStore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := replayed(t, kvtest.NewMemory(), kv.TailConfig{Replay: 1000})
		kept := m.put(t, testPrefix+"a", "kept")
		m.start(t)
		for range 30 {
			m.put(t, "/registry/others/a", "lost")
		}
		m.awaitStore(t)
		m.store.EndWatches(kv.ErrCompacted) // the cache loads the past and stays exact up to the present
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
			t.Errorf("the cache claims revision %d of a store at %d", s.Revision(), kept+5)
		}
		m.checkPast(t, kept, kept+5)
	})
}

// TestPastOfALostHistory checks that a slow reader of a state before a reload does not get past states of the
// reloaded history.
func TestPastOfALostHistory(t *testing.T) {
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
			t.Errorf("revision %d of the state before the reload: %v, want ErrTooOld", revision, err)
		}
		s, err := c.At(revision)
		if err != nil {
			t.Fatal(err)
		}
		if s.Len() != int(revision)-5 {
			t.Errorf("revision %d has %d objects", revision, s.Len())
		}
	}
}
