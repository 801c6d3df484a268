package aggregator

import (
	"context"
	"fmt"
	"sync"
	"time"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apiserver/pkg/endpoints/discovery/aggregated"
	"k8s.io/apiserver/pkg/server/dynamiccertificates"
	"k8s.io/client-go/tools/cache"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"
	upstream "k8s.io/kube-aggregator/pkg/apiserver"
	apiserviceinformers "k8s.io/kube-aggregator/pkg/client/informers/externalversions/apiregistration/v1"
	"k8s.io/kube-aggregator/pkg/controllers/autoregister"
	"k8s.io/kube-aggregator/pkg/controllers/openapi"
	"k8s.io/kube-aggregator/pkg/controllers/openapiv3"
	local "k8s.io/kube-aggregator/pkg/controllers/status/local"
	"k8s.io/kube-aggregator/pkg/controllers/status/remote"
)

// workers is the number of workers of a controller, as upstream has.
const workers = 5

// Run follows APIServices, registers this server's own, and checks the availability of the others, until ctx ends.
// The server must already serve requests. Run is called once.
func (a *Aggregator) Run(ctx context.Context) error {
	client := a.client.ApiregistrationV1()
	remotes, err := remote.New(remoteOnly{a.apiServices()}, a.config.Services, a.slices.Discovery().V1().EndpointSlices(),
		client, a.dial, a.certificate, a.resolver, a.metrics)
	if err != nil {
		return fmt.Errorf("aggregator: %w", err)
	}
	locals, err := local.New(a.apiServices(), client, a.metrics)
	if err != nil {
		return fmt.Errorf("aggregator: %w", err)
	}
	discovery := upstream.NewDiscoveryManager(a.config.Discovery.WithSource(aggregated.AggregatorSource))
	describing := openapi.NewAggregationController(&a.swagger.downloader, a.swagger)
	linking := openapiv3.NewAggregationController(a.openAPIv3)
	registration := upstream.NewAPIServiceRegistrationController(a.apiServices(), &router{
		aggregator: a, discovery: discovery, openAPIv2: describing, openAPIv3: linking, wanted: sync.OnceFunc(func() { close(a.remoteWanted) }),
	})
	synced, err := a.watchPending()
	if err != nil {
		return fmt.Errorf("aggregator: %w", err)
	}
	if err := a.loadCertificate(ctx, registration); err != nil {
		return err
	}
	registrar := autoregister.NewAutoRegisterController(a.apiServices(), client)
	var wished cache.ResourceEventHandlerRegistration
	if crds := apiextensionsv1.SchemeGroupVersion.WithResource("customresourcedefinitions"); a.config.Registry.Endpoint(crds, "") != nil {
		informer := a.config.CRDs.Informer()
		versions := &crdVersions{indexer: informer.GetIndexer(), to: registrar}
		wished, err = informer.AddEventHandler(versions.handlers())
		if err != nil && ctx.Err() == nil { // otherwise the informer has ended, and so do the controllers below
			return fmt.Errorf("aggregator: %w", err)
		}
	}
	for _, apiService := range a.builtIn() {
		registrar.AddAPIServiceToSyncOnStart(apiService)
	}

	a.informers.Start(ctx.Done())
	a.register(ctx, synced, wished, registrar)
	a.follow(ctx, synced, registration, discovery)
	a.running.Go(func() { locals.Run(workers, ctx.Done()) })
	a.running.Go(func() { a.checkRemotes(ctx, remotes) })
	a.running.Go(func() { describing.RunWithContext(ctx) })
	a.running.Go(func() { linking.RunWithContext(ctx) })
	close(a.started)
	<-ctx.Done()
	a.running.Wait()
	a.informers.Shutdown()
	a.slices.Shutdown()
	return nil
}

// loadCertificate reads the client certificate for remote servers, and reloads it when its files change.
// Upstream's constructor starts goroutines, which end with files.Run.
func (a *Aggregator) loadCertificate(ctx context.Context, registration *upstream.APIServiceRegistrationController) error {
	if a.config.CertFile == "" {
		return nil
	}
	files, err := dynamiccertificates.NewDynamicServingContentFromFiles("aggregator-proxy-cert", a.config.CertFile, a.config.KeyFile)
	if err == nil {
		err = files.RunOnce(ctx)
	}
	if err != nil {
		return fmt.Errorf("aggregator: certificate: %w", err)
	}
	a.identity.Store(files)
	files.AddListener(registration)
	a.running.Go(func() { files.Run(ctx, 1) })
	return nil
}

// controller is one of upstream's controllers. Its constructor starts goroutines that end only with
// Run. So Run must be called even if the controller is not needed, with an ended context.
type controller interface {
	Run(workers int, stop <-chan struct{})
}

// register keeps an APIService for every version of this server. It first waits until all CRDs and
// APIServices are known. Otherwise it would delete the APIServices of unknown CRDs. wished is nil if
// there are no CRDs, or if ctx ended before they were known.
func (a *Aggregator) register(ctx context.Context, synced <-chan struct{}, wished cache.ResourceEventHandlerRegistration, registrar controller) {
	a.running.Go(func() {
		if await(ctx, synced) && wished != nil { // upstream's crdAPIEnabled
			cache.WaitForCacheSync(ctx.Done(), wished.HasSynced)
		}
		registrar.Run(workers, ctx.Done())
	})
}

// follow keeps the routes and the discovery of remote servers current.
func (a *Aggregator) follow(ctx context.Context, synced <-chan struct{}, registration *upstream.APIServiceRegistrationController, discovery upstream.DiscoveryAggregationController) {
	initiated, discovered := make(chan struct{}), make(chan struct{})
	a.running.Go(func() {
		await(ctx, synced) // upstream itself would poll every 100 ms
		registration.Run(ctx.Done(), initiated)
	})
	a.running.Go(func() {
		if !await(ctx, initiated) {
			discovery.Run(ctx.Done(), discovered)
			return
		}
		close(a.hooks[hookRegistration])
		a.running.Go(func() { discovery.Run(ctx.Done(), discovered) })
		select {
		case <-discovered:
			close(a.hooks[hookDiscovery])
		case <-ctx.Done():
		}
	})
}

// checkRemotes checks the availability of remote servers, from the first one on.
func (a *Aggregator) checkRemotes(ctx context.Context, remotes controller) {
	if await(ctx, a.remoteWanted) {
		a.slices.Start(ctx.Done())
	}
	remotes.Run(workers, ctx.Done())
}

// remoteOnly is the informer of APIServices for the controller of remote servers. It hides APIServices without a
// service, which that controller ignores, too. Otherwise they would wait in its queue until it runs, as the metric
// workqueue_depth would show.
type remoteOnly struct {
	apiserviceinformers.APIServiceInformer
}

func (r remoteOnly) Informer() cache.SharedIndexInformer {
	return remoteOnlyInformer{r.APIServiceInformer.Informer()}
}

type remoteOnlyInformer struct{ cache.SharedIndexInformer }

func (i remoteOnlyInformer) AddEventHandlerWithResyncPeriod(handler cache.ResourceEventHandler, resync time.Duration) (cache.ResourceEventHandlerRegistration, error) {
	return i.SharedIndexInformer.AddEventHandlerWithResyncPeriod(cache.FilteringResourceEventHandler{FilterFunc: isRemote, Handler: handler}, resync)
}

// isRemote reports whether an event is about an APIService with a service.
func isRemote(obj any) bool {
	if gone, ok := obj.(cache.DeletedFinalStateUnknown); ok {
		obj = gone.Obj
	}
	apiService, ok := obj.(*apiregistrationv1.APIService)
	return ok && apiService.Spec.Service != nil
}
