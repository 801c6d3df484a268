package bootstrap

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apiserver/pkg/storage"
	coreinformers "k8s.io/client-go/informers/core/v1"
	networkinginformers "k8s.io/client-go/informers/networking/v1"
	"k8s.io/client-go/kubernetes"
	corelisters "k8s.io/client-go/listers/core/v1"
	networkinglisters "k8s.io/client-go/listers/networking/v1"
	clientcache "k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"
	"k8s.io/kubernetes/pkg/apis/core/v1/helper"
	"k8s.io/kubernetes/pkg/controlplane/apiserver/options"
	"k8s.io/kubernetes/pkg/controlplane/controller/defaultservicecidr"
	"k8s.io/kubernetes/pkg/controlplane/controller/kubernetesservice"
	"k8s.io/kubernetes/pkg/controlplane/reconcilers"
	ipallocatorcontroller "k8s.io/kubernetes/pkg/registry/core/service/ipallocator/controller"
	portallocatorcontroller "k8s.io/kubernetes/pkg/registry/core/service/portallocator/controller"
)

const (
	serviceName = "kubernetes"
	servicePort = 443
	portName    = "https"

	// RepairInterval is how often service addresses and ports are compared with the services.
	RepairInterval = 3 * time.Minute
)

// keepServiceCIDR creates the default ServiceCIDR, and retries until that succeeds. Then it runs
// upstream's controller, whose goroutines end with ctx. The controller alone would need more than 100 ms
// to create it.
func (c *Config) keepServiceCIDR(ctx context.Context, ready func()) error {
	if !c.keepTrying(ctx, func() {}, "default ServiceCIDR", c.ensureServiceCIDR) {
		return ctx.Err()
	}
	ready()
	services := c.Registry.Services()
	controller := defaultservicecidr.NewController(services.ClusterIPRange, services.SecondaryClusterIPRange, c.Client)
	controller.Start(ctx)
	<-ctx.Done()
	return nil
}

func (c *Config) ensureServiceCIDR(ctx context.Context) error {
	services := c.Registry.Services()
	cidr := &networkingv1.ServiceCIDR{
		ObjectMeta: metav1.ObjectMeta{Name: defaultservicecidr.DefaultServiceCIDRName},
		Spec:       networkingv1.ServiceCIDRSpec{CIDRs: []string{services.ClusterIPRange.String()}},
	}
	if second := services.SecondaryClusterIPRange; second.IP != nil {
		cidr.Spec.CIDRs = append(cidr.Spec.CIDRs, second.String())
	}
	return createMissing(ctx, c.Client.NetworkingV1().ServiceCIDRs(), cidr)
}

// newRepair returns the hook that runs upstream's loops, which compare service addresses and node ports with
// the services. If cidr is not nil, the hook first waits until it is closed and the default ServiceCIDR
// exists. An error of the hook ends the server, as in kube-apiserver: a server that cannot read the allocations
// could allocate an address twice. The loop over addresses waits while paused is locked.
func (c *Config) newRepair(cidr <-chan struct{}, paused *sync.RWMutex) func(context.Context, func()) error {
	core, networking := c.Informers.Core().V1(), c.Informers.Networking().V1()
	cidrs := networking.ServiceCIDRs().Informer()
	synced := []clientcache.DoneChecker{
		cidrs.HasSyncedChecker(), networking.IPAddresses().Informer().HasSyncedChecker(), core.Services().Informer().HasSyncedChecker()}
	return func(ctx context.Context, ready func()) error {
		// Otherwise upstream's loops would poll for these every 100 ms.
		if cidr != nil && !await(ctx, cidr) || !clientcache.WaitFor(ctx, "", synced...) {
			return ctx.Err()
		}
		if cidr != nil {
			if err := retry(ctx, hookTimeout, seen(cidrs, defaultservicecidr.DefaultServiceCIDRName)); err != nil {
				return err
			}
		}
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		stop := make(chan struct{})
		context.AfterFunc(ctx, func() { close(stop) })
		var loops sync.WaitGroup
		defer loops.Wait()
		first := make(chan struct{}, 2)
		done := func() { first <- struct{}{} }
		loops.Go(func() {
			if cidr != nil {
				c.repairAddresses(ctx, paused, done, stop)
			} else {
				c.repairBitmaps(done, stop)
			}
		})
		loops.Go(func() {
			portallocatorcontroller.NewRepair( // starts a goroutine, which RunUntil ends
				RepairInterval, c.Client.CoreV1(), c.Client.EventsV1(), c.Registry.Services().NodePortRange, c.Registry.NodePorts()).RunUntil(done, stop)
		})
		limited, release := context.WithTimeout(ctx, time.Minute)
		defer release()
		for range cap(first) {
			if !await(limited, first) {
				cancel()
				return errors.New("unable to perform initial IP and Port allocation check")
			}
		}
		ready()
		return nil
	}
}

// repairAddresses runs upstream's loop over addresses until stop is closed, when ctx ends. The loop fails if its first
// pass finds an address that another server has just allocated and that the informer does not have yet. Then
// repairAddresses starts it again.
func (c *Config) repairAddresses(ctx context.Context, paused *sync.RWMutex, done func(), stop chan struct{}) {
	core, networking := c.Informers.Core().V1().Services(), c.Informers.Networking().V1()
	addresses := confirmedAddresses{networking.IPAddresses(), networking.IPAddresses().Lister(), core.Lister(), c.Client, ctx, paused}
	services := confirmedServices{core, core.Informer().GetIndexer(), addresses}
	_ = wait.PollUntilContextCancel(ctx, 100*time.Millisecond, true, func(context.Context) (passed bool, err error) {
		loop := ipallocatorcontroller.NewRepairIPAddress(
			RepairInterval, c.Client, services, networking.ServiceCIDRs(), addresses)
		loop.RunUntil(func() { passed = true; done() }, stop)
		return passed, nil
	})
}

// confirmedAddresses is an informer whose lister reads from the server unless the informers have a Service with the
// address. An address is stored before its Service and deleted after it, and either informer may be behind.
type confirmedAddresses struct {
	networkinginformers.IPAddressInformer
	networkinglisters.IPAddressLister
	services corelisters.ServiceLister
	client   kubernetes.Interface
	ctx      context.Context
	paused   *sync.RWMutex // locked while the lister must wait
}

func (a confirmedAddresses) Lister() networkinglisters.IPAddressLister { return a }

func (a confirmedAddresses) Get(name string) (*networkingv1.IPAddress, error) {
	a.await()
	if address, err := a.IPAddressLister.Get(name); err == nil {
		svc, err := a.services.Services(address.Spec.ParentRef.Namespace).Get(address.Spec.ParentRef.Name)
		if err == nil && slices.Contains(svc.Spec.ClusterIPs, name) {
			return address, nil
		}
	}
	return a.client.NetworkingV1().IPAddresses().Get(a.ctx, name, metav1.GetOptions{})
}

// await blocks while the loop is paused.
func (a confirmedAddresses) await() {
	a.paused.RLock()
	defer a.paused.RUnlock()
}

// confirmedServices is an informer whose lister reads a Service from the server if the Service lacks an address, or if
// the informer lacks the Service. Otherwise upstream's loop would allocate addresses for a deleted Service that the
// informer still has, and release those of a restored Service that it does not have yet. The lister reads the Service
// after the address: if the Service exists, its address is lost and not just released.
type confirmedServices struct {
	coreinformers.ServiceInformer
	clientcache.Indexer
	addresses confirmedAddresses
}

func (s confirmedServices) Lister() corelisters.ServiceLister { return corelisters.NewServiceLister(s) }

// GetByKey serves the lister.
func (s confirmedServices) GetByKey(key string) (any, bool, error) {
	s.addresses.await()
	object, found, err := s.Indexer.GetByKey(key)
	svc, _ := object.(*corev1.Service)
	if err != nil || found && (!helper.IsServiceIPSet(svc) || !slices.ContainsFunc(svc.Spec.ClusterIPs, func(ip string) bool {
		address, err := s.addresses.Get(ip)
		return err != nil || *address.Spec.ParentRef != networkingv1.ParentReference{Resource: "services", Namespace: svc.Namespace, Name: svc.Name}
	})) {
		return object, found, err
	}
	namespace, name, _ := clientcache.SplitMetaNamespaceKey(key) // made by upstream's loop or by the lister
	live, err := s.addresses.client.CoreV1().Services(namespace).Get(s.addresses.ctx, name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err) || err == nil && found && live.UID != svc.UID:
		return nil, false, nil
	case err != nil && found:
		return svc, true, nil // upstream's loop does not retry after an error of this lister
	}
	return live, err == nil, err
}

// repairBitmaps runs upstream's loop over the bitmaps of addresses until stop is closed.
func (c *Config) repairBitmaps(done func(), stop chan struct{}) {
	services := c.Registry.Services()
	primary, secondary := c.Registry.Addresses()
	ipallocatorcontroller.NewRepair(RepairInterval, c.Client.CoreV1(), c.Client.EventsV1(),
		&services.ClusterIPRange, primary, &services.SecondaryClusterIPRange, secondary).RunUntil(done, stop)
}

// await blocks until c is closed or has a value; it returns false if ctx ends before.
func await(ctx context.Context, c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	case <-ctx.Done():
		return false
	}
}

// seen returns work that fails until informer has an object with key.
func seen(informer clientcache.SharedIndexInformer, key string) func(context.Context) error {
	return func(context.Context) error {
		_, found, err := informer.GetStore().GetByKey(key)
		if err == nil && !found {
			err = errors.New("object is not in the informer yet")
		}
		return err
	}
}

// kubernetesService creates the kubernetes service, under which pods find the API servers, and publishes
// this server among its endpoints. The service exists before the server is ready; its endpoints follow.
type kubernetesService struct {
	config     *Config
	controller *kubernetesservice.Controller
	informer   clientcache.SharedIndexInformer
	reconciler reconcilers.EndpointReconciler
	after      []<-chan struct{} // closed when the objects that the service needs exist
	stopped    context.Context
	stopOnce   context.CancelFunc
}

func newKubernetesService(config *Config, after ...<-chan struct{}) (*kubernetesService, error) {
	_, serviceIP, err := options.ServiceIPRange(config.Registry.Services().ClusterIPRange)
	if err != nil {
		return nil, err
	}
	reconciler, err := newReconciler(config)
	if err != nil {
		return nil, err
	}
	informer := config.Informers.Core().V1().Services()
	s := &kubernetesService{config: config, informer: informer.Informer(), reconciler: reconciler, after: after}
	s.stopped, s.stopOnce = context.WithCancel(context.Background())
	s.controller = kubernetesservice.New(kubernetesservice.Config{
		PublicIP: config.PublicAddress, EndpointReconciler: reconciler,
		EndpointInterval: config.EndpointInterval, ServiceIP: serviceIP, ServicePort: servicePort,
		PublicServicePort: config.PublicPort, KubernetesServiceNodePort: config.ServiceNodePort,
	}, config.Client, informer)
	return s, nil
}

// newReconciler returns a reconciler that publishes nothing if no endpoint may have this server's
// address.
func newReconciler(config *Config) (reconcilers.EndpointReconciler, error) {
	if ip := config.PublicAddress; ip == nil || ip.IsLoopback() || ip.IsUnspecified() {
		return reconcilers.NewNoneEndpointReconciler(), nil
	}
	adapter := reconcilers.NewEndpointsAdapter(config.Client.CoreV1(), config.Client.DiscoveryV1())
	switch config.EndpointReconciler {
	case reconcilers.NoneEndpointReconcilerType:
		return reconcilers.NewNoneEndpointReconciler(), nil
	case reconcilers.MasterCountReconcilerType:
		return &promptReconciler{reconcilers.NewMasterCountEndpointReconciler(config.Instances, adapter), adapter}, nil
	}
	leases, err := config.Registry.Leases(config.EndpointTTL)
	if err != nil {
		return nil, err
	}
	r := reconcilers.NewLeaseEndpointReconciler(adapter, leases)
	if !config.AnyPort {
		r = &samePortReconciler{EndpointReconciler: r, adapter: adapter, leases: leases, ttl: config.EndpointTTL}
	}
	return &promptReconciler{r, adapter}, nil
}

func (s *kubernetesService) run(ctx context.Context, ready func()) error {
	for _, c := range s.after {
		if !await(ctx, c) {
			return ctx.Err()
		}
	}
	if !clientcache.WaitFor(ctx, "", s.informer.HasSyncedChecker()) {
		return ctx.Err()
	}
	if s.config.TakesOver == nil {
		s.withdrawStale()
	}
	if !s.config.keepTrying(ctx, ready, "kubernetes service", s.ensureService) {
		return ctx.Err()
	}
	// The controller creates the service if the informer does not know it.
	if err := retry(ctx, s.config.Grace, seen(s.informer, metav1.NamespaceDefault+"/"+serviceName)); err != nil && ctx.Err() == nil {
		klog.ErrorS(err, "Creating or updating the kubernetes service before its informer has synced")
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(s.stopped, cancel)()
	s.controller.Run(ctx.Done())
	return nil
}

// withdrawStale removes the endpoint that an earlier process of this server has left, because clients should not use
// this server before it is ready. Upstream's reconciler does not remove the last endpoint.
func (s *kubernetesService) withdrawStale() {
	ports := []corev1.EndpointPort{{Name: portName, Protocol: corev1.ProtocolTCP, Port: int32(s.config.PublicPort)}}
	if err := s.reconciler.RemoveEndpoints(serviceName, s.config.PublicAddress, ports); err != nil && !storage.IsNotFound(err) {
		klog.V(2).InfoS("Cannot remove this server's old endpoints from the kubernetes service before it is ready", "reason", err)
	}
}

func (s *kubernetesService) ensureService(context.Context) error {
	port := corev1.ServicePort{
		Name:       portName,
		Protocol:   corev1.ProtocolTCP,
		Port:       servicePort,
		TargetPort: intstr.FromInt32(int32(s.config.PublicPort)),
	}
	kind := corev1.ServiceTypeClusterIP
	if s.config.ServiceNodePort > 0 {
		port.NodePort, kind = int32(s.config.ServiceNodePort), corev1.ServiceTypeNodePort
	}
	return s.controller.CreateOrUpdateMasterServiceIfNeeded(
		serviceName, s.controller.ServiceIP, []corev1.ServicePort{port}, kind, false)
}

func (s *kubernetesService) stop() {
	s.stopOnce()
	s.controller.Stop()
}
