package mirror_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/apimachinery/pkg/labels"

	"github.com/larder-io/larder/cache"
	"github.com/larder-io/larder/kv"
	"github.com/larder-io/larder/kv/kvtest"
	"github.com/larder-io/larder/watch"
	"github.com/larder-io/larder/watch/mirror"
)

const prefix = "/registry/pods/"

// start runs a mirror in a synctest bubble until the test ends.
func start(t *testing.T, config mirror.Config) *mirror.Mirror {
	t.Helper()
	m, err := mirror.New(config)
	if err != nil {
		t.Fatal(err)
	}
	kvtest.RunUntilEnd(t, m.Run)
	return m
}

func put(t *testing.T, store kv.Store, key, value string) int64 {
	t.Helper()
	return kvtest.Put(t, store, prefix+key, value)
}

// contents returns the keys and bodies of a snapshot.
func contents(s cache.Snapshot) string {
	var list []string
	for o := range s.All() {
		list = append(list, o.Key()+"="+string(o.Body()))
	}
	return strings.Join(list, " ")
}

// receivedBy waits for a watcher's events and returns them.
func receivedBy(t *testing.T, w *watch.Watcher) string {
	t.Helper()
	synctest.Wait()
	deliveries, err := w.Poll(nil)
	if err != nil {
		t.Fatal(err)
	}
	var list []string
	for _, d := range deliveries {
		list = append(list, fmt.Sprintf("%v %s", d.Type, d.Object.Key()))
	}
	return strings.Join(list, ", ")
}

// TestReadsSeeEarlierWrites holds the store's events back. A consistent read must wait for them. Snapshot must not.
func TestReadsSeeEarlierWrites(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := kvtest.NewMemory()
		put(t, store, "a", "1")
		m := start(t, mirror.Config{Store: store, Prefix: prefix})
		if snapshot, err := m.ConsistentSnapshot(t.Context()); err != nil || contents(snapshot) != "a=1" {
			t.Fatalf("the snapshot has %q, error %v", contents(snapshot), err)
		}
		store.Hold()
		written := put(t, store, "a", "2")
		if o, err := m.Get(soon(t), "a"); err == nil {
			t.Errorf("Get returned %q before the event was delivered", o.Body())
		}
		read := make(chan string)
		go func() {
			page, revision, err := m.List(context.Background(), cache.Query{})
			if err != nil || len(page.Objects) != 1 || revision < written {
				t.Errorf("List returned %+v at %d and error %v, want one object at %d", page, revision, err, written)
			}
			read <- string(page.Objects[0].Body())
		}()
		<-time.After(time.Minute)
		if got := contents(m.Snapshot()); got != "a=1" || m.HasRevision(written) {
			t.Errorf("Snapshot has %q, HasRevision returns %v", got, m.HasRevision(written))
		}
		store.Release()
		if got := <-read; got != "2" {
			t.Errorf("List returned %q, want the object written last, 2", got)
		}
		if o, err := m.Get(t.Context(), "a"); err != nil || o == nil || o.Revision() != written || !m.HasRevision(written) {
			t.Errorf("Get returned %+v, error %v, HasRevision %v; want revision %d", o, err, m.HasRevision(written), written)
		}
		if o, err := m.Get(t.Context(), "b"); err != nil || o != nil {
			t.Errorf("Get of a missing key returned %+v, error %v", o, err)
		}
	})
}

// soon returns a context that ends after five seconds.
func soon(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	t.Cleanup(cancel)
	return ctx
}

// TestWatchFollowsASnapshot checks that watchers get the selected changes since a snapshot, and that OnClose gets the
// revision of the last one.
func TestWatchFollowsASnapshot(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := kvtest.NewMemory()
		schema := cache.NewResourceSchema("pods", nil, cache.Index{Label: "app"})
		var closed []string
		m, err := mirror.New(mirror.Config{Store: store, Prefix: prefix, Schema: schema,
			OnClose: func(history uint64, revision int64) { closed = append(closed, fmt.Sprint(history, revision)) },
			Decode: func(_ context.Context, key string, value []byte, revision int64) *cache.Object {
				return cache.NewObject(cache.ObjectConfig{
					Key: key, Revision: revision, Body: value, Labels: map[string]string{"app": string(value)},
				}, schema)
			}})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := m.Watch(watch.Options{}); !errors.Is(err, cache.ErrNotReady) {
			t.Errorf("watch before the mirror has loaded: got error %v, want ErrNotReady", err)
		}
		kvtest.RunUntilEnd(t, m.Run)
		put(t, store, "ns/a", "x")
		snapshot, err := m.ConsistentSnapshot(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		put(t, store, "ns/b", "x")
		w, err := m.Watch(watch.Options{Initial: &snapshot, Label: labels.SelectorFromSet(labels.Set{"app": "x"})})
		if err != nil {
			t.Fatal(err)
		}
		defer w.Close()
		put(t, store, "ns/c", "y")
		last := put(t, store, "ns/a", "y")
		if got := receivedBy(t, w); got != "ADDED ns/a, ADDED ns/b, DELETED ns/a" {
			t.Errorf("received %q, want the initial objects and the deletion of ns/a", got)
		}
		idle, err := m.Watch(watch.Options{After: last})
		if err != nil {
			t.Fatal(err)
		}
		idle.Close()
		w.Close()
		if want := []string{fmt.Sprint(0, last)}; !slices.Equal(closed, want) {
			t.Errorf("closed after %q, want %q", closed, want)
		}
	})
}

// TestReadsAfterReplacementSeeTheNewHistory restores the store to an older state while events are held back. Reads
// must see only the new history, and watchers must end with ErrReplaced.
func TestReadsAfterReplacementSeeTheNewHistory(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := kvtest.NewMemory()
		old := put(t, store, "a", "old")
		m := start(t, mirror.Config{Store: store, Prefix: prefix})
		for range 5 {
			put(t, store, "a", "lost")
		}
		snapshot, err := m.ConsistentSnapshot(t.Context())
		if err != nil || contents(snapshot) != "a=lost" {
			t.Fatalf("the snapshot has %q, error %v", contents(snapshot), err)
		}
		w, err := m.Watch(watch.Options{After: snapshot.Revision()})
		if err != nil {
			t.Fatal(err)
		}
		defer w.Close()
		checked := make(chan struct{})
		store.SetHook(func(op, _ string) error {
			if op == "list" {
				<-checked // the new history loads only after the call of Outdated
			}
			return nil
		})
		store.Restore(old, true)
		if !m.Outdated() || m.HasRevision(old) {
			t.Errorf("after the store was replaced: Outdated %v, HasRevision %v; want true, false", m.Outdated(), m.HasRevision(old))
		}
		close(checked)
		if snapshot, err = m.ConsistentSnapshot(t.Context()); err != nil || contents(snapshot) != "a=old" || m.Outdated() {
			t.Errorf("the snapshot has %q, error %v, Outdated %v; want a=old", contents(snapshot), err, m.Outdated())
		}
		if _, err := w.Next(t.Context(), nil); !errors.Is(err, watch.ErrReplaced) {
			t.Errorf("the watch ended with %v, want ErrReplaced", err)
		}
	})
}

// TestConsistentReadsWaitForTheLoad checks that a mirror can be watched after a consistent read that began before the
// load, and that a read that ends before the load returns ErrNotReady.
func TestConsistentReadsWaitForTheLoad(t *testing.T) {
	for range 20 {
		synctest.Test(t, func(t *testing.T) {
			store := kvtest.NewMemory()
			since := put(t, store, "a", "1")
			put(t, store, "a", "2")
			tail := kv.NewTail(kv.TailConfig{Store: store, Prefix: prefix, Replay: 100})
			m, err := mirror.New(mirror.Config{Store: store, Prefix: prefix, Tail: tail, Since: since})
			if err != nil {
				t.Fatal(err)
			}
			if _, err := m.ConsistentSnapshot(soon(t)); !errors.Is(err, cache.ErrNotReady) {
				t.Errorf("a read of a mirror that does not run: got error %v, want ErrNotReady", err)
			}
			kvtest.RunUntilEnd(t, tail.Run)
			kvtest.RunUntilEnd(t, m.Run)
			snapshot, err := m.ConsistentSnapshot(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			w, err := m.Watch(watch.Options{After: snapshot.Revision()})
			if err != nil {
				t.Fatal(err)
			}
			w.Close()
		})
	}
}

// TestReplacementDuringAConsistentRead replaces the store after a read of its revision. The mirror must not wait for
// that revision, which belongs to the old history.
func TestReplacementDuringAConsistentRead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		memory := kvtest.NewMemory()
		old := put(t, memory, "a", "old")
		for range 50 {
			put(t, memory, "a", "lost")
		}
		store := &late{Memory: memory}
		m := start(t, mirror.Config{Store: store, Prefix: prefix})
		if _, err := m.ConsistentSnapshot(t.Context()); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		store.then = func() { memory.Restore(old, true) }
		snapshot, err := m.ConsistentSnapshot(soon(t))
		if err != nil || contents(snapshot) != "a=old" {
			t.Errorf("the snapshot has %q, error %v; want a=old", contents(snapshot), err)
		}
	})
}

// late runs a function once, after Revision was read and Replacements was checked.
type late struct {
	*kvtest.Memory
	then  func()
	armed atomic.Bool
}

func (l *late) Revision(ctx context.Context) (int64, error) {
	defer l.armed.Store(l.then != nil)
	return l.Memory.Revision(ctx)
}

func (l *late) Replacements() uint64 {
	if l.armed.CompareAndSwap(true, false) {
		then := l.then
		l.then = nil
		defer then()
	}
	return l.Memory.Replacements()
}

// TestMirrorsShareATail checks that mirrors of one Tail share a watch of the store, and that each has only its
// prefix.
func TestMirrorsShareATail(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := kvtest.NewMemory()
		tail := kv.NewTail(kv.TailConfig{Store: store, Prefix: "/registry"})
		kvtest.RunUntilEnd(t, tail.Run)
		pods := start(t, mirror.Config{Store: store, Tail: tail, Prefix: prefix})
		nodes, err := mirror.New(mirror.Config{Store: store, Tail: tail, Prefix: "/registry/nodes/"})
		if err != nil {
			t.Fatal(err)
		}
		ctx, end := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- nodes.Run(ctx) }()
		synctest.Wait() // until both have loaded and the tail watches
		put(t, store, "a", "1")
		for name, c := range map[string]struct {
			mirror *mirror.Mirror
			want   string
		}{"pods": {pods, "a=1"}, "nodes": {nodes, ""}} {
			if snapshot, err := c.mirror.ConsistentSnapshot(t.Context()); err != nil || contents(snapshot) != c.want {
				t.Errorf("%s: the snapshot has %q, error %v; want %q", name, contents(snapshot), err, c.want)
			}
		}
		if n := store.Watches(); n != 1 {
			t.Errorf("%d watches of the store, want 1", n)
		}
		end()
		if err := <-ended; err != nil {
			t.Errorf("Run: %v", err)
		}
		nodes.Retire()
		if _, err := nodes.ConsistentSnapshot(t.Context()); !errors.Is(err, kv.ErrClosed) {
			t.Errorf("ConsistentSnapshot of a retired mirror: got error %v, want ErrClosed", err)
		}
	})
}

// TestCorruptValuesFailTheReadsThatCoverThem checks that a value that cannot be decoded fails exactly the reads
// that cover it.
func TestCorruptValuesFailTheReadsThatCoverThem(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := kvtest.NewMemory()
		schema := cache.NewResourceSchema("pods", nil)
		bad := errors.New("no pod")
		m := start(t, mirror.Config{Store: store, Prefix: prefix, Schema: schema,
			Decode: func(_ context.Context, key string, value []byte, revision int64) *cache.Object {
				config := cache.ObjectConfig{Key: key, Revision: revision, Body: value}
				if string(value) == "bad" {
					config.Err = bad
				}
				return cache.NewObject(config, schema)
			}})
		put(t, store, "a", "good")
		put(t, store, "b", "bad")
		if _, err := m.Get(t.Context(), "b"); !errors.Is(err, bad) {
			t.Errorf("Get of the corrupt key: got error %v, want %v", err, bad)
		}
		if _, _, err := m.List(t.Context(), cache.Query{}); !errors.Is(err, bad) {
			t.Errorf("List of all: got error %v, want %v", err, bad)
		}
		if o, err := m.Get(t.Context(), "a"); err != nil || string(o.Body()) != "good" {
			t.Errorf("Get of another key: %v, %v", o, err)
		}
	})
}

// TestMirrorEndsWithItsStore checks that a mirror ends with its store, and with the same error.
func TestMirrorEndsWithItsStore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := kvtest.NewMemory()
		m, err := mirror.New(mirror.Config{Store: store, Prefix: prefix})
		if err != nil {
			t.Fatal(err)
		}
		done := make(chan error, 1)
		go func() { done <- m.Run(context.Background()) }()
		if _, err := m.ConsistentSnapshot(t.Context()); err != nil {
			t.Error(err)
		}
		ended, end := context.WithCancel(t.Context())
		end()
		_ = store.Run(ended) // closes it
		if err := <-done; !errors.Is(err, kv.ErrClosed) {
			t.Errorf("Run: got error %v, want ErrClosed", err)
		}
	})
}

func TestNewRejectsInvalidConfigs(t *testing.T) {
	store := kvtest.NewMemory()
	decode := func(context.Context, string, []byte, int64) *cache.Object { return nil }
	for name, config := range map[string]mirror.Config{
		"no store":         {Prefix: prefix},
		"no prefix":        {Store: store},
		"prefix of a name": {Store: store, Prefix: "/registry/pods"},
		"no schema":        {Store: store, Prefix: prefix, Decode: decode},
		"index of nothing": {Store: store, Prefix: prefix, Schema: cache.NewResourceSchema("pods", nil, cache.Index{})},
	} {
		if _, err := mirror.New(config); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}

// borrowing counts the pages that were read with RangeOptions.Borrow, whose memory is reused later.
type borrowing struct {
	kv.Store
	pages, borrowed atomic.Int64
}

func (b *borrowing) Range(ctx context.Context, opts kv.RangeOptions) (kv.Page, error) {
	b.pages.Add(1)
	if opts.Borrow {
		b.borrowed.Add(1)
	}
	return b.Store.Range(ctx, opts)
}

// TestRetainedPagesAreNotBorrowed checks that a mirror without Decode, which retains the values of a page, does not
// borrow the page even with DecodeCopies.
func TestRetainedPagesAreNotBorrowed(t *testing.T) {
	decode := func(_ context.Context, key string, _ []byte, revision int64) *cache.Object {
		return cache.NewObject(cache.ObjectConfig{Key: key, Revision: revision}, cache.NewResourceSchema("pods", nil))
	}
	for _, config := range []mirror.Config{{}, {Decode: decode, Schema: cache.NewResourceSchema("pods", nil)}} {
		synctest.Test(t, func(t *testing.T) {
			store := &borrowing{Store: kvtest.NewMemory()}
			config.Store, config.Prefix, config.DecodeCopies = store, prefix, true
			m := start(t, config)
			if err := m.Cache.WaitReady(t.Context()); err != nil {
				t.Fatal(err)
			}
			if pages, borrowed := store.pages.Load(), store.borrowed.Load(); pages == 0 || (borrowed > 0) != (config.Schema != nil) {
				t.Errorf("with Decode %t: %d of %d pages were borrowed", config.Schema != nil, borrowed, pages)
			}
		})
	}
}
