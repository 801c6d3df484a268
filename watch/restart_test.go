package watch_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/larder-io/larder/cache"
	"github.com/larder-io/larder/kv"
	"github.com/larder-io/larder/kv/embedded"
	"github.com/larder-io/larder/kv/kvtest"
	"github.com/larder-io/larder/watch"
	"github.com/larder-io/larder/watch/mirror"
	"github.com/larder-io/larder/watch/watchtest"
	"golang.org/x/sync/errgroup"
)

const restartPrefix = "/registry/pods/"

// process is the cache and hub of one server. A restart loses them.
type process struct {
	cache *cache.Cache
	hub   *watch.Hub
	stop  func()
}

// boot starts a process on a store and waits until it is ready.
func boot(t *testing.T, store kv.Store) *process {
	t.Helper()
	tail := kv.NewTail(kv.TailConfig{Store: store, Prefix: "/registry", Replay: 10_000})
	schema := cache.NewResourceSchema("pods", nil)
	m, err := mirror.New(mirror.Config{
		Store: store, Tail: tail, Prefix: restartPrefix, Schema: schema,
		Decode: func(_ context.Context, key string, value []byte, revision int64) *cache.Object {
			return cache.NewObject(cache.ObjectConfig{Key: key, Revision: revision, Body: value, Labels: restartLabels(value)}, schema)
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	p := &process{cache: m.Cache, hub: m.Hub}
	ctx, cancel := context.WithCancel(context.Background())
	group, ctx := errgroup.WithContext(ctx)
	for _, run := range []func(context.Context) error{tail.Run, m.Run} {
		group.Go(func() error { return run(ctx) })
	}
	p.stop = func() {
		cancel()
		if err := group.Wait(); err != nil && ctx.Err() == nil {
			t.Errorf("process: %v", err)
		}
	}
	t.Cleanup(p.stop)
	if err := p.cache.WaitReady(t.Context()); err != nil {
		t.Fatal(err)
	}
	return p
}

// restartLabels returns the labels of a value's object.
func restartLabels(value []byte) map[string]string {
	return map[string]string{"app": string(value[:1])}
}

// writer changes random pods and records the history.
type writer struct {
	store   kv.Store
	random  *rand.Rand
	history watchtest.History
	exists  map[string]int64 // revisions
}

func (w *writer) write(t *testing.T, times int) {
	t.Helper()
	for i := range times {
		key := fmt.Sprintf("ns-%d/%d", w.random.IntN(2), w.random.IntN(20))
		change := watchtest.Change{Key: key}
		var (
			result kv.WriteResult
			err    error
		)
		if w.exists[key] != 0 && w.random.IntN(4) == 0 {
			result, err = w.store.Delete(t.Context(), restartPrefix+key, w.exists[key])
			delete(w.exists, key)
		} else {
			value := fmt.Appendf(nil, "%c%d", 'a'+rune(w.random.IntN(3)), i)
			result, err = w.store.Put(t.Context(), restartPrefix+key, value, kv.PutOptions{IfRevision: w.exists[key]})
			w.exists[key] = result.Revision
			change.State = &watchtest.State{Key: key, Revision: result.Revision, Labels: restartLabels(value), Digest: string(value)}
		}
		if err != nil || !result.Committed {
			t.Fatalf("%s: %+v, %v", key, result, err)
		}
		w.history.Add(result.Revision, change)
	}
}

// TestWatchesResumeAfterRestart checks that watchers can resume after a restart of their server, each at its own
// revision, and get every event once.
func TestWatchesResumeAfterRestart(t *testing.T) {
	for name, open := range map[string]func(t *testing.T) (store kv.Store, reopen func() kv.Store){
		"memory": func(*testing.T) (kv.Store, func() kv.Store) {
			store := kvtest.NewMemory()
			return store, func() kv.Store { return store }
		},
		"embedded": func(t *testing.T) (kv.Store, func() kv.Store) {
			dir := t.TempDir()
			store, stop := openEtcd(t, dir)
			return store, func() kv.Store {
				stop()
				store, _ := openEtcd(t, dir)
				return store
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			store, reopen := open(t)
			w := &writer{store: store, random: rand.New(rand.NewPCG(1, 2)), exists: make(map[string]int64)}
			w.write(t, 100)
			p := boot(t, store)
			var readers []*reader
			for _, f := range []filter{{}, {label: "app=a"}, {namespace: "ns-1"}, {namespace: "ns-0", label: "app in (a,b)"}} {
				w.write(t, 40)
				readers = append(readers, startReader(t, p, f, &w.history))
			}
			w.write(t, 200)
			p.stop()
			w.store = reopen()
			w.write(t, 50)
			p = boot(t, w.store)
			w.write(t, 50)
			for _, r := range readers {
				r.follow(t, p, &w.history, true)
			}
		})
	}
}

func openEtcd(t *testing.T, dir string) (store *kv.Etcd, stop func()) {
	t.Helper()
	store, err := embedded.New(embedded.Config{Dir: dir, UnsafeNoFsync: true})
	if err != nil {
		t.Fatal(err)
	}
	return store, kvtest.RunUntilEnd(t, store.Run)
}

// reader is a client that received some events before its server stopped.
type reader struct {
	filter filter
	after  int64 // revision at which it resumes
}

// startReader watches the last 40 writes.
func startReader(t *testing.T, p *process, f filter, h *watchtest.History) *reader {
	t.Helper()
	r := &reader{filter: f, after: h.Last() - 40}
	r.follow(t, p, h, false)
	return r
}

// follow watches from the reader's revision up to the last write, and checks the deliveries.
func (r *reader) follow(t *testing.T, p *process, h *watchtest.History, resumed bool) {
	t.Helper()
	options := r.filter.options()
	options.After = r.after
	watcher, err := p.hub.Watch(options)
	if err != nil {
		t.Fatalf("%+v after %d, the log reaches back to %d: %v", r.filter, r.after, p.cache.Log().Oldest(), err)
	}
	defer watcher.Close()
	checker := watchtest.NewChecker(watchtest.Request{Selects: r.filter.predicate(), After: r.after, Resumed: resumed})
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	if err := p.cache.Wait(ctx, h.Last()); err != nil {
		t.Fatal(err)
	}
	for checker.Resume() < h.Last() {
		ds, err := watcher.Poll(nil)
		if err != nil {
			t.Fatal(err)
		}
		if len(ds) > 0 {
			if err := checker.Observe(reports(ds)...); err != nil {
				t.Fatal(err)
			}
			continue
		}
		if d, ok := watcher.Bookmark(); ok && d.Revision >= h.Last() {
			if err := checker.Observe(reportOf(d)); err != nil {
				t.Fatal(err)
			}
			continue
		}
		select { // the hub may be behind the cache
		case <-watcher.Ready():
		case <-time.After(time.Millisecond):
		case <-ctx.Done():
			t.Fatal("the watcher did not receive all events")
		}
	}
	if err := checker.Verify(h, h.Last()); err != nil {
		t.Error(err)
	}
	r.after = checker.Resume()
}
