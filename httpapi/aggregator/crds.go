package aggregator

import (
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/tools/cache"
	"k8s.io/kube-aggregator/pkg/controllers/autoregister"

	"github.com/larder-io/larder/internal/registry/builtin"
)

// byServed is the index of CRDs by the versions that they serve.
const byServed = "served"

// servedVersions returns the keys of a CRD in the index byServed.
func servedVersions(obj any) (served []string, err error) {
	crd := obj.(*apiextensionsv1.CustomResourceDefinition)
	for _, v := range crd.Spec.Versions {
		if v.Served {
			served = append(served, schema.GroupVersion{Group: crd.Spec.Group, Version: v.Name}.String())
		}
	}
	return served, nil
}

// crdVersions registers each version that a CRD serves, like upstream's crdregistration. Upstream
// lists all CRDs for each CRD that changes. crdVersions looks up the versions of that CRD in the
// index of the informer.
type crdVersions struct {
	indexer cache.Indexer
	to      autoregister.AutoAPIServiceRegistration
}

// handlers returns the handlers of CRDs. An update may have removed a version that the CRD served before.
func (c *crdVersions) handlers() cache.ResourceEventHandler {
	return cache.ResourceEventHandlerFuncs{
		AddFunc: c.changed, UpdateFunc: func(old, obj any) { c.changed(old); c.changed(obj) }, DeleteFunc: c.changed,
	}
}

// changed checks each version of a CRD. The index is at least as new as the event, and decides.
func (c *crdVersions) changed(obj any) {
	if gone, ok := obj.(cache.DeletedFinalStateUnknown); ok {
		obj = gone.Obj
	}
	crd, ok := obj.(*apiextensionsv1.CustomResourceDefinition)
	if !ok {
		return
	}
	for i := range crd.Spec.Versions {
		gv := schema.GroupVersion{Group: crd.Spec.Group, Version: crd.Spec.Versions[i].Name}
		service := localService(gv, builtin.Priority{Group: 1000, Version: 100}) // kubernetes pkg/controlplane/controller/crdregistration
		if keys, err := c.indexer.IndexKeys(byServed, gv.String()); err != nil || len(keys) == 0 {
			c.to.RemoveAPIServiceToSync(service.Name)
		} else {
			c.to.AddAPIServiceToSync(service)
		}
	}
}
