package cache

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/larder-io/larder/kv"
	"github.com/larder-io/larder/kv/kvtest"
)

// TestRevisionDoesNotDecreaseDuringAReload checks a cache whose resource does not change. Its revision must be the
// store's, far above the last change. That must hold even if the subscription loses its position, and the cache reloads
// at an earlier revision so that watches can continue.
func TestRevisionDoesNotDecreaseDuringAReload(t *testing.T) {
	for _, c := range []struct {
		replay   int64
		replaced bool // the store was replaced before
	}{{0, false}, {1000, false}, {1000, true}} {
		replay := c.replay
		t.Run(fmt.Sprintf("%+v", c), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				store := kvtest.NewMemory()
				first := store.PutAll(map[string][]byte{testPrefix + "a": []byte("1")})
				m := mirrorOf(t, store, kv.TailConfig{Replay: replay})
				m.start(t)
				loads := int64(2)
				if c.replaced {
					m.awaitStore(t)
					store.Restore(first, true)
					m.awaitStore(t)
					loads++
				}
				changed := m.put(t, testPrefix+"a", "2")
				for range 10 {
					m.put(t, "/registry/others/o", "x")
				}
				revision := m.awaitStore(t).Revision()
				check := func(when string) {
					t.Helper()
					s := m.cache.Snapshot()
					if s.Revision() < revision {
						t.Errorf("%s: revision %d after %d", when, s.Revision(), revision)
					}
					if at, err := m.cache.At(revision); err != nil || at.Len() != 1 || s.Len() != 1 {
						t.Errorf("%s: the state at %d has %d objects, the snapshot %d, error %v; want 1 and 1", when, revision, at.Len(), s.Len(), err)
					}
				}
				// Check before every page of the load.
				m.store.SetHook(func(op, key string) error {
					check("before " + op)
					if op == "list" {
						time.Sleep(time.Second)
					}
					check("after " + op)
					return nil
				})
				store.Hold()
				store.EndWatches(kv.ErrCompacted)
				check("after the subscription lost its position")
				synctest.Wait()
				time.Sleep(5 * time.Second)
				check("after the load, before the replay")
				store.Release()
				time.Sleep(time.Minute)
				check("after the replay")
				m.store.SetHook(nil)
				if got := m.cache.Log().Oldest(); replay > 0 && got != changed {
					t.Errorf("the log reaches back to %d, want %d", got, changed)
				}
				if got := m.reflector.Stats.Loads.Load(); got != loads {
					t.Errorf("%d loads, want %d", got, loads)
				}
				m.awaitStore(t)
			})
		})
	}
}

// TestSnapshotRevisionsDoNotDecrease has readers take snapshots while this and other resources change at different
// rates and the subscription loses its position. The revisions of a reader's snapshots must not decrease, and each
// snapshot must equal the store at its revision.
func TestSnapshotRevisionsDoNotDecrease(t *testing.T) {
	for _, replay := range []int64{0, 1_000_000} {
		t.Run(fmt.Sprint("replay ", replay), func(t *testing.T) {
			m := mirrorOf(t, kvtest.NewMemory(), kv.TailConfig{Replay: replay, QueueBytes: 20_000})
			m.start(t)
			if err := m.cache.WaitReady(t.Context()); err != nil {
				t.Fatal(err)
			}
			var highest atomic.Int64 // the highest revision of all snapshots so far
			var over atomic.Bool
			var rounds atomic.Int64 // of the readers
			var readers sync.WaitGroup
			for reader := range 3 {
				readers.Go(func() {
					for i := 0; !over.Load(); i++ {
						if err := m.checkSnapshot(t, &highest, reader == 0 && i%16 == 0); err != nil {
							t.Error(err)
							over.Store(true)
						}
						rounds.Add(1)
						runtime.Gosched() // with one processor, the writer would wait until a reader is preempted
					}
				})
			}
			random := rand.New(rand.NewPCG(5, uint64(replay)))
			for i := range 2000 {
				switch {
				case random.IntN(20) == 0:
					m.put(t, fmt.Sprint(testPrefix, random.IntN(30)), fmt.Sprint(i))
				case random.IntN(400) == 0:
					m.reflector.Reload()
				case random.IntN(400) == 0:
					m.store.EndWatches(kv.ErrCompacted)
				default:
					m.put(t, "/registry/others/o", "x")
				}
				if i%200 == 0 {
					m.store.EndWatches(errors.New("connection lost"))
				}
				if i%8 == 0 { // let readers catch up
					for seen := rounds.Load(); rounds.Load() == seen && !over.Load(); {
						runtime.Gosched()
					}
				}
			}
			over.Store(true)
			readers.Wait()
			m.awaitStore(t)
		})
	}
}

// checkSnapshot checks the revision of a new snapshot. With compare it also compares the snapshot with the store.
func (m *mirror) checkSnapshot(t *testing.T, highest *atomic.Int64, compare bool) error {
	before := highest.Load()
	s := m.cache.Snapshot()
	if s.Revision() < before {
		return fmt.Errorf("a snapshot of revision %d after one of %d", s.Revision(), before)
	}
	for old := highest.Load(); old < s.Revision() && !highest.CompareAndSwap(old, s.Revision()); old = highest.Load() {
	}
	at, err := m.cache.At(before)
	if err == nil && at.Revision() != before || errors.As(err, new(errFuture)) {
		return fmt.Errorf("the state at %d, the revision of an earlier snapshot: %v, %w", before, at, err)
	}
	if !compare {
		return nil
	}
	page, err := m.store.Range(t.Context(), kv.RangeOptions{Prefix: testPrefix, Revision: s.Revision()})
	if err != nil {
		return err
	}
	var want, got []string
	for _, item := range page.Items {
		want = append(want, fmt.Sprintf("%s@%d", strings.TrimPrefix(item.Key, testPrefix), item.Revision))
	}
	for o := range s.All() {
		got = append(got, fmt.Sprintf("%s@%d", o.Key(), o.Revision()))
	}
	if !slices.Equal(got, want) {
		return fmt.Errorf("the snapshot of %d has %v, the store %v", s.Revision(), got, want)
	}
	return nil
}

// TestRevisionBeforeCountsChangesOfThePrefix checks that RevisionBefore counts only changes below the prefix.
func TestRevisionBeforeCountsChangesOfThePrefix(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := kvtest.NewMemory()
		store.PutAll(map[string][]byte{testPrefix + "a/1": []byte("1")})
		m := mirrorOf(t, store, kv.TailConfig{})
		m.start(t)
		m.awaitStore(t)
		var revisions []int64
		for i := range 4 {
			revisions = append(revisions, m.put(t, testPrefix+"a/1", fmt.Sprint(i)))
			m.put(t, testPrefix+"b/1", fmt.Sprint(i))
		}
		m.awaitStore(t)
		for n := 1; n <= 4; n++ {
			want := revisions[4-n] - 1
			if got := m.cache.RevisionBefore(n, "a/"); got != want {
				t.Errorf("before the last %d changes of a: got %d, want %d", n, got, want)
			}
		}
		if got, want := m.cache.RevisionBefore(3, ""), revisions[2]; got != want {
			t.Errorf("before the last 3 changes: got %d, want %d", got, want)
		}
		if got, want := m.cache.RevisionBefore(9, ""), m.cache.Log().Oldest(); got != want || m.cache.RevisionBefore(5, "a/") != want {
			t.Errorf("before more changes than the log has: got %d, want %d", got, want)
		}
		current := m.cache.current.Load()
		m.cache.current.Store(current.apply(Batch{Revision: current.revision + 2, Changes: []Change{{Key: "a/1"}}}, 0))
		if got, want := m.cache.RevisionBefore(1, "a/"), current.revision+1; got != want {
			t.Errorf("before the last change, which is not in the log yet: got %d, want %d", got, want)
		}
		if got, want := m.cache.RevisionBefore(2, "a/"), revisions[3]-1; got != want {
			t.Errorf("before the last 2 changes, of which the newer is not in the log yet: got %d, want %d", got, want)
		}
	})
}
