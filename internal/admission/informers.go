package admission

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/informers/core"
	coreinformers "k8s.io/client-go/informers/core/v1"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"

	"github.com/larder-io/larder/internal/registry"
)

// factory returns the server's informers, except for resources with many objects: informers of those
// hold no objects, and read the registry's caches.
type factory struct {
	informers.SharedInformerFactory
	registry *registry.Registry
	end      <-chan struct{}
}

// Start implements informers.SharedInformerFactory. A policy starts the informer of its parameters. Other
// policies share it, so it does not end with the policy.
func (f factory) Start(<-chan struct{}) { f.SharedInformerFactory.Start(f.end) }

// Core implements informers.SharedInformerFactory.
func (f factory) Core() core.Interface { return coreGroup{f.SharedInformerFactory.Core(), f.registry} }

type coreGroup struct {
	core.Interface
	registry *registry.Registry
}

// V1 implements core.Interface.
func (g coreGroup) V1() coreinformers.Interface { return coreV1{g.Interface.V1(), g.registry} }

// coreV1 implements coreinformers.Interface. Its methods make the informers that hold no objects.
type coreV1 struct {
	coreinformers.Interface
	registry *registry.Registry
}

func (v coreV1) Nodes() coreinformers.NodeInformer {
	return newOnDemand[corev1.Node](v, "nodes", corelisters.NewNodeLister)
}

func (v coreV1) PersistentVolumeClaims() coreinformers.PersistentVolumeClaimInformer {
	return newOnDemand[corev1.PersistentVolumeClaim](v, "persistentvolumeclaims", corelisters.NewPersistentVolumeClaimLister)
}

func (v coreV1) PersistentVolumes() coreinformers.PersistentVolumeInformer {
	return newOnDemand[corev1.PersistentVolume](v, "persistentvolumes", corelisters.NewPersistentVolumeLister)
}

func (v coreV1) Pods() coreinformers.PodInformer {
	return newOnDemand[corev1.Pod](v, "pods", corelisters.NewPodLister)
}

func (v coreV1) Secrets() coreinformers.SecretInformer {
	return newOnDemand[corev1.Secret](v, "secrets", corelisters.NewSecretLister)
}

func (v coreV1) ServiceAccounts() coreinformers.ServiceAccountInformer {
	return newOnDemand[corev1.ServiceAccount](v, "serviceaccounts", corelisters.NewServiceAccountLister)
}

func (v coreV1) Services() coreinformers.ServiceInformer {
	return newOnDemand[corev1.Service](v, "services", corelisters.NewServiceLister)
}

// onDemand is an informer that holds nothing: its lister, an L, reads a store.
type onDemand[L any] struct {
	store  *store
	lister func(cache.Indexer) L
}

// newOnDemand returns the informer of a resource of the core group, whose objects are Ts.
func newOnDemand[T any, P message[T], L any](v coreV1, resource string, lister func(cache.Indexer) L) onDemand[L] {
	return onDemand[L]{newStore[T, P](v.registry, corev1.SchemeGroupVersion.WithResource(resource)), lister}
}

// Informer implements the informers of all resources.
func (d onDemand[L]) Informer() cache.SharedIndexInformer { return cacheInformer{store: d.store} }

// Lister implements the informers of all resources.
func (d onDemand[L]) Lister() L { return d.lister(d.store) }

// cacheInformer has only the methods of an informer that plugins use. It has synced once the
// registry's cache has loaded, and accepts no event handlers.
type cacheInformer struct {
	cache.SharedIndexInformer // nil
	store                     *store
}

// HasSynced implements cache.SharedInformer.
func (i cacheInformer) HasSynced() bool { return i.store.view.Resource.Ready() }

// GetStore implements cache.SharedInformer.
func (i cacheInformer) GetStore() cache.Store { return i.store }

// GetIndexer implements cache.SharedIndexInformer.
func (i cacheInformer) GetIndexer() cache.Indexer { return i.store }
