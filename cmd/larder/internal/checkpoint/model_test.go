package checkpoint_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"sync/atomic"
	"testing"
	"time"

	"github.com/larder-io/larder/cmd/larder/internal/checkpoint"
	"github.com/larder-io/larder/kv"
	"github.com/larder-io/larder/kv/kvtest"
)

// held returns the values under a prefix of the store.
func held(t testing.TB, store kv.Store, prefix string) map[string]string {
	t.Helper()
	all := make(map[string]string)
	_, err := kv.RangeAll(t.Context(), store, kv.RangeOptions{Prefix: prefix}, func(page kv.Page) error {
		for _, item := range page.Items {
			all[item.Key] = string(item.Value)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// TestRandomResetsMatchTheModel takes checkpoints and resets to them between random writes, and compares the store
// with a model that copies a map.
func TestRandomResetsMatchTheModel(t *testing.T) {
	for seed := range uint64(200) {
		random := rand.New(rand.NewPCG(seed, 7))
		store := kvtest.NewMemory()
		c := checkpoint.New(checkpoint.Config{Stores: []kv.Store{store}, Prefix: "/registry"})
		model, saved := map[string]string{}, map[string]map[string]string{}
		key := func() string {
			kinds := []string{"pods/a", "namespaces", "apiextensions.k8s.io/customresourcedefinitions", "x.io/boxes/a"}
			return fmt.Sprintf("/registry/%s/%d", kinds[random.IntN(len(kinds))], random.IntN(9))
		}
		name := func() string { return fmt.Sprint(random.IntN(3)) }
		for range 120 {
			switch k := key(); random.IntN(12) {
			default:
				model[k] = fmt.Sprint(random.IntN(4))
				kvtest.Put(t, store, k, model[k])
			case 0, 1, 2:
				item, _, _, _ := store.Get(t.Context(), k)
				if _, err := store.Delete(t.Context(), k, item.Revision); err != nil {
					t.Fatal(err)
				}
				delete(model, k)
			case 3:
				n := name()
				if _, err := c.Take(t.Context(), n); err != nil {
					t.Fatal(err)
				}
				saved[n] = maps.Clone(model)
			case 4:
				n := name()
				before, _ := store.Revision(t.Context())
				outcome, err := c.Reset(t.Context(), n)
				if saved[n] == nil {
					if !errors.Is(err, checkpoint.ErrUnknown) {
						t.Fatalf("seed %d: reset to an unknown checkpoint: %v", seed, err)
					}
					continue
				}
				if err != nil {
					t.Fatalf("seed %d: %v", seed, err)
				}
				after, _ := store.Revision(t.Context())
				if n := outcome.Deleted + outcome.Restored + outcome.Changed; int64(n) != after-before || outcome.Revision != after {
					t.Fatalf("seed %d: %+v, of revisions %d to %d", seed, outcome, before, after)
				}
				model = maps.Clone(saved[n])
			}
			if got := held(t, store, "/registry/"); !maps.Equal(got, model) {
				t.Fatalf("seed %d: the store holds %v, want %v", seed, got, model)
			}
		}
	}
}

// open returns checkpoints over a new store.
func open(t testing.TB, adjust func(*checkpoint.Config)) (*checkpoint.Checkpoints, *kvtest.Memory) {
	store := kvtest.NewMemory()
	config := checkpoint.Config{Stores: []kv.Store{store}, Prefix: "/registry"}
	if adjust != nil {
		adjust(&config)
	}
	return checkpoint.New(config), store
}

// TestSecondResetWritesNothing checks that a second reset writes nothing, and that keys that did not change keep
// their revisions.
func TestSecondResetWritesNothing(t *testing.T) {
	c, store := open(t, nil)
	untouched := kvtest.Put(t, store, "/registry/pods/a/untouched", "1")
	kvtest.Put(t, store, "/registry/pods/a/changed", "1")
	take(t, c, "clean")
	for range 3 {
		kvtest.Put(t, store, "/registry/pods/a/changed", "2")
		kvtest.Put(t, store, "/registry/pods/a/new", "1")
		if got, want := reset(t, c, "clean"), (checkpoint.Outcome{Name: "clean", Deleted: 1, Changed: 1}); got.Deleted != want.Deleted || got.Changed != want.Changed || got.Restored != 0 {
			t.Errorf("reset: %+v, want %+v", got, want)
		}
		if got := reset(t, c, "clean"); got.Deleted+got.Changed+got.Restored != 0 {
			t.Errorf("a reset of the clean state: %+v", got)
		}
	}
	if item, _, _, err := store.Get(t.Context(), "/registry/pods/a/untouched"); err != nil || item.Revision != untouched {
		t.Errorf("untouched object at %d, %v, want %d", item.Revision, err, untouched)
	}
}

// TestNamespacesExistWhileTheirObjectsAreReset checks that a reset creates a namespace before its objects, and
// deletes it after them.
func TestNamespacesExistWhileTheirObjectsAreReset(t *testing.T) {
	c, store := open(t, nil)
	kvtest.Put(t, store, "/registry/namespaces/old", "1")
	kvtest.Put(t, store, "/registry/pods/old/a", "1")
	take(t, c, "clean")
	for _, key := range []string{"/registry/namespaces/old", "/registry/pods/old/a"} {
		item, _, _, _ := store.Get(t.Context(), key)
		if _, err := store.Delete(t.Context(), key, item.Revision); err != nil {
			t.Fatal(err)
		}
	}
	kvtest.Put(t, store, "/registry/namespaces/new", "1")
	before := kvtest.Put(t, store, "/registry/pods/new/a", "1")
	reset(t, c, "clean")
	want := []string{"create /registry/namespaces/old", "delete /registry/pods/new/a", "delete /registry/namespaces/new", "create /registry/pods/old/a"}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	events := store.Watch(ctx, "/registry/", before)
	for len(want) > 0 {
		for _, batch := range (<-events).Batches {
			for _, e := range batch.Events {
				if got := e.Kind.String() + " " + e.Key; got != want[0] {
					t.Fatalf("%s, want %s", got, want[0])
				}
				want = want[1:]
			}
		}
	}
}

// TestRecordsOfServersAreNotReset checks that a reset leaves the records of servers alone, and does not make
// expiring keys permanent.
func TestRecordsOfServersAreNotReset(t *testing.T) {
	c, store := open(t, nil)
	expiring := func(key string) {
		if _, err := store.Put(t.Context(), key, []byte("1"), kv.PutOptions{TTL: time.Hour}); err != nil {
			t.Fatal(err)
		}
	}
	remove := func(key string) {
		item, _, _, _ := store.Get(t.Context(), key)
		if _, err := store.Delete(t.Context(), key, item.Revision); err != nil {
			t.Fatal(err)
		}
	}
	kvtest.Put(t, store, "/registry/leases/kube-system/apiserver-abc", "1")
	kvtest.Put(t, store, "/registry2/pods/a/a", "1")
	kvtest.Put(t, store, "compact_rev_key", "1")
	expiring("/registry/events/a/stays")
	expiring("/registry/events/a/goes")
	take(t, c, "clean")
	kvtest.Put(t, store, "/registry/leases/kube-system/apiserver-abc", "2")
	kvtest.Put(t, store, "/registry/leases/kube-system/apiserver-def", "1")
	kvtest.Put(t, store, "/registry2/pods/a/a", "2")
	kvtest.Put(t, store, "compact_rev_key", "2")
	expiring("/registry/masterleases/10.0.0.1")
	expiring("/registry/peerserverleases/def")
	expiring("/registry/events/a/new")
	remove("/registry/events/a/goes")
	want := held(t, store, "")
	delete(want, "/registry/events/a/new")
	if got := reset(t, c, "clean"); got.Deleted != 1 || got.Restored+got.Changed != 0 {
		t.Errorf("reset: %+v, want one deletion", got)
	}
	if got := held(t, store, ""); !maps.Equal(got, want) {
		t.Errorf("the store holds %v, want %v", got, want)
	}
}

// TestConcurrentWritesAreComparedAgain checks that a reset compares a key again if another client writes it meanwhile.
// A reset fails if others write all the time.
func TestConcurrentWritesAreComparedAgain(t *testing.T) {
	c, store := open(t, nil)
	kvtest.Put(t, store, "/registry/pods/a/a", "1")
	take(t, c, "clean")
	kvtest.Put(t, store, "/registry/pods/a/a", "2")
	meddle := func(times int) {
		meddling := false
		store.SetHook(func(op, key string) error {
			if op == "put" && !meddling && times > 0 {
				meddling = true
				kvtest.Put(t, store, key, fmt.Sprint("other ", times))
				meddling = false
				times--
			}
			return nil
		})
	}
	meddle(3)
	reset(t, c, "clean")
	if got := held(t, store, "/registry/"); got["/registry/pods/a/a"] != "1" {
		t.Errorf("the store holds %v", got)
	}
	kvtest.Put(t, store, "/registry/pods/a/a", "2")
	meddle(1000)
	if _, err := c.Reset(t.Context(), "clean"); !errors.Is(err, checkpoint.ErrBusy) {
		t.Errorf("a store with continuous writes: %v, want ErrBusy", err)
	}
}

// TestFailedResetCanBeRepeated checks that a reset that failed half-way is completed by the next one.
func TestFailedResetCanBeRepeated(t *testing.T) {
	c, store := open(t, nil)
	for i := range 20 {
		kvtest.Put(t, store, fmt.Sprint("/registry/pods/a/", i), "1")
	}
	take(t, c, "clean")
	want := held(t, store, "/registry/")
	for i := range 20 {
		kvtest.Put(t, store, fmt.Sprint("/registry/pods/a/", i), "2")
	}
	broken := errors.New("broken")
	store.SetHook(func(op, key string) error {
		if key == "/registry/pods/a/7" {
			return broken
		}
		return nil
	})
	if _, err := c.Reset(t.Context(), "clean"); !errors.Is(err, broken) {
		t.Fatalf("reset over a store that fails: %v", err)
	}
	store.SetHook(nil)
	reset(t, c, "clean")
	if got := held(t, store, "/registry/"); !maps.Equal(got, want) {
		t.Errorf("the store holds %v, want %v", got, want)
	}
}

// TestFailedResetStopsWriting checks that a reset starts no more writes after one has failed.
func TestFailedResetStopsWriting(t *testing.T) {
	const objects = 1000
	c, store := open(t, nil)
	take(t, c, "clean")
	for i := range objects {
		kvtest.Put(t, store, fmt.Sprint("/registry/pods/a/", i), "1")
	}
	var writes atomic.Int64
	store.SetHook(func(op, _ string) error {
		if op != "delete" {
			return nil
		}
		writes.Add(1)
		return errors.New("broken")
	})
	if _, err := c.Reset(t.Context(), "clean"); err == nil || writes.Load() > objects/2 {
		t.Errorf("reset over a store that fails: error %v after %d writes, want an error after few", err, writes.Load())
	}
}

// TestReplacedStoreIsNotReset checks that a reset to a checkpoint of a store that has been replaced writes
// nothing.
func TestReplacedStoreIsNotReset(t *testing.T) {
	c, store := open(t, nil)
	kvtest.Put(t, store, "/registry/pods/a/a", "1")
	take(t, c, "clean")
	kvtest.Put(t, store, "/registry/pods/a/a", "2")
	store.Restore(1, true)
	kvtest.Put(t, store, "/registry/pods/a/b", "2")
	want := held(t, store, "/registry/")
	if _, err := c.Reset(t.Context(), "clean"); !errors.Is(err, checkpoint.ErrReplaced) {
		t.Errorf("reset of a replaced store: %v, want ErrReplaced", err)
	}
	if got := held(t, store, "/registry/"); !maps.Equal(got, want) {
		t.Errorf("the store holds %v, want %v", got, want)
	}
}

// TestNamesAndBytesAreBounded checks that the number of names and of bytes is limited, and that deleting a checkpoint
// makes room.
func TestNamesAndBytesAreBounded(t *testing.T) {
	c, store := open(t, func(config *checkpoint.Config) { config.MaxNames, config.MaxBytes = 2, 100 })
	kvtest.Put(t, store, "/registry/pods/a/a", "0123456789")
	take(t, c, "one")
	take(t, c, "two")
	take(t, c, "two") // again
	if _, err := c.Take(t.Context(), "three"); !errors.Is(err, checkpoint.ErrTooLarge) {
		t.Errorf("a third of two: %v, want ErrTooLarge", err)
	}
	if err := c.Drop("one"); err != nil {
		t.Error(err)
	}
	take(t, c, "three")
	kvtest.Put(t, store, "/registry/pods/a/b", "01234567890123456789012345678901234567890123456789")
	if _, err := c.Take(t.Context(), "three"); !errors.Is(err, checkpoint.ErrTooLarge) {
		t.Errorf("more than MaxBytes: %v, want ErrTooLarge", err)
	}
	if got := c.List(); len(got) != 2 || got[0].Name != "three" || got[1].Name != "two" || got[0].Objects != 1 {
		t.Errorf("list: %+v", got)
	}
	if err := c.Drop("one"); !errors.Is(err, checkpoint.ErrUnknown) {
		t.Errorf("dropped twice: %v, want ErrUnknown", err)
	}
}

// TestEachStoreIsReset checks that each of several stores is reset to its own state.
func TestEachStoreIsReset(t *testing.T) {
	other := kvtest.NewMemory()
	c, store := open(t, func(config *checkpoint.Config) { config.Stores = append(config.Stores, other) })
	kvtest.Put(t, store, "/registry/pods/a/a", "1")
	kvtest.Put(t, other, "/registry/nodes/a", "1")
	take(t, c, "clean")
	kvtest.Put(t, other, "/registry/nodes/a", "2")
	first := kvtest.Put(t, store, "/registry/pods/a/a", "2")
	if got := reset(t, c, "clean"); got.Changed != 2 || got.Revision != first+1 {
		t.Errorf("reset: %+v, want two changes, the first store's at %d", got, first+1)
	}
	if got := held(t, other, "/registry/"); got["/registry/nodes/a"] != "1" {
		t.Errorf("the other store holds %v", got)
	}
}

func take(t testing.TB, c *checkpoint.Checkpoints, name string) {
	t.Helper()
	if _, err := c.Take(t.Context(), name); err != nil {
		t.Fatal(err)
	}
}

func reset(t testing.TB, c *checkpoint.Checkpoints, name string) checkpoint.Outcome {
	t.Helper()
	outcome, err := c.Reset(t.Context(), name)
	if err != nil {
		t.Fatal(err)
	}
	return outcome
}
