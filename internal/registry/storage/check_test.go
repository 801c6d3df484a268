package storage

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/apimachinery/pkg/runtime"

	"github.com/larder-io/larder/cache"
	"github.com/larder-io/larder/kv"
)

// TestCheckReloadsCachesThatDiffer checks that a cache that differs from the store in any way is detected and reloaded,
// and that an equal one is not.
func TestCheckReloadsCachesThatDiffer(t *testing.T) {
	for name, corrupt := range map[string]func(f *fixture) cache.Change{
		"missing":         func(*fixture) cache.Change { return cache.Change{Key: "a/0500"} },
		"first missing":   func(*fixture) cache.Change { return cache.Change{Key: "a/0000"} },
		"last missing":    func(*fixture) cache.Change { return cache.Change{Key: "a/1999"} },
		"additional":      func(f *fixture) cache.Change { return f.change("a/0500x", 1) },
		"additional last": func(f *fixture) cache.Change { return f.change("z/z", 1) },
		"old":             func(f *fixture) cache.Change { return f.change("a/1500", 1) },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newFixture(t, runtime.ContentTypeProtobuf)
				values := make(map[string][]byte)
				for i := range 2000 {
					key := fmt.Sprintf("/pods/a/%04d", i)
					values[key] = fmt.Appendf(nil, `%s{"kind":"Pod","apiVersion":"example.apiserver.k8s.io/v1","metadata":{"name":"%04d","namespace":"a"}}`, testPrefix, i)
				}
				f.memory.PutAll(values)
				f.checked(t, time.Minute)
				time.Sleep(90 * time.Second)
				if got, want := f.resource.CheckStats(), (CheckStats{Equal: 1}); got != want {
					t.Fatalf("equal cache: got %+v, want %+v", got, want)
				}
				loads := f.resource.Reflector.Stats.Loads.Load()

				revision := f.increase(t.Context(), t)
				f.resource.Cache.Apply(cache.Batch{Revision: revision, Changes: []cache.Change{corrupt(f)}})
				time.Sleep(time.Minute)
				if got, want := f.resource.CheckStats(), (CheckStats{Equal: 1, Different: 1}); got != want {
					t.Fatalf("changed cache: got %+v, want %+v", got, want)
				}
				synctest.Wait()
				if got := f.resource.Reflector.Stats.Loads.Load(); got != loads+1 {
					t.Errorf("got %d loads, want 1", got-loads)
				}
				listing, err := f.list(ListRequest{})
				if err != nil || len(listing.Objects) != 2000 {
					t.Errorf("got %d objects and error %v after the reload, want 2000", len(listing.Objects), err)
				}
				time.Sleep(time.Minute)
				if got, want := f.resource.CheckStats(), (CheckStats{Equal: 2, Different: 1}); got != want {
					t.Errorf("reloaded cache: got %+v, want %+v", got, want)
				}
			})
		})
	}
}

// TestCheckReadsInPagesWithoutValues checks that a comparison of many objects reads pages of ten thousand keys
// without values, and finds a difference in the last page.
func TestCheckReadsInPagesWithoutValues(t *testing.T) {
	const n = 25_000
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, runtime.ContentTypeProtobuf)
		values := make(map[string][]byte, n)
		for i := range n {
			key := fmt.Sprintf("/pods/a/%05d", i)
			values[key] = fmt.Appendf(nil, `%s{"kind":"Pod","apiVersion":"example.apiserver.k8s.io/v1","metadata":{"name":"%05d","namespace":"a"}}`, testPrefix, i)
		}
		if err := f.resource.Cache.Wait(t.Context(), f.memory.PutAll(values)); err != nil {
			t.Fatal(err)
		}
		var pages atomic.Int64
		f.memory.SetHook(func(op, _ string) error {
			if op == "list" {
				pages.Add(1)
			}
			return nil
		})
		if err := f.resource.check(t.Context()); err != nil || pages.Load() != (n+checkPage-1)/checkPage {
			t.Errorf("got %d pages and error %v, want %d", pages.Load(), err, (n+checkPage-1)/checkPage)
		}
		revision := f.increase(t.Context(), t)
		f.resource.Cache.Apply(cache.Batch{Revision: revision, Changes: []cache.Change{f.change(fmt.Sprintf("a/%05d", n-1), 1)}})
		if err := f.resource.check(t.Context()); !errors.Is(err, ErrInconsistent) {
			t.Errorf("a difference in the last page: got error %v, want ErrInconsistent", err)
		}
	})
}

// TestFailedChecksDoNotReload checks that a comparison that fails does not change the cache.
func TestFailedChecksDoNotReload(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, runtime.ContentTypeProtobuf)
		f.create(examplePod("a", "one"))
		f.memory.SetHook(func(op, _ string) error {
			if op == "list" {
				return kv.ErrCompacted
			}
			return nil
		})
		f.checked(t, time.Minute)
		time.Sleep(90 * time.Second)
		if got, want := f.resource.CheckStats(), (CheckStats{Failed: 1}); got != want {
			t.Errorf("got %+v, want %+v", got, want)
		}
		if loads := f.resource.Reflector.Stats.Loads.Load(); loads != 1 {
			t.Errorf("got %d loads, want 1", loads)
		}
	})
}

// TestCheckDuringWrites checks that a resource under constant change compares equal at each revision.
func TestCheckDuringWrites(t *testing.T) {
	f := newFixture(t, runtime.ContentTypeProtobuf)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	done := make(chan struct{})
	go func() {
		defer close(done)
		for i := 0; ctx.Err() == nil; i++ {
			values := map[string][]byte{fmt.Sprintf("/pods/a/%d", i*7%50): nil}
			values[fmt.Sprintf("/pods/a/%d", i%50)] = fmt.Appendf(nil, `%s{"kind":"Pod","apiVersion":"example.apiserver.k8s.io/v1","metadata":{"name":"%d","namespace":"a"}}`, testPrefix, i%50)
			f.memory.PutAll(values)
		}
	}()
	for range 200 {
		if err := f.resource.check(t.Context()); err != nil {
			t.Error(err)
			if !errors.Is(err, ErrInconsistent) {
				break
			}
		}
	}
	cancel()
	<-done
}

// checked compares the fixture's cache with the store until the test ends.
func (f *fixture) checked(t *testing.T, interval time.Duration) {
	t.Helper()
	c := ConsistencyChecker{Resources: func() []*Resource { return []*Resource{f.resource} }, Interval: interval, Logger: slog.New(slog.DiscardHandler)}
	run(t, c.Run)
}

// change makes an object of a cache without a store.
func (f *fixture) change(key string, revision int64) cache.Change {
	return cache.Change{Key: key, Object: cache.NewObject(cache.ObjectConfig{Key: key, Revision: revision}, f.resource.codec.Schema)}
}
