package customresources

import (
	"context"
	"fmt"
	"strings"
	"sync"

	"k8s.io/apiextensions-apiserver/pkg/apihelpers"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	client "k8s.io/apiextensions-apiserver/pkg/client/clientset/clientset/typed/apiextensions/v1"
	informers "k8s.io/apiextensions-apiserver/pkg/client/informers/externalversions/apiextensions/v1"
	listers "k8s.io/apiextensions-apiserver/pkg/client/listers/apiextensions/v1"
	"k8s.io/apiextensions-apiserver/pkg/controller/apiapproval"
	"k8s.io/apiextensions-apiserver/pkg/controller/establish"
	"k8s.io/apiextensions-apiserver/pkg/controller/finalizer"
	"k8s.io/apiextensions-apiserver/pkg/controller/nonstructuralschema"
	"k8s.io/apiextensions-apiserver/pkg/controller/status"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"
)

// workers is the number of workers of a controller, as in upstream.
const workers = 5

// Follow runs the informer of CRDs, and the controllers that set their conditions and delete their
// objects, until ctx ends. The server must already serve requests.
func (e *Extensions) Follow(ctx context.Context) error {
	if e.crds() == nil {
		close(e.follows)
		<-ctx.Done()
		return nil
	}
	crds, v1 := e.informers.Apiextensions().V1().CustomResourceDefinitions(), e.client.ApiextensionsV1()
	e.establish = establish.NewEstablishingController(crds, v1)
	var named client.CustomResourceDefinitionsGetter = establishing{v1}
	if e.config.Servers > 1 {
		named = v1 // the establishing controller waits
	}
	naming := status.NewNamingConditionController(klog.Background(), grouped{crds}, named)
	structure := nonstructuralschema.NewConditionController(rewritable{crds}, v1)
	approval := apiapproval.NewKubernetesAPIApprovalPolicyConformantConditionController(rewritable{crds}, v1)
	cleanup := finalizer.NewCRDFinalizer(crds, v1, e)

	var controllers sync.WaitGroup
	controllers.Go(func() { naming.RunWithContext(ctx) })
	controllers.Go(func() { e.establish.RunWithContext(ctx) })
	controllers.Go(func() { structure.RunWithContext(workers, ctx) })
	controllers.Go(func() { approval.RunWithContext(workers, ctx) })
	controllers.Go(func() { cleanup.RunWithContext(workers, ctx) })
	e.informers.Start(ctx.Done())
	close(e.follows)
	controllers.Wait()
	<-ctx.Done()
	e.informers.Shutdown()
	return nil
}

// establishing is a client for upstream's naming controller. When the controller accepts the names
// of a CRD, the same write establishes the CRD. Upstream's establishing controller would do it by a
// second write, which costs as much as the first (X2).
//
// Upstream writes twice so that its handler has seen the accepted names before a client sees the
// established CRD (status/naming_controller.go, calculateNamesAndConditions). Here a request waits
// until the informer has seen what the store holds ([Extensions.Await]).
type establishing struct {
	client.CustomResourceDefinitionsGetter
}

func (e establishing) CustomResourceDefinitions() client.CustomResourceDefinitionInterface {
	return establishingCRDs{e.CustomResourceDefinitionsGetter.CustomResourceDefinitions()}
}

// establishingCRDs is the client that establishing returns.
type establishingCRDs struct {
	client.CustomResourceDefinitionInterface
}

// UpdateStatus implements client.CustomResourceDefinitionInterface. The caller owns crd.
func (e establishingCRDs) UpdateStatus(ctx context.Context, crd *apiextensionsv1.CustomResourceDefinition, options metav1.UpdateOptions) (*apiextensionsv1.CustomResourceDefinition, error) {
	establishAccepted(crd)
	return e.CustomResourceDefinitionInterface.UpdateStatus(ctx, crd, options)
}

// establishAccepted establishes crd if its names are accepted, like upstream's
// establish/establishing_controller.go. It leaves a CRD that a webhook converts to that controller,
// which checks the certificates of the webhook.
func establishAccepted(crd *apiextensionsv1.CustomResourceDefinition) {
	if !apihelpers.IsCRDConditionTrue(crd, apiextensionsv1.NamesAccepted) ||
		apihelpers.IsCRDConditionTrue(crd, apiextensionsv1.Established) ||
		crd.Spec.Conversion != nil && crd.Spec.Conversion.Webhook != nil {
		return
	}
	apihelpers.SetCRDCondition(crd, apiextensionsv1.CustomResourceDefinitionCondition{
		Type: apiextensionsv1.Established, Status: apiextensionsv1.ConditionTrue,
		Reason: "InitialNamesAccepted", Message: "the initial names have been accepted",
	})
}

// rewritable is the informer of CRDs for an upstream controller that sets one condition of each CRD
// (apiextensions-apiserver pkg/controller/nonstructuralschema, .../apiapproval). For each CRD, the controller keeps
// in memory the generation or annotation for which it last wrote the condition. It does not write again for the same
// one. Otherwise servers of two versions would overwrite each other's conditions forever. But a reset or a restored
// etcd can set the generation back. So rewritable reports a changed specification or annotation as a deletion
// followed by an update, and the controller writes once for each state.
type rewritable struct {
	informers.CustomResourceDefinitionInformer
}

func (r rewritable) Informer() cache.SharedIndexInformer {
	return rewritableInformer{r.CustomResourceDefinitionInformer.Informer()}
}

// rewritableInformer is the informer that rewritable returns.
type rewritableInformer struct{ cache.SharedIndexInformer }

func (i rewritableInformer) AddEventHandler(handler cache.ResourceEventHandler) (cache.ResourceEventHandlerRegistration, error) {
	return i.SharedIndexInformer.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc: func(obj any) { handler.OnAdd(obj, false) },
		UpdateFunc: func(before, now any) {
			was, is := crdOf(before), crdOf(now)
			if !equality.Semantic.DeepEqual(was.Annotations, is.Annotations) || !equality.Semantic.DeepEqual(was.Spec, is.Spec) {
				handler.OnDelete(before)
			}
			handler.OnUpdate(before, now)
		},
		DeleteFunc: handler.OnDelete,
	})
}

// byGroup is the name of the index of CRDs by group.
const byGroup = "group"

// grouped is the informer of CRDs for upstream's naming controller (apiextensions-apiserver
// pkg/controller/status/naming_controller.go). For each CRD, the controller lists all CRDs twice and uses only those
// of the same group. grouped lists only that group: with 10,000 CRDs, listing all of them was a fifth of the
// allocation of their installation.
type grouped struct {
	informers.CustomResourceDefinitionInformer
}

func (g grouped) Lister() listers.CustomResourceDefinitionLister {
	return &groupLister{CustomResourceDefinitionLister: g.CustomResourceDefinitionInformer.Lister(), indexer: g.Informer().GetIndexer()}
}

// groupLister lists the CRDs of the group of the last CRD that Get returned. One goroutine uses it.
type groupLister struct {
	listers.CustomResourceDefinitionLister
	indexer cache.Indexer
	group   string // "" before the first Get
}

func (l *groupLister) Get(name string) (*apiextensionsv1.CustomResourceDefinition, error) {
	_, l.group, _ = strings.Cut(name, ".") // names are PLURAL.GROUP
	return l.CustomResourceDefinitionLister.Get(name)
}

func (l *groupLister) List(selector labels.Selector) ([]*apiextensionsv1.CustomResourceDefinition, error) {
	if l.group == "" {
		return l.CustomResourceDefinitionLister.List(selector)
	}
	objects, err := l.indexer.ByIndex(byGroup, l.group)
	if err != nil {
		return nil, fmt.Errorf("customresources: %w", err)
	}
	var list []*apiextensionsv1.CustomResourceDefinition
	for _, obj := range objects {
		if crd := crdOf(obj); selector.Matches(labels.Set(crd.Labels)) {
			list = append(list, crd)
		}
	}
	return list, nil
}
