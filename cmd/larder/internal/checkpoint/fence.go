package checkpoint

import (
	"context"
	"net/http"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	apirequest "k8s.io/apiserver/pkg/endpoints/request"

	"github.com/larder-io/larder/kv"
)

// Fence rejects the writes of requests that were received before it was last raised, including deletions of
// collections in progress. A nil Fence rejects nothing.
type Fence struct {
	mu     sync.RWMutex // held for reading during a write
	raised time.Time
}

// Raise raises the fence. When it returns, requests that were received earlier can no longer write.
func (f *Fence) Raise() {
	if f == nil {
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.raised = time.Now()
}

// Store returns inner with writes that the fence can reject.
func (f *Fence) Store(inner kv.Store) kv.Store {
	if f == nil {
		return inner
	}
	return &fenced{inner, f}
}

type fenced struct {
	kv.Store
	fence *Fence
}

// Put implements kv.Store.
func (f *fenced) Put(ctx context.Context, key string, value []byte, opts kv.PutOptions) (kv.WriteResult, error) {
	f.fence.mu.RLock()
	defer f.fence.mu.RUnlock()
	if err := f.fence.check(ctx); err != nil {
		return kv.WriteResult{}, err
	}
	return f.Store.Put(ctx, key, value, opts)
}

// Delete implements kv.Store.
func (f *fenced) Delete(ctx context.Context, key string, ifRevision int64) (kv.WriteResult, error) {
	f.fence.mu.RLock()
	defer f.fence.mu.RUnlock()
	if err := f.fence.check(ctx); err != nil {
		return kv.WriteResult{}, err
	}
	return f.Store.Delete(ctx, key, ifRevision)
}

// check returns a conflict for a request that was received before the fence was raised. Clients handle a
// conflict by reading the object again.
func (f *Fence) check(ctx context.Context) error {
	received, ok := apirequest.ReceivedTimestampFrom(ctx)
	if !ok || !received.Before(f.raised) {
		return nil
	}
	return &apierrors.StatusError{ErrStatus: metav1.Status{
		Status: metav1.StatusFailure, Code: http.StatusConflict, Reason: metav1.StatusReasonConflict,
		Message: "all objects were reset to a checkpoint while the request was in progress; read the object again and retry",
	}}
}
