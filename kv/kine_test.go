package kv_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/larder-io/larder/internal/proctest"
	"github.com/larder-io/larder/kv"
	"github.com/larder-io/larder/kv/kvtest"
)

// kineSubject is a store kept by kine, whose transactions write one key each.
func kineSubject(store *kv.Etcd) kvtest.Subject {
	one := subject(store)
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

func TestKine(t *testing.T) {
	kine := kvtest.StartKine(t, "--compact-min-retain", "0")
	kvtest.Conformance(t, func(t *testing.T) kvtest.Subject {
		return kineSubject(openExternal(t, kv.ExternalConfig{Endpoints: []string{kine.URL}}))
	})
}

// TestKineKilled kills kine while this process and a sibling write into it, and while
// both compact. What was acknowledged to either, the Tail saw once and in order, and
// after each write it becomes as fresh as the store.
func TestKineKilled(t *testing.T) {
	kine := kvtest.StartKine(t)
	open := func() *kv.Etcd {
		return openExternal(t, kv.ExternalConfig{Endpoints: []string{kine.URL}, CompactionInterval: 50 * time.Millisecond})
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
					once, cancel := context.WithTimeout(writing, time.Second)
					result, err := writer.Put(once, key, []byte("1"), kv.PutOptions{})
					cancel()
					if writing.Err() != nil {
						return fmt.Errorf("no write is acknowledged any more: %w", err)
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
		for { // the connection may not be back yet
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
	if stats := tail.Stats(); stats.Losses != 0 || store.Replacements() != 0 {
		t.Errorf("the tail lost its place: %+v, %d replacements", stats, store.Replacements())
	}
}
