package customresources

import (
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	informers "k8s.io/apiextensions-apiserver/pkg/client/informers/externalversions/apiextensions/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/client-go/tools/cache"
)

// changing is the informer of definitions for the controllers of upstream that remember by its
// generation, or by an annotation, for which state of a definition they have set a condition
// (apiextensions-apiserver pkg/controller/nonstructuralschema, .../apiapproval). Where the
// generation goes back, by a reset or in a restored etcd, they would take another state for the one
// that they have seen. So a definition whose specification or annotations change is told to them as
// deleted, which makes them forget it, and added. One of which only the status changes is not: if
// they looked at it again, servers of two versions would overwrite each other's conditions for ever.
type changing struct {
	informers.CustomResourceDefinitionInformer
}

// Informer implements informers.CustomResourceDefinitionInformer.
func (c changing) Informer() cache.SharedIndexInformer {
	return changingEvents{c.CustomResourceDefinitionInformer.Informer()}
}

// changingEvents is the informer that changing returns.
type changingEvents struct{ cache.SharedIndexInformer }

// AddEventHandler implements cache.SharedInformer.
func (c changingEvents) AddEventHandler(handler cache.ResourceEventHandler) (cache.ResourceEventHandlerRegistration, error) {
	return c.SharedIndexInformer.AddEventHandler(changingHandler{handler})
}

// changingHandler tells one controller.
type changingHandler struct{ cache.ResourceEventHandler }

// OnUpdate implements cache.ResourceEventHandler.
func (h changingHandler) OnUpdate(before, now any) {
	was, is := before.(*apiextensionsv1.CustomResourceDefinition), now.(*apiextensionsv1.CustomResourceDefinition)
	if equality.Semantic.DeepEqual(was.Annotations, is.Annotations) && equality.Semantic.DeepEqual(was.Spec, is.Spec) {
		h.ResourceEventHandler.OnUpdate(before, now)
		return
	}
	h.OnDelete(before)
	h.OnAdd(now, false)
}
