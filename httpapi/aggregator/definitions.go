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

// byServed is the index of definitions by the versions that they serve.
const byServed = "served"

// servedIndexers index definitions by the versions that they serve.
func servedIndexers() cache.Indexers {
	return cache.Indexers{byServed: func(obj any) ([]string, error) {
		definition, ok := obj.(*apiextensionsv1.CustomResourceDefinition)
		if !ok {
			return nil, fmt.Errorf("aggregator: informer of definitions has %T", obj)
		}
		var served []string
		for _, v := range definition.Spec.Versions {
			if v.Served {
				served = append(served, schema.GroupVersion{Group: definition.Spec.Group, Version: v.Name}.String())
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

// definitions keeps a wish for each version that some definition serves, as upstream's
// crdregistration does. That lists all definitions for each one that changes; here the index of
// the informer is asked for the versions of that one.
type definitions struct {
	indexer cache.Indexer
	to      wishes
}

// followDefinitions adds the versions of all definitions that informer has, and follows them. The
// returned registration has synced when those are wished for that the informer found first.
func followDefinitions(informer cache.SharedIndexInformer, to wishes) (cache.ResourceEventHandlerRegistration, error) {
	d := &definitions{indexer: informer.GetIndexer(), to: to}
	return informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc: d.changed, UpdateFunc: d.updated, DeleteFunc: d.changed,
	})
}

// updated looks at the versions that a definition had, and at those that it has.
func (d *definitions) updated(old, obj any) {
	d.changed(old)
	d.changed(obj)
}

// changed looks at each version of a definition again. The index is as new as what is told of, or
// newer, and so has the last word.
func (d *definitions) changed(obj any) {
	if gone, ok := obj.(cache.DeletedFinalStateUnknown); ok {
		obj = gone.Obj
	}
	definition, ok := obj.(*apiextensionsv1.CustomResourceDefinition)
	if !ok {
		return
	}
	for i := range definition.Spec.Versions {
		gv := schema.GroupVersion{Group: definition.Spec.Group, Version: definition.Spec.Versions[i].Name}
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
