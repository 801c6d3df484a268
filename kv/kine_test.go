package kv_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/larder-io/larder/internal/proctest"
	"github.com/larder-io/larder/kv"
	"github.com/larder-io/larder/kv/kvtest"
)

// kineSubject returns a Subject of kine, whose transactions write only one key.
func kineSubject(t *testing.T, store *kv.Etcd, err error) Subject {
	t.Helper()
	one := subject(t, store, err)
	one.Imitation = true
	one.PutAll = func(ctx context.Context, values map[string][]byte) (revision int64, err error) {
		for key, value := range values {
			for committed := false; !committed; {
				item, _, _, err := store.Get(ctx, key)
				if err != nil {
					return 0, err
				}
				result, err := store.Put(ctx, key, value, kv.PutOptions{IfRevision: item.Revision})
				if err != nil {
					return 0, err
				}
				committed, revision = result.Committed, result.Revision
			}
		}
		return revision, nil
	}
	return one
}

// startKine starts kine. Tests that call it are not parallel, because each builds kine, and the first build takes
// minutes.
func startKine(t *testing.T, flags ...string) *kvtest.Kine {
	t.Helper()
	if testing.Short() {
		t.Skip("runs kine in a process of its own")
	}
	return kvtest.StartKine(t, flags...)
}

func TestKineConforms(t *testing.T) {
	kine := startKine(t, "--compact-min-retain", "0")
	testConformance(t, func(t *testing.T) Subject {
		store, err := kv.NewExternal(kv.ExternalConfig{Endpoints: []string{kine.URL}})
		return kineSubject(t, store, err)
	})
}

// TestTailSurvivesKillsOfKine kills kine while two stores write to it and compact. A Tail must see every acknowledged
// write of both once and in order, and reach the revision of kine after each kill.
func TestTailSurvivesKillsOfKine(t *testing.T) {
	kine := startKine(t)
	open := func() *kv.Etcd {
		return openExternal(t, kv.ExternalConfig{StoreConfig: kv.StoreConfig{CompactionInterval: 50 * time.Millisecond}, Endpoints: []string{kine.URL}})
	}
	store, sibling := open(), open()
	ctx, cancel := context.WithTimeout(t.Context(), proctest.Patience)
	defer cancel()
	tail, sub := followPods(t, store)
	following, stop := context.WithCancel(ctx)
	var follow errgroup.Group
	var seen recorder
	follow.Go(func() error { return seen.run(following, sub) })

	var mu sync.Mutex
	acknowledged := make(map[string]int64)
	for round := range 3 {
		group, writing := errgroup.WithContext(ctx)
		for i, writer := range []*kv.Etcd{store, store, sibling, sibling} {
			group.Go(func() error {
				for done, attempt := 0, 0; done < 30; attempt++ {
					key := fmt.Sprintf("/registry/pods/%d-%d-%d", round, i, attempt)
					once, cancel := context.WithTimeout(writing, 5*time.Second)
					result, err := writer.Put(once, key, []byte("1"), kv.PutOptions{})
					cancel()
					if writing.Err() != nil {
						return fmt.Errorf("no further write is acknowledged: %w", err)
					}
					if err == nil && result.Committed {
						mu.Lock()
						acknowledged[key] = result.Revision
						mu.Unlock()
						done++
					}
				}
				return nil
			})
		}
		kine.Kill()
		if err := kine.Start(); err != nil {
			t.Fatal(err)
		}
		kine.AwaitReady(t)
		if err := group.Wait(); err != nil {
			t.Fatal(err)
		}
		for { // the store may not have reconnected yet
			revision, err := store.Revision(ctx)
			if err == nil {
				err = sub.Wait(ctx, revision)
			}
			if err == nil {
				break
			}
			if ctx.Err() != nil {
				t.Fatalf("round %d: %v", round, err)
			}
		}
	}
	stop()
	if err := follow.Wait(); err != nil {
		t.Fatal(err)
	}
	seen.sawOnce(t, acknowledged)
	if state := tail.State(); state.Losses != 0 || store.Replacements() != 0 {
		t.Errorf("the tail lost its position: %+v, %d replacements", state, store.Replacements())
	}
}

// TestReplayWithCompactionsOfKine checks Tails when kine compacts by itself, without the compaction protocol, or keeps
// revisions that the protocol compacted. A replay must begin at a revision that exists.
func TestReplayWithCompactionsOfKine(t *testing.T) {
	const retain = 20
	// prepare returns a store with many revisions, and the last revision.
	prepare := func(t *testing.T, flags ...string) (*kv.Etcd, int64) {
		kine := startKine(t, flags...)
		store := openExternal(t, kv.ExternalConfig{StoreConfig: kv.StoreConfig{CompactionInterval: time.Hour}, Endpoints: []string{kine.URL}})
		var last int64
		for i := range 100 {
			last = kvtest.Put(t, store, "/registry/pods/a", fmt.Sprint(i))
		}
		return store, last
	}
	read := func(t *testing.T, store *kv.Etcd, revision int64) error {
		_, err := store.Range(t.Context(), kv.RangeOptions{Prefix: "/registry/pods/", Revision: revision})
		return err
	}
	// follow replays as many revisions as possible, up to the last.
	follow := func(t *testing.T, store *kv.Etcd, last int64) (past int64) {
		tail := kv.NewTail(kv.TailConfig{Store: store, Prefix: "/registry", Replay: 1_000_000})
		kvtest.RunUntilEnd(t, tail.Run)
		sub := tail.Subscribe("/registry/pods/")
		past, _, err := sub.Begin(t.Context(), 0)
		if err != nil {
			t.Fatal(err)
		}
		if err := read(t, store, past); err != nil {
			t.Errorf("read at revision %d, where the replay begins: %v", past, err)
		}
		sub.Loaded(past)
		for at := past; at < last; {
			batches, err := sub.Next(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			for _, batch := range batches {
				if at++; batch.Revision != at {
					t.Fatalf("revision %d, want %d", batch.Revision, at)
				}
			}
			sub.Applied(len(batches))
		}
		return past
	}
	t.Run("by itself", func(t *testing.T) {
		store, last := prepare(t, "--compact-interval", "200ms", "--compact-interval-jitter", "0", "--compact-min-retain", fmt.Sprint(retain))
		proctest.Eventually(t, "kine compacts", func() error {
			if err := read(t, store, last-retain-1); !errors.Is(err, kv.ErrCompacted) {
				return fmt.Errorf("read at %d of %d: got error %v, want ErrCompacted", last-retain-1, last, err)
			}
			return nil
		})
		if at := store.Compaction(); at != 0 {
			t.Errorf("Compaction = %d, want 0 without the protocol", at)
		}
		if past := follow(t, store, last); past != last-retain {
			t.Errorf("the replay begins at %d, want %d", past, last-retain)
		}
		if response := <-store.Watch(t.Context(), "/registry/", 1); !errors.Is(response.Err, kv.ErrCompacted) {
			t.Errorf("watch after a compacted revision: got %+v, want ErrCompacted", response)
		}
		if at := store.Compaction(); at != last-retain {
			t.Errorf("Compaction = %d, want %d", at, last-retain)
		}
	})
	t.Run("less than recorded", func(t *testing.T) {
		store, last := prepare(t) // kine keeps a thousand revisions
		for range 2 {
			if err := store.CompactOnce(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		compacted := store.Compaction()
		if compacted < last || read(t, store, last-1) != nil {
			t.Errorf("Compaction = %d, want at least %d; read at %d: %v", compacted, last, last-1, read(t, store, last-1))
		}
		if past := follow(t, store, compacted); past != compacted {
			t.Errorf("the replay begins at %d, want %d", past, compacted)
		}
	})
}
