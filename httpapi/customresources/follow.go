package customresources

import (
	"context"
	"sync"

	apiextensionsclient "k8s.io/apiextensions-apiserver/pkg/client/clientset/clientset/typed/apiextensions/v1"
	"k8s.io/apiextensions-apiserver/pkg/controller/apiapproval"
	"k8s.io/apiextensions-apiserver/pkg/controller/establish"
	"k8s.io/apiextensions-apiserver/pkg/controller/finalizer"
	"k8s.io/apiextensions-apiserver/pkg/controller/nonstructuralschema"
	"k8s.io/apiextensions-apiserver/pkg/controller/status"
	"k8s.io/klog/v2"
)

// workers is how many definitions a controller works on at once: upstream's number.
const workers = 5

// Follow runs the informer of definitions, and the controllers that set their conditions and
// delete their objects, until ctx ends. The server must answer requests by then.
func (e *Extensions) Follow(ctx context.Context) error {
	if e.off() {
		close(e.follows)
		<-ctx.Done()
		return nil
	}
	definitions, client := e.informers.Apiextensions().V1().CustomResourceDefinitions(), e.client.ApiextensionsV1()
	e.establish = establish.NewEstablishingController(definitions, client)
	var named apiextensionsclient.CustomResourceDefinitionsGetter = acceptance{client}
	if e.config.Servers > 1 {
		named = client // they are established later
	}
	naming := status.NewNamingConditionController(klog.Background(), grouped{definitions}, named)
	structure := nonstructuralschema.NewConditionController(changing{definitions}, client)
	approval := apiapproval.NewKubernetesAPIApprovalPolicyConformantConditionController(changing{definitions}, client)
	cleanup := finalizer.NewCRDFinalizer(definitions, client, e)

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
