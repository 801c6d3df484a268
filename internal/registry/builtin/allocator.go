package builtin

import (
	"errors"
	"fmt"
	"sync"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/storage"
	storeerr "k8s.io/apiserver/pkg/storage/errors"
	api "k8s.io/kubernetes/pkg/apis/core"
	"k8s.io/kubernetes/pkg/registry/core/rangeallocation"
	"k8s.io/kubernetes/pkg/registry/core/service/allocator"
)

// errTaken ends an update because the number, or the whole range, is taken.
var errTaken = errors.New("registry: nothing to allocate")

// rangeAllocator allocates numbers of a range. The bitmap of the range is one record in the store,
// which kube-apiserver also uses (kubernetes pkg/registry/core/service/allocator/storage). Until the
// repair loop has created the record, nothing can be allocated.
type rangeAllocator struct {
	storage  storage.Interface
	key      string
	resource schema.GroupResource

	mu sync.Mutex
	// Invariant: bitmap equals the record at revision; "" means unknown.
	bitmap   allocator.Snapshottable
	revision string
}

var (
	_ allocator.Interface           = (*rangeAllocator)(nil)
	_ rangeallocation.RangeRegistry = (*rangeAllocator)(nil)
)

// Allocate takes one number and reports whether it was free.
func (a *rangeAllocator) Allocate(offset int) (bool, error) {
	return a.take(func() (bool, error) { return a.bitmap.Allocate(offset) })
}

// AllocateNext takes any free number and reports whether there was one.
func (a *rangeAllocator) AllocateNext() (int, bool, error) {
	var offset int
	ok, err := a.take(func() (ok bool, err error) {
		offset, ok, err = a.bitmap.AllocateNext()
		return ok, err
	})
	return offset, ok, err
}

// Release frees a number.
func (a *rangeAllocator) Release(offset int) error {
	_, err := a.take(func() (bool, error) { return true, a.bitmap.Release(offset) })
	return err
}

// take applies change to the bitmap and writes it, unless change reports false. If the write may have
// failed, the revision becomes unknown, so that the next attempt reads the record again.
func (a *rangeAllocator) take(change func() (bool, error)) (bool, error) {
	a.mu.Lock()
	defer a.mu.Unlock()

	update := func(input runtime.Object) (runtime.Object, error) {
		record := input.(*api.RangeAllocation)
		if record.ResourceVersion == "" {
			return nil, fmt.Errorf("cannot allocate resources of type %s at this time", a.resource)
		}
		if record.ResourceVersion != a.revision {
			if err := a.bitmap.Restore(record.Range, record.Data); err != nil {
				return nil, err
			}
		}
		a.revision = ""
		if ok, err := change(); err != nil {
			return nil, err
		} else if !ok {
			return nil, errTaken
		}
		record.Range, record.Data = a.bitmap.Snapshot()
		return record, nil
	}
	err := a.updateLocked(update)
	if errors.Is(err, errTaken) {
		return false, nil
	}
	return err == nil, err
}

// updateLocked writes the result of update, and stores its revision.
func (a *rangeAllocator) updateLocked(update func(runtime.Object) (runtime.Object, error)) error {
	ctx, cancel := recordContext()
	defer cancel()
	record := &api.RangeAllocation{}
	err := a.storage.GuaranteedUpdate(ctx, a.key, record, true, nil, storage.SimpleUpdate(update), nil)
	if err != nil {
		return storeerr.InterpretUpdateError(err, a.resource, "")
	}
	a.revision = record.ResourceVersion
	return nil
}

// Get returns the record, empty if there is none.
func (a *rangeAllocator) Get() (*api.RangeAllocation, error) {
	ctx, cancel := recordContext()
	defer cancel()
	record := &api.RangeAllocation{}
	err := a.storage.Get(ctx, a.key, storage.GetOptions{IgnoreNotFound: true}, record)
	if err != nil {
		return nil, storeerr.InterpretGetError(err, a.resource, "")
	}
	return record, nil
}

// CreateOrUpdate replaces the record by a snapshot, if the record has not changed since the snapshot was
// taken.
func (a *rangeAllocator) CreateOrUpdate(snapshot *api.RangeAllocation) error {
	a.mu.Lock()
	defer a.mu.Unlock()

	taken := snapshot.ResourceVersion
	a.revision = ""
	err := a.updateLocked(func(input runtime.Object) (runtime.Object, error) {
		now := input.(*api.RangeAllocation).ResourceVersion
		switch {
		case now == "" || now == taken:
			return snapshot.DeepCopy(), nil
		case taken == "":
			return nil, apierrors.NewConflict(a.resource, "", errors.New("another caller has already initialized the resource"))
		default:
			return nil, apierrors.NewConflict(a.resource, "", errors.New("the provided resource version does not match"))
		}
	})
	if err != nil {
		return err
	}
	if err := a.bitmap.Restore(snapshot.Range, snapshot.Data); err != nil {
		a.revision = ""
		return err
	}
	return nil
}

// ForEach calls fn for every taken number in this process's copy of the bitmap.
func (a *rangeAllocator) ForEach(fn func(int)) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.bitmap.ForEach(fn)
}

// Has reports whether a number is taken in this process's copy of the bitmap.
func (a *rangeAllocator) Has(offset int) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.bitmap.Has(offset)
}

// Free counts the free numbers in this process's copy of the bitmap, which has its own lock. It does not wait for a
// write: upstream calls it twice for each allocation and release, to set gauges.
func (a *rangeAllocator) Free() int { return a.bitmap.Free() }

func (a *rangeAllocator) Destroy() {}
