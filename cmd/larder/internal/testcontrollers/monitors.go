package testcontrollers

import (
	"context"
	"sync"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/metadata/metadatainformer"
	"k8s.io/client-go/tools/cache"
)

// monitors holds the garbage collector's metadata informers of all resources. It implements upstream's InformerFactory.
//
// The collector cannot end the informer of a kind that is no longer served. The informer keeps retrying with
// growing delays, without logging, until the kind is served again.
type monitors struct {
	factory metadatainformer.SharedInformerFactory

	mu   sync.Mutex
	seen map[schema.GroupVersionResource]bool // guarded by mu
}

// ForResource returns the informer of a resource.
func (m *monitors) ForResource(resource schema.GroupVersionResource) (informers.GenericInformer, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	informer := m.factory.ForResource(resource)
	if m.seen[resource] {
		return informer, nil
	}
	m.seen[resource] = true
	return informer, informer.Informer().SetWatchErrorHandlerWithContext(func(ctx context.Context, r *cache.Reflector, err error) {
		if !apierrors.IsNotFound(err) {
			cache.DefaultWatchErrorHandler(ctx, r, err)
		}
	})
}

// Start starts the informers that are not running.
func (m *monitors) Start(stop <-chan struct{}) { m.factory.Start(stop) }
