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

// Start implements informers.SharedInformerFactory. A policy starts the informer of its
// parameters, which others share, so it does not end with the policy.
func (f factory) Start(<-chan struct{}) { f.SharedInformerFactory.Start(f.end) }

// Core implements informers.SharedInformerFactory.
func (f factory) Core() core.Interface { return coreGroup{f.SharedInformerFactory.Core(), f.registry} }

type coreGroup struct {
	core.Interface
	registry *registry.Registry
}

// V1 implements core.Interface.
func (g coreGroup) V1() coreinformers.Interface {
	return coreV1{g.Interface.V1(), g.registry}
}

type coreV1 struct {
	coreinformers.Interface
	registry *registry.Registry
}

// Nodes implements coreinformers.Interface.
func (v coreV1) Nodes() coreinformers.NodeInformer {
	return onDemand[corelisters.NodeLister]{newStore[corev1.Node](v.registry, corev1.SchemeGroupVersion.WithResource("nodes")), corelisters.NewNodeLister}
}

// PersistentVolumeClaims implements coreinformers.Interface.
func (v coreV1) PersistentVolumeClaims() coreinformers.PersistentVolumeClaimInformer {
	return onDemand[corelisters.PersistentVolumeClaimLister]{
		newStore[corev1.PersistentVolumeClaim](v.registry, corev1.SchemeGroupVersion.WithResource("persistentvolumeclaims")), corelisters.NewPersistentVolumeClaimLister}
}

// PersistentVolumes implements coreinformers.Interface.
func (v coreV1) PersistentVolumes() coreinformers.PersistentVolumeInformer {
	return onDemand[corelisters.PersistentVolumeLister]{
		newStore[corev1.PersistentVolume](v.registry, corev1.SchemeGroupVersion.WithResource("persistentvolumes")), corelisters.NewPersistentVolumeLister}
}

// Pods implements coreinformers.Interface.
func (v coreV1) Pods() coreinformers.PodInformer {
	return onDemand[corelisters.PodLister]{newStore[corev1.Pod](v.registry, corev1.SchemeGroupVersion.WithResource("pods")), corelisters.NewPodLister}
}

// Secrets implements coreinformers.Interface.
func (v coreV1) Secrets() coreinformers.SecretInformer {
	return onDemand[corelisters.SecretLister]{newStore[corev1.Secret](v.registry, corev1.SchemeGroupVersion.WithResource("secrets")), corelisters.NewSecretLister}
}

// ServiceAccounts implements coreinformers.Interface.
func (v coreV1) ServiceAccounts() coreinformers.ServiceAccountInformer {
	return onDemand[corelisters.ServiceAccountLister]{
		newStore[corev1.ServiceAccount](v.registry, corev1.SchemeGroupVersion.WithResource("serviceaccounts")), corelisters.NewServiceAccountLister}
}

// Services implements coreinformers.Interface.
func (v coreV1) Services() coreinformers.ServiceInformer {
	return onDemand[corelisters.ServiceLister]{newStore[corev1.Service](v.registry, corev1.SchemeGroupVersion.WithResource("services")), corelisters.NewServiceLister}
}

// onDemand is an informer that holds nothing: its lister, an L, reads a store.
type onDemand[L any] struct {
	store  *store
	lister func(cache.Indexer) L
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
func (h cacheInformer) HasSynced() bool { return h.store.view.Resource.Ready() }

// GetStore implements cache.SharedInformer.
func (h cacheInformer) GetStore() cache.Store { return h.store }

// GetIndexer implements cache.SharedIndexInformer.
func (h cacheInformer) GetIndexer() cache.Indexer { return h.store }
