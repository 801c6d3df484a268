package loopback

import (
	"slices"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/informers/admissionregistration"
	"k8s.io/client-go/informers/internalinterfaces"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
)

// Handled reports whether the handlers of an informer of NewInformers have handled the named object as it is in the
// informer's store. Only informers of webhook configurations and policies know; others report true.
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

// recordingFactory makes the informers of webhook configurations and policies record what their handlers have handled.
// Upstream's plugins keep lists of webhooks, which handlers invalidate (apiserver pkg/admission/configuration).
type recordingFactory struct {
	informers.SharedInformerFactory
}

// Admissionregistration implements informers.SharedInformerFactory.
func (f recordingFactory) Admissionregistration() admissionregistration.Interface {
	return admissionregistration.New(f, metav1.NamespaceAll, nil)
}

// InformerFor implements informers.SharedInformerFactory.
func (f recordingFactory) InformerFor(object runtime.Object, create internalinterfaces.NewInformerFunc) cache.SharedIndexInformer {
	return f.SharedInformerFactory.InformerFor(object, func(client kubernetes.Interface, resync time.Duration) cache.SharedIndexInformer {
		return &recordedInformer{SharedIndexInformer: create(client, resync)}
	})
}

// recordedInformer is an informer that records what its handlers have handled. Its store is updated before they run.
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
