package builtin

import (
	"errors"
	"sync"
	"sync/atomic"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	apistorage "k8s.io/apiserver/pkg/storage"
	"k8s.io/apiserver/pkg/storage/storagebackend"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	restclient "k8s.io/client-go/rest"
	api "k8s.io/kubernetes/pkg/apis/core"
	corerest "k8s.io/kubernetes/pkg/registry/core/rest"
	"k8s.io/kubernetes/pkg/registry/core/service/allocator"
	"pgregory.net/rapid"

	"github.com/larder-io/larder/cache"
	"github.com/larder-io/larder/internal/proctest"
	"github.com/larder-io/larder/internal/registry/encoding"
	"github.com/larder-io/larder/internal/registry/storage"
	"github.com/larder-io/larder/kv"
	"github.com/larder-io/larder/kv/kvtest"
)

// newBuiltin returns a Builtin over store without caches.
func newBuiltin(t *testing.T, store kv.Store) *Builtin {
	t.Helper()
	client := &restclient.Config{}
	clients, err := kubernetes.NewForConfig(client)
	if err != nil {
		t.Fatal(err)
	}
	config := Config{GenericConfig: corerest.GenericConfig{LoopbackClientConfig: client, Informers: informers.NewSharedInformerFactory(clients, 0)}}
	config.SetDefaults()
	factory, err := NewStorageFactory(&config)
	if err != nil {
		t.Fatal(err)
	}
	records := func(config *storagebackend.ConfigForResource, prefix string, newFunc func() runtime.Object) (apistorage.Interface, error) {
		codec, err := encoding.New(encoding.Config{
			GroupResource: config.GroupResource, Storage: config.Codec, EncodeVersioner: config.EncodeVersioner,
			Schema: cache.NewResourceSchema(config.GroupResource.String(), cache.NewBudget(0)), New: newFunc, Attrs: apistorage.DefaultClusterScopedAttr,
		})
		if err != nil {
			return nil, err
		}
		res, err := storage.New(storage.Config{Store: store, Prefix: "/registry", ResourcePrefix: prefix, Codec: codec})
		if err != nil {
			return nil, err
		}
		return res.Storage(), nil
	}
	b, err := New(config, factory, records, nil)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// newRange returns an allocator of 4 numbers whose record is in store.
func newRange(t *testing.T, store *kvtest.Memory) *rangeAllocator {
	t.Helper()
	a := newBuiltin(t, store).core.nodeRange
	a.bitmap = allocator.NewAllocationMap(4, "30000-30003")
	return a
}

// createRecord stores the empty record, as the repair loop does.
func createRecord(t *testing.T, a *rangeAllocator) {
	t.Helper()
	record, err := a.Get()
	if err != nil {
		t.Fatal(err)
	}
	record.Range = "30000-30003"
	if err := a.CreateOrUpdate(record); err != nil {
		t.Fatal(err)
	}
}

// TestAllocationNeedsTheRecord checks that nothing is allocated before the repair loop has created the record.
func TestAllocationNeedsTheRecord(t *testing.T) {
	a := newRange(t, kvtest.NewMemory())
	if ok, err := a.Allocate(1); ok || err == nil {
		t.Errorf("Allocate without a record: got %v and error %v, want an error", ok, err)
	}
	createRecord(t, a)
	if ok, err := a.Allocate(1); !ok || err != nil {
		t.Errorf("Allocate: got %v and error %v, want true", ok, err)
	}
}

// TestRangeIsShared checks that two servers over one record allocate each number once.
func TestRangeIsShared(t *testing.T) {
	store := kvtest.NewMemory()
	a, b := newRange(t, store), newRange(t, store)
	createRecord(t, a)
	taken := make(map[int]bool)
	for i := range 4 {
		from := []*rangeAllocator{a, b}[i%2]
		n, ok, err := from.AllocateNext()
		if !ok || err != nil || taken[n] {
			t.Fatalf("AllocateNext: got %d, %v and error %v; %v are taken", n, ok, err, taken)
		}
		taken[n] = true
	}
	if _, ok, err := b.AllocateNext(); ok || err != nil {
		t.Errorf("AllocateNext of a full range: got %v and error %v, want false", ok, err)
	}
	if err := a.Release(2); err != nil {
		t.Fatal(err)
	}
	if ok, err := b.Allocate(2); !ok || err != nil {
		t.Errorf("Allocate of a number that the other server released: got %v and error %v, want true", ok, err)
	}
	if ok, err := a.Allocate(2); ok || err != nil {
		t.Errorf("Allocate of a number that the other server has: got %v and error %v, want false", ok, err)
	}
	if !b.Has(2) || b.Free() != 0 {
		t.Errorf("got Has(2) %v and Free() %d, want true and 0", b.Has(2), b.Free())
	}
}

// TestRangeAfterFailedWrite checks that a number remains free if its allocation was not written.
func TestRangeAfterFailedWrite(t *testing.T) {
	store := kvtest.NewMemory()
	a := newRange(t, store)
	createRecord(t, a)
	var failing atomic.Bool
	broken := errors.New("broken")
	store.SetHook(func(op, key string) error {
		if failing.Load() && op == "put" {
			return broken
		}
		return nil
	})
	if ok, err := a.Allocate(0); !ok || err != nil {
		t.Fatal(ok, err)
	}
	failing.Store(true)
	if ok, err := a.Allocate(1); ok || err == nil {
		t.Fatalf("Allocate while writes fail: got %v and error %v, want an error", ok, err)
	}
	failing.Store(false)
	if ok, err := a.Allocate(1); !ok || err != nil {
		t.Errorf("Allocate after a failed write: got %v and error %v, want true", ok, err)
	}
}

// TestRangeRepairConflict checks that the repair loop cannot replace a record that has changed since it was read.
func TestRangeRepairConflict(t *testing.T) {
	store := kvtest.NewMemory()
	a, b := newRange(t, store), newRange(t, store)
	createRecord(t, a)
	old, err := b.Get()
	if err != nil {
		t.Fatal(err)
	}
	if ok, err := a.Allocate(3); !ok || err != nil {
		t.Fatal(ok, err)
	}
	if err := b.CreateOrUpdate(old); !apierrors.IsConflict(err) {
		t.Errorf("CreateOrUpdate of an old record: got error %v, want a conflict", err)
	}
	if err := b.CreateOrUpdate(&api.RangeAllocation{Range: "30000-30003"}); !apierrors.IsConflict(err) {
		t.Errorf("CreateOrUpdate without a revision: got error %v, want a conflict", err)
	}
	if ok, err := b.Allocate(3); ok || err != nil {
		t.Errorf("Allocate of a taken number: got %v and error %v, want false", ok, err)
	}
}

// TestRangeModel compares random operations of three servers, some of whose writes fail, with a set of numbers.
func TestRangeModel(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		store := kvtest.NewMemory()
		servers := []*rangeAllocator{newRange(t, store), newRange(t, store), newRange(t, store)}
		createRecord(t, servers[0])
		failing := false
		store.SetHook(func(op, key string) error {
			if failing && op == "put" {
				return errors.New("broken")
			}
			return nil
		})
		taken := make(map[int]bool)
		rt.Repeat(map[string]func(*rapid.T){
			"allocate": func(rt *rapid.T) {
				server, n := rapid.SampledFrom(servers).Draw(rt, "server"), rapid.IntRange(0, 3).Draw(rt, "number")
				failing = rapid.Bool().Draw(rt, "failing")
				ok, err := server.Allocate(n)
				if written := !failing && !taken[n]; ok != written {
					rt.Fatalf("Allocate(%d): got %v and error %v; %v are taken, writes fail %v", n, ok, err, taken, failing)
				} else if written {
					taken[n] = true
				}
			},
			"next": func(rt *rapid.T) {
				failing = false
				n, ok, err := rapid.SampledFrom(servers).Draw(rt, "server").AllocateNext()
				if full := len(taken) == 4; err != nil || ok == full || ok && taken[n] {
					rt.Fatalf("AllocateNext: got %d, %v and error %v; %v are taken", n, ok, err, taken)
				}
				if ok {
					taken[n] = true
				}
			},
			"release": func(rt *rapid.T) {
				server, n := rapid.SampledFrom(servers).Draw(rt, "server"), rapid.IntRange(0, 3).Draw(rt, "number")
				failing = rapid.Bool().Draw(rt, "failing")
				if err := server.Release(n); err == nil {
					delete(taken, n)
				} else if !failing {
					rt.Fatalf("Release(%d): %v", n, err)
				}
			},
		})
	})
}

// TestFreeDoesNotWaitForWrites counts the free numbers while another number is being allocated.
func TestFreeDoesNotWaitForWrites(t *testing.T) {
	store := kvtest.NewMemory()
	a := newRange(t, store)
	createRecord(t, a)
	all := a.Free()
	writing, written := make(chan struct{}), make(chan struct{})
	store.SetHook(func(op, _ string) error {
		if op == "put" {
			close(writing)
			<-written
		}
		return nil
	})
	var allocating sync.WaitGroup
	defer allocating.Wait()
	defer close(written)
	allocating.Go(func() {
		if ok, err := a.Allocate(1); !ok || err != nil {
			t.Errorf("Allocate: got %v and error %v, want true", ok, err)
		}
	})
	<-writing
	counted := make(chan int, 1)
	allocating.Go(func() { counted <- a.Free() })
	proctest.Eventually(t, "the free numbers are counted", func() error {
		if len(counted) == 0 {
			return errors.New("Free has not returned")
		}
		return nil
	})
	if got := <-counted; got != all-1 {
		t.Errorf("Free: got %d numbers while one of %d is being allocated, want %d", got, all, all-1)
	}
}
