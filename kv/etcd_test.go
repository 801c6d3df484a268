package kv_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/larder-io/larder/internal/proctest"
	"github.com/larder-io/larder/kv"
	"github.com/larder-io/larder/kv/embedded"
	"github.com/larder-io/larder/kv/kvtest"
)

func TestSingleMemberConforms(t *testing.T) {
	t.Parallel()
	members := startCluster(t, 1, nil)
	testConformance(t, func(t *testing.T) Subject {
		store, err := kv.NewExternal(kv.ExternalConfig{Endpoints: kvtest.URLs(members)})
		return subject(t, store, err)
	})
}

func TestClusterConforms(t *testing.T) {
	t.Parallel()
	members := startCluster(t, 3, kvtest.LengthenElectionTimeout)
	testConformance(t, func(t *testing.T) Subject {
		store, err := kv.NewExternal(kv.ExternalConfig{Endpoints: kvtest.URLs(members)})
		return subject(t, store, err)
	})
}

func TestEmbeddedConforms(t *testing.T) {
	t.Parallel()
	testConformance(t, func(t *testing.T) Subject {
		store, err := embedded.New(embedded.Config{Dir: t.TempDir(), UnsafeNoFsync: true})
		return subject(t, store, err)
	})
}

func TestMemoryConforms(t *testing.T) {
	t.Parallel()
	testConformance(t, func(t *testing.T) Subject {
		store := kvtest.NewMemory()
		return Subject{
			Store:   store,
			Stop:    kvtest.RunUntilEnd(t, store.Run),
			Compact: func(_ context.Context, revision int64) error { return store.Compact(revision) },
			PutAll: func(_ context.Context, values map[string][]byte) (int64, error) {
				return store.PutAll(values), nil
			},
		}
	})
}

// TestCallsWaitUntilTheStoreIsOpen checks calls before, during and after Run.
func TestCallsWaitUntilTheStoreIsOpen(t *testing.T) {
	store, err := embedded.New(embedded.Config{Dir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	calls := map[string]func(context.Context) error{
		"Get": func(ctx context.Context) error { _, _, _, err := store.Get(ctx, "/registry/a"); return err },
		"Put": func(ctx context.Context) error {
			_, err := store.Put(ctx, "/registry/a", nil, kv.PutOptions{})
			return err
		},
		"Delete": func(ctx context.Context) error { _, err := store.Delete(ctx, "/registry/a", 1); return err },
	}
	for name, call := range calls {
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
		defer cancel()
		if err := call(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("%s before Run: got error %v, want DeadlineExceeded", name, err)
		}
	}
	watch := store.Watch(t.Context(), "/registry/", 1)
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if err := store.Run(ended); err != nil {
		t.Errorf("Run: %v", err)
	}
	if response := <-watch; !errors.Is(response.Err, kv.ErrClosed) {
		t.Errorf("watch after Run: got %+v, want ErrClosed", response)
	}
	for name, call := range calls {
		if err := call(t.Context()); !errors.Is(err, kv.ErrClosed) {
			t.Errorf("%s after Run: got error %v, want ErrClosed", name, err)
		}
	}
}

func TestReplacedStoreEndsWatches(t *testing.T) {
	store := openEmbedded(t, embedded.Config{})
	for name, forge := range map[string]func(){
		"revision": func() { store.ForgeHistory(1 << 40) },
		"term":     func() { store.ForgeTerm(1 << 40) },
		"cluster":  store.ForgeCluster,
	} {
		t.Run(name, func(t *testing.T) {
			_, sub := followPods(t, store)
			// An event shows that the tail's watch is open.
			kvtest.Put(t, store, "/registry/pods/before-"+name, "1")
			if keys, _ := next(t, sub); len(keys) != 1 {
				t.Fatalf("before the replacement the events are %q, want one", keys)
			}
			revision, err := store.Revision(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			watch := store.Watch(t.Context(), "/registry/", revision)
			before := store.Replacements()
			forge()
			if err := store.Health(t.Context()); err != nil {
				t.Fatal(err)
			}
			if got := store.Replacements(); got != before+1 {
				t.Errorf("%d replacements, want %d", got, before+1)
			}
			if response := <-watch; !errors.Is(response.Err, kv.ErrReplaced) {
				t.Errorf("watch: got %+v, want ErrReplaced", response)
			}
			if _, err := sub.Next(t.Context()); !errors.Is(err, kv.ErrLost) {
				t.Errorf("Next: %v, want ErrLost", err)
			}
			load(t, store, sub, "/registry/pods/")
			kvtest.Put(t, store, "/registry/pods/"+name, "1")
			if keys, _ := next(t, sub); len(keys) != 1 {
				t.Errorf("after the reload the events are %q, want one", keys)
			}
		})
	}
}

// TestOldTermIsNoReplacement checks that a response with an old raft term does not count as a replacement of the store
// unless a second response confirms it. A member that received a snapshot responds with an old term for a while.
func TestOldTermIsNoReplacement(t *testing.T) {
	for name, open := range map[string]func(*testing.T) *kv.Etcd{
		"embedded": func(t *testing.T) *kv.Etcd { return openEmbedded(t, embedded.Config{}) },
		"external": func(t *testing.T) *kv.Etcd {
			return openExternal(t, kv.ExternalConfig{Endpoints: kvtest.URLs(startCluster(t, 1, nil))})
		},
	} {
		t.Run(name, func(t *testing.T) {
			store := open(t)
			kvtest.Put(t, store, "/registry/a", "1")
			store.ObserveOldTerm(t.Context())
			if got := store.Replacements(); got != 0 {
				t.Errorf("%d replacements after one old term, want 0", got)
			}
			ended, cancel := context.WithCancel(t.Context())
			cancel()
			var settled uint64
			for i := range uint64(10) { // a request of the store's own may meanwhile confirm the replacement
				settled = store.Replacements()
				store.ForgeTerm(1<<40 + i)
				store.ObserveOldTerm(ended)
				if store.Replacements() == settled {
					break
				}
			}
			if got := store.Replacements(); got != settled {
				t.Errorf("%d replacements without a confirmation, want %d", got, settled)
			}
			store.ObserveOldTerm(t.Context())
			if got := store.Replacements(); got != settled+1 {
				t.Errorf("%d replacements after a confirmation, want %d", got, settled+1)
			}
		})
	}
}

// TestStoresTakeTurnsToCompact checks that two stores on one etcd compact in turn.
func TestStoresTakeTurnsToCompact(t *testing.T) {
	members := startCluster(t, 1, nil)
	open := func() *kv.Etcd {
		return openExternal(t, kv.ExternalConfig{StoreConfig: kv.StoreConfig{CompactionInterval: time.Hour}, Endpoints: kvtest.URLs(members)})
	}
	a, b := open(), open()
	move := func(store *kv.Etcd) {
		t.Helper()
		if err := store.CompactOnce(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	// readable reports whether the revision has not been compacted.
	readable := func(revision int64) bool {
		t.Helper()
		_, err := a.Range(t.Context(), kv.RangeOptions{Prefix: "/registry/", Revision: revision})
		if err != nil && !errors.Is(err, kv.ErrCompacted) {
			t.Fatal(err)
		}
		return err == nil
	}
	first := kvtest.Put(t, a, "/registry/a", "1")
	move(a) // raises the clock; has no revision to compact at yet
	move(b) // finds that the clock was raised
	second := kvtest.Put(t, a, "/registry/a", "2")
	if !readable(first) {
		t.Fatal("compacted before an interval had passed")
	}
	move(a) // compacts at the revision that it recorded before the second write
	move(b) // finds again that the clock was raised
	third := kvtest.Put(t, a, "/registry/a", "3")
	if readable(first) || !readable(second) {
		t.Errorf("after the second round revision %d readable: %v, %d readable: %v", first, readable(first), second, readable(second))
	}
	move(b) // without a, b compacts at the revision that it recorded before the third write
	if readable(second-1) || !readable(third) {
		t.Errorf("after the takeover revision %d readable: %v, %d readable: %v", second-1, readable(second-1), third, readable(third))
	}
	item, _, _, err := a.Get(t.Context(), "compact_rev_key")
	if err != nil {
		t.Fatal(err)
	}
	for name, store := range map[string]*kv.Etcd{"a": a, "b": b} { // a gets it from its watch
		proctest.Eventually(t, name+" observes the compaction", func() error {
			if at := store.Compaction(); at == 0 || string(item.Value) != itoa(at) {
				return fmt.Errorf("Compaction returns %d, want %s", at, item.Value)
			}
			return nil
		})
	}
}

// TestExpiryIsNoReplacement checks that the expiry of a lease does not make a later revision appear to be older than
// the watch's. The expiry raises the revision without a response to any client.
func TestExpiryIsNoReplacement(t *testing.T) {
	store := openEmbedded(t, embedded.Config{})
	result, err := store.Put(t.Context(), "/registry/a", nil, kv.PutOptions{TTL: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	item, _, _, err := store.Get(t.Context(), "/registry/a")
	if err != nil {
		t.Fatal(err)
	}
	watch := store.Watch(t.Context(), "/registry/", result.Revision)
	if err := store.RevokeLease(t.Context(), item.Lease); err != nil {
		t.Fatal(err)
	}
	response := <-watch
	if response.Err != nil || response.Progress <= result.Revision {
		t.Fatalf("the watch delivered %+v, want progress beyond %d", response, result.Revision)
	}
	revision, err := store.Revision(t.Context())
	if err != nil || revision < response.Progress {
		t.Errorf("revision %d, error %v, after a watch reported progress %d", revision, err, response.Progress)
	}
}

func TestRevokedLeaseIsReplaced(t *testing.T) {
	store := openEmbedded(t, embedded.Config{})
	lease := func(key string) int64 {
		t.Helper()
		result, err := store.Put(t.Context(), key, nil, kv.PutOptions{TTL: time.Hour})
		if err != nil || !result.Committed {
			t.Fatalf("%+v, %v", result, err)
		}
		item, _, _, err := store.Get(t.Context(), key)
		if err != nil {
			t.Fatal(err)
		}
		return item.Lease
	}
	first := lease("/registry/a")
	if second := lease("/registry/b"); second != first {
		t.Errorf("two keys with one TTL got leases %d and %d, want the same", first, second)
	}
	if err := store.RevokeLease(t.Context(), first); err != nil {
		t.Fatal(err)
	}
	if third := lease("/registry/c"); third == first {
		t.Error("a key got a revoked lease")
	}
}

// TestConcurrentCallersShareRevisionReads has many callers request the revision while others write. The only member of
// an embedded etcd needs no reads.
func TestConcurrentCallersShareRevisionReads(t *testing.T) {
	t.Run("cluster", func(t *testing.T) {
		members := startCluster(t, 1, nil)
		store := openExternal(t, kv.ExternalConfig{Endpoints: kvtest.URLs(members)})
		if reads, calls := shareRevisions(t, store); reads == 0 || reads > calls {
			t.Errorf("%d reads for %d calls, want some and not more", reads, calls)
		}
	})
	t.Run("embedded", func(t *testing.T) {
		if reads, calls := shareRevisions(t, openEmbedded(t, embedded.Config{})); reads != 0 {
			t.Errorf("%d reads for %d calls, want 0", reads, calls)
		}
	})
}

// shareRevisions checks the revisions and counts the reads from etcd.
func shareRevisions(t *testing.T, store *kv.Etcd) (reads, calls uint64) {
	before := store.RevisionReads()
	const callers, each = 32, 20
	group, ctx := errgroup.WithContext(t.Context())
	for caller := range callers {
		group.Go(func() error {
			for i := range each {
				var written int64
				if i%5 == 0 {
					result, err := store.Put(ctx, "/registry/"+itoa(int64(caller*each+i)), nil, kv.PutOptions{})
					if err != nil {
						return err
					}
					written = result.Revision
				}
				revision, err := store.Revision(ctx)
				if err != nil {
					return err
				}
				if revision < written {
					return errors.New("revision " + itoa(revision) + " after a write of " + itoa(written))
				}
			}
			return nil
		})
	}
	if err := group.Wait(); err != nil {
		t.Fatal(err)
	}
	return store.RevisionReads() - before, callers * each
}

func TestObserverSeesEachRequest(t *testing.T) {
	var mu sync.Mutex
	var ops []string
	store := openEmbedded(t, embedded.Config{StoreConfig: kv.StoreConfig{Prefix: "/registry", Observer: kv.Observer{
		Request: func(op, key string, _ time.Duration, err error) {
			if !strings.HasPrefix(key, "/registry") {
				return
			}
			if err != nil {
				op += " failed"
			}
			mu.Lock()
			defer mu.Unlock()
			ops = append(ops, op+" "+key)
		},
	}}})
	ctx := t.Context()
	created, err := store.Put(ctx, "/registry/a", nil, kv.PutOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := store.Put(ctx, "/registry/a", nil, kv.PutOptions{IfRevision: created.Revision}); err != nil {
		t.Fatal(err)
	}
	store.Get(ctx, "/registry/a")
	store.Range(ctx, kv.RangeOptions{Prefix: "/registry/", Revision: 1 << 40})
	store.Range(ctx, kv.RangeOptions{Prefix: "/registry/", KeysOnly: true})
	store.Range(ctx, kv.RangeOptions{Prefix: "/registry/", CountOnly: true})
	store.Delete(ctx, "/registry/a", created.Revision)
	want := []string{"create /registry/a", "update /registry/a", "get /registry/a", "list failed /registry/",
		"listOnlyKeys /registry/", "listWithCount /registry/",
		"delete /registry/a"}
	mu.Lock()
	defer mu.Unlock()
	if !slices.Equal(ops, want) {
		t.Errorf("observed %q, want %q", ops, want)
	}
}

func itoa(n int64) string { return strconv.FormatInt(n, 10) }
