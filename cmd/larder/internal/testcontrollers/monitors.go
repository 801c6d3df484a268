package testcontrollers

import (
	"context"

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
	metadatainformer.SharedInformerFactory
}

// ForResource returns the informer of a resource.
func (m monitors) ForResource(resource schema.GroupVersionResource) (informers.GenericInformer, error) {
	informer := m.SharedInformerFactory.ForResource(resource)
	// An informer that runs has this handler already, and rejects it.
	_ = informer.Informer().SetWatchErrorHandlerWithContext(func(ctx context.Context, r *cache.Reflector, err error) {
		if !apierrors.IsNotFound(err) {
			cache.DefaultWatchErrorHandler(ctx, r, err)
		}
	})
	return informer, nil
}
