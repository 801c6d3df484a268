package aggregator

import (
	"fmt"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/tools/cache"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"
)

// The priorities of groups and versions of custom resources, those of upstream
// (kubernetes pkg/controlplane/controller/crdregistration).
const (
	customGroupPriority   = 1000
	customVersionPriority = 100
)

// byServed is the index of CRDs by the versions that they serve.
const byServed = "served"

// servedIndexers index CRDs by the versions that they serve.
func servedIndexers() cache.Indexers {
	return cache.Indexers{byServed: func(obj any) ([]string, error) {
		crd, ok := obj.(*apiextensionsv1.CustomResourceDefinition)
		if !ok {
			return nil, fmt.Errorf("aggregator: informer of CRDs has %T", obj)
		}
		var served []string
		for _, v := range crd.Spec.Versions {
			if v.Served {
				served = append(served, schema.GroupVersion{Group: crd.Spec.Group, Version: v.Name}.String())
			}
		}
		return served, nil
	}}
}

// wishes takes the APIServices that shall be there, as upstream's controller of automatic
// registration does.
type wishes interface {
	AddAPIServiceToSync(*apiregistrationv1.APIService)
	RemoveAPIServiceToSync(name string)
}

// CRDs keeps a wish for each version that some CRD serves, as upstream's
// crdregistration does. That lists all CRDs for each one that changes; here the index of
// the informer is asked for the versions of that one.
type crdVersions struct {
	indexer cache.Indexer
	to      wishes
}

// followCRDs adds the versions of all CRDs that informer has, and follows them. The
// returned registration has synced when those are wished for that the informer found first.
func followCRDs(informer cache.SharedIndexInformer, to wishes) (cache.ResourceEventHandlerRegistration, error) {
	d := &crdVersions{indexer: informer.GetIndexer(), to: to}
	return informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc: d.changed, UpdateFunc: d.updated, DeleteFunc: d.changed,
	})
}

// updated looks at the versions that a CRD had, and at those that it has.
func (d *crdVersions) updated(old, obj any) {
	d.changed(old)
	d.changed(obj)
}

// changed looks at each version of a CRD again. The index is as new as what is told of, or
// newer, and so has the last word.
func (d *crdVersions) changed(obj any) {
	if gone, ok := obj.(cache.DeletedFinalStateUnknown); ok {
		obj = gone.Obj
	}
	crd, ok := obj.(*apiextensionsv1.CustomResourceDefinition)
	if !ok {
		return
	}
	for i := range crd.Spec.Versions {
		gv := schema.GroupVersion{Group: crd.Spec.Group, Version: crd.Spec.Versions[i].Name}
		name := gv.Version + "." + gv.Group
		if keys, err := d.indexer.IndexKeys(byServed, gv.String()); err != nil || len(keys) == 0 {
			d.to.RemoveAPIServiceToSync(name)
			continue
		}
		d.to.AddAPIServiceToSync(&apiregistrationv1.APIService{
			ObjectMeta: metav1.ObjectMeta{Name: name},
			Spec: apiregistrationv1.APIServiceSpec{
				Group: gv.Group, Version: gv.Version,
				GroupPriorityMinimum: customGroupPriority, VersionPriority: customVersionPriority,
			},
		})
	}
}
