package cache

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/larder-io/larder/kv"
	"github.com/larder-io/larder/kv/kvtest"
)

const testPrefix = "/registry/things/"

// mirror is a store, its Tail, and a cache that a Reflector fills from a prefix.
type mirror struct {
	store     *kvtest.Memory
	tail      *kv.Tail
	sub       *kv.Subscription
	cache     *Cache
	reflector *Reflector
}

// decodeTest decodes all values but "corrupt" and "panic".
func decodeTest(schema *ResourceSchema) func(context.Context, string, []byte, int64) *Object {
	return func(_ context.Context, key string, value []byte, revision int64) *Object {
		config := ObjectConfig{Key: key, Revision: revision, Body: value}
		switch string(value) {
		case "corrupt":
			config.Err = errCorrupt
		case "panic":
			panic("decoder panic")
		}
		return NewObject(config, schema)
	}
}

func newMirror(t *testing.T) *mirror {
	t.Helper()
	return mirrorOf(t, kvtest.NewMemory(), kv.TailConfig{})
}

// mirrorOf returns a mirror of a store whose Tail has the limits of the config.
func mirrorOf(t *testing.T, store *kvtest.Memory, tail kv.TailConfig) *mirror {
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
	m.reflector, err = NewReflector(ReflectorConfig{Store: m.store, Sub: m.sub, Cache: m.cache, Prefix: testPrefix, Workers: 3})
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// start runs the tail and the reflector until the test ends.
func (m *mirror) start(t *testing.T) {
	t.Helper()
	for _, run := range []func(context.Context) error{m.tail.Run, m.reflector.Run} {
		kvtest.RunUntilEnd(t, run)
		// A reflector that loads before the tail has begun may have to load again.
		if err := m.tail.Wait(t.Context(), 1); err != nil {
			t.Fatal(err)
		}
	}
}

func (m *mirror) put(t *testing.T, key, value string) int64 {
	t.Helper()
	return m.store.PutAll(map[string][]byte{key: []byte(value)})
}

func (m *mirror) remove(t *testing.T, key string) int64 {
	t.Helper()
	item, _, _, err := m.store.Get(t.Context(), key)
	if err != nil {
		t.Fatal(err)
	}
	result, err := m.store.Delete(t.Context(), key, item.Revision)
	if err != nil || !result.Committed {
		t.Fatalf("delete %s: %+v, %v", key, result, err)
	}
	return result.Revision
}

// awaitStore waits until the cache has reached the store's revision, and compares them.
func (m *mirror) awaitStore(t *testing.T) Snapshot {
	t.Helper()
	revision, err := m.store.Revision(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := m.cache.Wait(t.Context(), revision); err != nil {
		t.Fatal(err)
	}
	s := m.cache.Snapshot()
	if s.Revision() < revision {
		t.Fatalf("snapshot of revision %d after waiting for %d", s.Revision(), revision)
	}
	page, err := m.store.Range(t.Context(), kv.RangeOptions{Prefix: testPrefix})
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]string{}
	for _, item := range page.Items {
		want[strings.TrimPrefix(item.Key, testPrefix)] = fmt.Sprintf("%d %s", item.Revision, item.Value)
	}
	got := map[string]string{}
	s.state.objects.Ascend(func(o *Object) bool {
		got[o.Key()] = fmt.Sprintf("%d %s", o.Revision(), o.Body())
		if errors.Is(o.Err(), errCorrupt) {
			got[o.Key()] = fmt.Sprintf("%d corrupt", o.Revision())
		}
		return true
	})
	if !maps.Equal(got, want) {
		t.Fatalf("the cache has %v, the store %v", got, want)
	}
	return s
}

func TestReflectorMirrorsStore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMirror(t)
		many := map[string][]byte{}
		for i := range 2500 { // several pages
			many[fmt.Sprintf("%sns/%04d", testPrefix, i)] = fmt.Append(nil, i)
		}
		many["/registry/things"] = []byte("no object")
		many[testPrefix] = []byte("no object either")
		m.store.PutAll(many)
		m.remove(t, testPrefix)
		m.start(t)
		m.awaitStore(t)
		if stats := &m.reflector.Stats; stats.Loaded.Load() != 2500 || stats.Loads.Load() == 0 {
			t.Errorf("after the load the stats are %+v, want 2500 objects loaded", stats)
		}
		position := m.cache.Snapshot().Position()
		var events []string
		for i := range 300 {
			key := fmt.Sprintf("%sns/%04d", testPrefix, 2400+i)
			events = append(events, fmt.Sprint(m.put(t, key, "new")))
		}
		m.put(t, "/registry/others/x", "of another resource")
		m.put(t, testPrefix, "no object either")
		m.remove(t, testPrefix)
		for i := range 50 {
			events = append(events, fmt.Sprint(m.remove(t, fmt.Sprintf("%sns/%04d", testPrefix, i))))
		}
		m.awaitStore(t)
		logged, _, err := m.cache.Log().Read(position, make([]*Event, 0, 1000))
		if err != nil {
			t.Fatal(err)
		}
		var revisions []string
		for _, e := range logged {
			revisions = append(revisions, fmt.Sprint(e.Revision))
		}
		if !slices.Equal(revisions, events) {
			t.Errorf("logged %v, want %v", revisions, events)
		}
	})
}

// TestWritesOfOtherResourcesRaiseTheRevision checks the revision of a cache without writes of its own.
func TestWritesOfOtherResourcesRaiseTheRevision(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMirror(t)
		m.put(t, testPrefix+"a", "1")
		m.start(t)
		m.awaitStore(t)
		revision := m.put(t, "/registry/others/x", "1")
		if got := m.awaitStore(t).Revision(); got < revision {
			t.Errorf("the cache is at revision %d, want %d", got, revision)
		}
	})
}

// TestCorruptObjectsFailTheReadsThatCoverThem checks values whose decoder fails or panics.
func TestCorruptObjectsFailTheReadsThatCoverThem(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMirror(t)
		m.put(t, testPrefix+"a/corrupt", "corrupt")
		m.put(t, testPrefix+"b/sound", "1")
		m.start(t)
		m.awaitStore(t)
		revision := m.put(t, testPrefix+"a/panics", "panic")
		if err := m.cache.Wait(t.Context(), revision); err != nil {
			t.Fatal(err)
		}
		s := m.cache.Snapshot()
		if err := s.Get("a/panics").Err(); err == nil || !strings.Contains(err.Error(), "decoder panic") {
			t.Errorf("after a panic of the decoder the object has error %v, want one with the panic", err)
		}
		var corrupt *CorruptError
		if _, err := s.List(Query{Prefix: "a/"}, nil); !errors.As(err, &corrupt) || !errors.Is(err, errCorrupt) || corrupt.Object.Key() != "a/corrupt" {
			t.Errorf("list of a corrupt object: got error %v, want a CorruptError of a/corrupt", err)
		}
		if page, err := s.List(Query{Prefix: "b/"}, nil); err != nil || len(page.Objects) != 1 {
			t.Errorf("list of another namespace: %d objects, error %v; want 1", len(page.Objects), err)
		}
		m.remove(t, testPrefix+"a/panics")
		m.put(t, testPrefix+"a/corrupt", "repaired")
		m.awaitStore(t)
	})
}

// TestCacheEqualsTheStoreAfterWatchFaults checks that after faults of the watch the cache equals the store, and that it
// is in a new epoch if events may be missing.
func TestCacheEqualsTheStoreAfterWatchFaults(t *testing.T) {
	for _, c := range []struct {
		name   string
		epochs uint64
		fault  func(t *testing.T, m *mirror)
	}{
		{"connection lost", 0, func(t *testing.T, m *mirror) {
			m.store.EndWatches(errors.New("connection lost"))
			m.put(t, testPrefix+"a", "2")
		}},
		{"compacted while disconnected", 1, func(t *testing.T, m *mirror) {
			m.store.EndWatches(errors.New("connection lost"))
			m.store.Hold()
			var revision int64
			for i := range 5 {
				revision = m.put(t, testPrefix+"a", fmt.Sprint(i))
			}
			m.remove(t, testPrefix+"b")
			if err := m.store.Compact(revision); err != nil {
				t.Fatal(err)
			}
			m.store.Release()
		}},
		{"store restored", 1, func(t *testing.T, m *mirror) {
			m.store.Restore(3, true)
			m.put(t, testPrefix+"c", "other history")
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				m := newMirror(t)
				for _, key := range []string{"a", "b", "c", "d"} {
					m.put(t, testPrefix+key, "1")
				}
				m.start(t)
				before := m.awaitStore(t)
				c.fault(t, m)
				time.Sleep(10 * time.Second) // until the tail notices
				after := m.awaitStore(t)
				if got := after.Epoch() - before.Epoch(); got != c.epochs {
					t.Errorf("%d new epochs, want %d", got, c.epochs)
				}
				_, _, err := m.cache.Log().Read(before.Position(), nil)
				if errors.Is(err, ErrReset) != (c.epochs > 0) {
					t.Errorf("reading the log from the old position: got error %v after %d new epochs", err, c.epochs)
				}
			})
		})
	}
}

// TestReflectorRepeatsFailedLoads fails the first, third and sixth read of a page.
func TestReflectorRepeatsFailedLoads(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMirror(t)
		many := map[string][]byte{}
		for i := range 13_000 {
			many[fmt.Sprintf("%s%05d", testPrefix, i)] = []byte("x")
		}
		m.store.PutAll(many)
		var mu sync.Mutex
		lists := 0
		m.store.SetHook(func(op, key string) error {
			mu.Lock()
			defer mu.Unlock()
			if op != "list" || !strings.HasPrefix(key, testPrefix) {
				return nil
			}
			if lists++; lists == 1 || lists == 3 || lists == 6 {
				return errors.New("unavailable")
			}
			return nil
		})
		m.start(t)
		m.awaitStore(t)
		if stats := &m.reflector.Stats; stats.Loads.Load() != 1 || stats.Loaded.Load() != 13_000 {
			t.Errorf("the stats are %+v, want 1 load of 13000 objects", stats)
		}
		mu.Lock()
		defer mu.Unlock()
		if lists <= 6 {
			t.Errorf("%d pages were read, want more than 6", lists)
		}
	})
}

// TestCompactionBetweenPagesOfALoad checks that a load whose revision is compacted is repeated at a later one.
func TestCompactionBetweenPagesOfALoad(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMirror(t)
		many := map[string][]byte{}
		for i := range 2500 {
			many[fmt.Sprintf("%s%04d", testPrefix, i)] = []byte("x")
		}
		m.store.PutAll(many)
		lists := 0 // by one goroutine
		m.store.SetHook(func(op, key string) error {
			if op != "list" || !strings.HasPrefix(key, testPrefix) {
				return nil
			}
			if lists++; lists == 2 {
				revision := m.store.PutAll(map[string][]byte{testPrefix + "9999": []byte("y")})
				return m.store.Compact(revision)
			}
			return nil
		})
		m.start(t)
		m.awaitStore(t)
	})
}

// TestEventsAdoptMatchingOffers counts the events that adopt an offer, and those that are decoded.
func TestEventsAdoptMatchingOffers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMirror(t)
		m.start(t)
		m.awaitStore(t)
		stats := &m.reflector.Stats
		offered, decoded := stats.Offered.Load(), stats.Decoded.Load()
		build := func(revision int64) *Object {
			return NewObject(ObjectConfig{Key: "a", Revision: revision, Body: []byte("offered")}, m.cache.Schema())
		}
		m.cache.Offer("a", []byte("stored"), 1, build) // the event arrives before the response to the write
		revision := m.put(t, testPrefix+"a", "stored")
		if err := m.cache.Wait(t.Context(), revision); err != nil {
			t.Fatal(err)
		}
		if got := m.cache.Snapshot().Get("a"); string(got.Body()) != "offered" || got.Revision() != revision {
			t.Errorf("the cache has %q at %d, want the offered object at %d", got.Body(), got.Revision(), revision)
		}
		// Offers of another value, or of a write that failed, do not fit this event.
		m.cache.Offer("a", []byte("never stored"), 1, build)
		m.cache.Offer("a", []byte("stored again"), 1, build).Withdraw()
		m.put(t, testPrefix+"a", "stored again")
		// An offer that cannot make its object is dropped.
		m.cache.Offer("a", []byte("third"), 1, func(int64) *Object { return nil })
		m.put(t, testPrefix+"a", "third")
		m.awaitStore(t)
		if stats.Offered.Load()-offered != 1 || stats.Decoded.Load()-decoded != 2 {
			t.Errorf("%d events adopted an offer and %d were decoded, want 1 and 2", stats.Offered.Load()-offered, stats.Decoded.Load()-decoded)
		}
	})
}

func TestReflectorEndsWithItsContextSubscriptionAndStore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMirror(t)
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error)
		go func() { done <- m.reflector.Run(ctx) }()
		if err := m.cache.WaitReady(t.Context()); err != nil {
			t.Fatal(err)
		}
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Run with a cancelled context: %v", err)
		}
		go func() { done <- m.reflector.Run(t.Context()) }()
		synctest.Wait()
		m.sub.Close()
		if err := <-done; !errors.Is(err, kv.ErrClosed) {
			t.Errorf("Run with a closed subscription: got error %v, want ErrClosed", err)
		}
		ended, end := context.WithCancel(t.Context())
		end()
		_ = m.store.Run(ended) // closes it
		go func() { done <- m.reflector.Run(t.Context()) }()
		if err := <-done; !errors.Is(err, kv.ErrClosed) {
			t.Errorf("Run with a closed store: got error %v, want ErrClosed", err)
		}
	})
}

// TestObjectsDecodedAfterTheEndAreNotApplied ends the reflector while it decodes one batch, a few, and as many as it
// decodes in parallel. A decoder that needs the context then fails, and the cache must not have these objects as
// corrupt.
func TestObjectsDecodedAfterTheEndAreNotApplied(t *testing.T) {
	for _, writes := range []int{1, 3, 3 * decodeChunk} {
		synctest.Test(t, func(t *testing.T) {
			m := newMirror(t)
			queued := make(chan struct{})
			ctx, cancel := context.WithCancel(t.Context())
			m.cache.config.Decode = func(ctx context.Context, key string, value []byte, revision int64) *Object {
				switch string(value) {
				case "first":
					<-queued
				case "end":
					cancel()
				}
				return NewObject(ObjectConfig{Key: key, Revision: revision, Body: value, Err: ctx.Err()}, m.cache.schema)
			}
			kvtest.RunUntilEnd(t, m.tail.Run)
			synctest.Wait()
			done := make(chan error)
			go func() { done <- m.reflector.Run(ctx) }()
			synctest.Wait()
			first := m.put(t, testPrefix+"a", "first")
			synctest.Wait()
			for range writes {
				m.put(t, testPrefix+"a", "end")
			}
			synctest.Wait()
			close(queued)
			if err := <-done; err != nil {
				t.Error(err)
			}
			if s := m.cache.Snapshot(); s.Revision() != first || s.Get("a").Err() != nil {
				t.Errorf("after %d writes, the cache is at revision %d, error of the object %v; want %d and none", writes, s.Revision(), s.Get("a").Err(), first)
			}
		})
	}
}

func TestLogOfAnIdleCacheDropsOldEvents(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMirror(t)
		m.start(t)
		m.awaitStore(t)
		for i := range 500 {
			m.put(t, testPrefix+"a", fmt.Sprint(i))
		}
		m.awaitStore(t)
		if n := m.cache.Log().Len(); n != 500 {
			t.Fatalf("%d events, want 500", n)
		}
		time.Sleep(75 * time.Second)
		if n := m.cache.Log().Len(); n != 500 {
			t.Errorf("%d events after 75 s, want 500", n)
		}
		time.Sleep(60 * time.Second)
		if n := m.cache.Log().Len(); n != 128 {
			t.Errorf("%d events after 135 s, want 128", n)
		}
	})
}

func TestNewReflectorRejectsInvalidConfigs(t *testing.T) {
	m := newMirror(t)
	bare, err := New(Config{Schema: NewResourceSchema("things", nil)})
	if err != nil {
		t.Fatal(err)
	}
	for name, config := range map[string]ReflectorConfig{
		"nothing":    {},
		"no decoder": {Store: m.store, Sub: m.sub, Cache: bare, Prefix: testPrefix},
		"no slash":   {Store: m.store, Sub: m.sub, Cache: m.cache, Prefix: "/registry/things"},
	} {
		if _, err := NewReflector(config); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}

// TestReadsSeeAwaitedWritesUnderLoad writes, disconnects and reads concurrently, outside of synctest. A read that
// waited for a revision must see it.
func TestReadsSeeAwaitedWritesUnderLoad(t *testing.T) {
	m := newMirror(t)
	m.start(t)
	var workers sync.WaitGroup
	for w := range 3 {
		workers.Go(func() {
			random := rand.New(rand.NewPCG(uint64(w), 1))
			for i := range 400 {
				key := fmt.Sprintf("ns-%d/%d", random.IntN(3), random.IntN(30))
				value := fmt.Sprintf("%d of %d", i, w)
				var offer *Offer
				if i%3 == 0 {
					offer = m.cache.Offer(key, []byte(value), len(value), func(revision int64) *Object {
						return NewObject(ObjectConfig{Key: key, Revision: revision, Body: []byte(value)}, m.cache.Schema())
					})
				}
				revision := m.store.PutAll(map[string][]byte{testPrefix + key: []byte(value)})
				switch {
				case i%6 == 0:
					offer.Withdraw()
				case i%3 == 0:
					m.cache.Written(offer, revision)
				}
				if i%97 == 0 {
					m.store.EndWatches(errors.New("connection lost"))
				}
				if i%5 != 0 {
					continue
				}
				if err := m.cache.Wait(t.Context(), revision); err != nil {
					t.Error(err)
					return
				}
				o := m.cache.Snapshot().Get(key)
				if o == nil || o.Revision() < revision {
					t.Errorf("%s is %v after waiting for revision %d", key, o, revision)
					return
				}
				if o.Revision() == revision && string(o.Body()) != value {
					t.Errorf("%s@%d is %q, want %q", key, revision, o.Body(), value)
					return
				}
			}
		})
	}
	workers.Wait()
	m.awaitStore(t)
}

// TestUnappliedReturnsTheNewestWrite checks that Unapplied returns the newest successful write whose event has not
// arrived, and that the event uses the same object.
func TestUnappliedReturnsTheNewestWrite(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMirror(t)
		m.start(t)
		m.awaitStore(t)
		expect := func(when string, revision int64) *Object {
			t.Helper()
			o := m.cache.Unapplied("a")
			if o == nil && revision != 0 || o != nil && o.Revision() != revision {
				t.Errorf("%s: Unapplied returned %v, want revision %d", when, o, revision)
			}
			return o
		}
		made := 0
		offer := func(value string) *Offer {
			return m.cache.Offer("a", []byte(value), 1, func(revision int64) *Object {
				made++
				return NewObject(ObjectConfig{Key: "a", Revision: revision, Body: []byte(value)}, m.cache.Schema())
			})
		}
		expect("before any write", 0)
		m.store.Hold()
		first, second, third := offer("first"), offer("second"), offer("third")
		expect("before the responses to the writes", 0)
		one, two := m.put(t, testPrefix+"a", "first"), m.put(t, testPrefix+"a", "second")
		m.cache.Written(second, two)
		m.cache.Written(first, one)
		third.Withdraw()
		ahead := expect("after two responses", two)
		if m.cache.Unapplied("b") != nil {
			t.Error("another key has an unapplied object")
		}
		if m.cache.Unapplied("a") != ahead || made != 1 {
			t.Errorf("two calls of Unapplied made %d objects, want the same one", made)
		}
		m.store.Release()
		if err := m.cache.Wait(t.Context(), two); err != nil {
			t.Fatal(err)
		}
		if o := m.cache.Snapshot().Get("a"); o != ahead || made != 2 {
			t.Errorf("the event did not adopt the unapplied object; %d were made, want 2", made)
		}
		expect("after all events", 0)
		m.cache.Written(offer("late"), two)
		expect("when the event arrives before the response", 0)

		// The same bytes at another revision are another object.
		m.store.Hold()
		m.cache.Written(offer("again"), two+5)
		expect("after a response with a later revision", two+5)
		other := m.put(t, testPrefix+"a", "again")
		m.store.Release()
		if err := m.cache.Wait(t.Context(), other); err != nil {
			t.Fatal(err)
		}
		if o := m.cache.Snapshot().Get("a"); o.Revision() != other {
			t.Errorf("the event of revision %d made an object at %d", other, o.Revision())
		}

		// A write stays unapplied until the state has it, even after its event has arrived.
		decode, decoded := m.cache.config.Decode, 0
		m.cache.config.Decode = func(ctx context.Context, key string, value []byte, revision int64) *Object {
			expect("while its event is decoded", revision)
			decoded++
			return decode(ctx, key, value, revision)
		}
		offer("last")
		last := m.store.PutAll(map[string][]byte{testPrefix + "a": []byte("last"), testPrefix + "b": []byte("decoded")})
		if err := m.cache.Wait(t.Context(), last); err != nil || decoded != 1 {
			t.Fatalf("got %d decodes and error %v, want 1 decode", decoded, err)
		}
		expect("after its event was applied", 0)
	})
}

// TestMemoryOfDecodedPagesIsReused checks that with DecodeCopies the memory of a page is reused once all its values are
// decoded, and not before. Without DecodeCopies the decoder may retain values.
func TestMemoryOfDecodedPagesIsReused(t *testing.T) {
	const objects = 1500 // several pages, each of several parts
	for _, copies := range []bool{true, false} {
		m := newMirror(t)
		var retained sync.Map // values by key
		m.cache.config.DecodeCopies = copies
		m.cache.config.Decode = func(_ context.Context, key string, value []byte, revision int64) *Object {
			retained.Store(key, value)
			return NewObject(ObjectConfig{Key: key, Revision: revision, Body: bytes.Clone(value)}, m.cache.schema)
		}
		values := make(map[string][]byte)
		for i := range objects {
			values[fmt.Sprintf("%s%04d", testPrefix, i)] = fmt.Appendf(nil, "value %d", i)
		}
		m.store.PutAll(values)
		t.Run(fmt.Sprintf("copies %t", copies), func(t *testing.T) {
			m.start(t)
			if err := m.cache.WaitReady(t.Context()); err != nil {
				t.Fatal(err)
			}
			overwritten := 0
			for key, want := range values {
				key = key[len(testPrefix):]
				if o := m.cache.Snapshot().Get(key); o == nil || !bytes.Equal(o.Body(), want) {
					t.Fatalf("%s differs from the stored value", key)
				}
				if value, ok := retained.Load(key); ok && !bytes.Equal(value.([]byte), want) {
					overwritten++
				}
			}
			if want := map[bool]int{true: objects}[copies]; overwritten != want {
				t.Errorf("the memory of %d values was reused, want %d of %d", overwritten, want, objects)
			}
		})
	}
}
