package loopback

import (
	"slices"
	"sync"
	"time"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	"k8s.io/client-go/informers"
	admissionregistration "k8s.io/client-go/informers/admissionregistration/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
)

// Handled reports whether the event handlers of an informer of NewInformers have handled the named object as it is in
// the informer's store, which is updated before they run. Only informers of webhook configurations know; others report
// true.
func Handled(informer cache.SharedIndexInformer, name string) bool {
	recorded, ok := informer.(*recordedInformer)
	if !ok {
		return true
	}
	recorded.mu.Lock()
	defer recorded.mu.Unlock()
	current, _, _ := recorded.GetStore().GetByKey(name)
	return !slices.ContainsFunc(recorded.handled, func(handled cache.Store) bool {
		object, _, _ := handled.GetByKey(name)
		return object != current
	})
}

// recordWebhooks makes factory's informers of webhook configurations record what their handlers have handled.
// Upstream's admission plugins keep lists of webhooks, which their handlers invalidate
// (apiserver pkg/admission/configuration).
func recordWebhooks(factory informers.SharedInformerFactory) {
	factory.InformerFor(&admissionregistrationv1.MutatingWebhookConfiguration{}, func(client kubernetes.Interface, resync time.Duration) cache.SharedIndexInformer {
		return &recordedInformer{SharedIndexInformer: admissionregistration.NewMutatingWebhookConfigurationInformer(client, resync, nil)}
	})
	factory.InformerFor(&admissionregistrationv1.ValidatingWebhookConfiguration{}, func(client kubernetes.Interface, resync time.Duration) cache.SharedIndexInformer {
		return &recordedInformer{SharedIndexInformer: admissionregistration.NewValidatingWebhookConfigurationInformer(client, resync, nil)}
	})
}

// recordedInformer is an informer that records what its handlers have handled.
type recordedInformer struct {
	cache.SharedIndexInformer

	mu      sync.Mutex
	handled []cache.Store // for each handler, the objects of the informer's store that it has handled
}

// AddEventHandler implements cache.SharedIndexInformer.
func (i *recordedInformer) AddEventHandler(h cache.ResourceEventHandler) (cache.ResourceEventHandlerRegistration, error) {
	handled := cache.NewStore(cache.DeletionHandlingMetaNamespaceKeyFunc)
	i.mu.Lock()
	i.handled = append(i.handled, handled)
	i.mu.Unlock()
	return i.SharedIndexInformer.AddEventHandler(cache.ResourceEventHandlerDetailedFuncs{
		AddFunc:    func(object any, initial bool) { h.OnAdd(object, initial); handled.Add(object) },
		UpdateFunc: func(old, object any) { h.OnUpdate(old, object); handled.Add(object) },
		DeleteFunc: func(object any) { h.OnDelete(object); handled.Delete(object) },
	})
}
