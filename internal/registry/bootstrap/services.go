package bootstrap

import (
	"context"
	"errors"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apiserver/pkg/storage"
	clientcache "k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"
	"k8s.io/kubernetes/pkg/controlplane/apiserver/options"
	"k8s.io/kubernetes/pkg/controlplane/controller/defaultservicecidr"
	"k8s.io/kubernetes/pkg/controlplane/controller/kubernetesservice"
	"k8s.io/kubernetes/pkg/controlplane/reconcilers"
	ipallocatorcontroller "k8s.io/kubernetes/pkg/registry/core/service/ipallocator/controller"
	portallocatorcontroller "k8s.io/kubernetes/pkg/registry/core/service/portallocator/controller"
)

const (
	serviceName = "kubernetes"
	portName    = "https"
)

// keepServiceCIDR runs upstream's controller of the default ServiceCIDR, whose
// goroutines end with ctx.
func (b *Bootstrap) keepServiceCIDR(ctx context.Context, ready func()) error {
	services := b.config.Registry.Services()
	controller := defaultservicecidr.NewController(services.ClusterIPRange, services.SecondaryClusterIPRange, b.config.Client)
	controller.Start(ctx) // blocks until the object exists
	if err := ctx.Err(); err != nil {
		return err
	}
	ready()
	<-ctx.Done()
	return nil
}

// newRepair runs upstream's loops that compare service addresses and node ports
// with the services. Its error, like upstream's, ends the server: one that cannot
// read what is allocated would allocate it twice.
func (b *Bootstrap) newRepair() func(context.Context, func()) error {
	c := &b.config
	core, networking := c.Informers.Core().V1(), c.Informers.Networking().V1()
	addresses := ipallocatorcontroller.NewRepairIPAddress(
		c.RepairInterval, c.Client, core.Services(), networking.ServiceCIDRs(), networking.IPAddresses())
	ports := portallocatorcontroller.NewRepair(
		c.RepairInterval, c.Client.CoreV1(), c.Client.EventsV1(), c.Registry.Services().NodePortRange, c.Registry.NodePorts())
	return func(ctx context.Context, ready func()) error {
		stop := make(chan struct{})
		defer context.AfterFunc(ctx, func() { close(stop) })()
		var group errgroup.Group
		first := make(chan struct{}, 2)
		done := func() { first <- struct{}{} }
		group.Go(func() error { addresses.RunUntil(done, stop); return nil })
		group.Go(func() error { ports.RunUntil(done, stop); return nil })
		err := awaitRepair(ctx, first, ready)
		if err != nil {
			return err
		}
		return group.Wait()
	}
}

// awaitRepair waits for the first pass of both loops.
func awaitRepair(ctx context.Context, first <-chan struct{}, ready func()) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	for range 2 {
		select {
		case <-first:
		case <-ctx.Done():
			return errors.New("unable to perform initial IP and Port allocation check")
		}
	}
	ready()
	return nil
}

// kubernetesService keeps the service under which pods find the API servers, and
// this server among its endpoints. The service exists before the server is ready;
// its endpoints follow.
type kubernetesService struct {
	config     *Config
	controller *kubernetesservice.Controller
	informer   clientcache.SharedIndexInformer
	reconciler reconcilers.EndpointReconciler
	after      []<-chan struct{} // what must be there before the service can be
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
		PublicIP:                  config.PublicAddress,
		EndpointReconciler:        reconciler,
		EndpointInterval:          config.EndpointInterval,
		ServiceIP:                 serviceIP,
		ServicePort:               config.ServicePort,
		PublicServicePort:         config.PublicPort,
		KubernetesServiceNodePort: config.ServiceNodePort,
	}, config.Client, informer)
	return s, nil
}

// newReconciler publishes no endpoints at all if this server's address is one that
// no endpoint may have.
func newReconciler(config *Config) (reconcilers.EndpointReconciler, error) {
	if ip := config.PublicAddress; ip == nil || ip.IsLoopback() || ip.IsUnspecified() {
		return reconcilers.NewNoneEndpointReconciler(), nil
	}
	leases, err := config.Registry.Leases(config.EndpointTTL)
	if err != nil {
		return nil, err
	}
	adapter := reconcilers.NewEndpointsAdapter(config.Client.CoreV1(), config.Client.DiscoveryV1())
	return reconcilers.NewLeaseEndpointReconciler(adapter, leases), nil
}

func (s *kubernetesService) run(ctx context.Context, ready func()) error {
	for _, c := range s.after {
		select {
		case <-c:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	if !clientcache.WaitFor(ctx, "", s.informer.HasSyncedChecker()) {
		return ctx.Err()
	}
	s.withdrawStale()
	if err := retry(ctx, patience, s.ensureService); err != nil {
		return err
	}
	ready()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(s.stopped, cancel)()
	s.controller.Run(ctx.Done())
	return nil
}

// withdrawStale removes the endpoint that a former life of this server has left:
// until it is ready nobody should turn to it.
func (s *kubernetesService) withdrawStale() {
	ports := []corev1.EndpointPort{{Name: portName, Protocol: corev1.ProtocolTCP, Port: int32(s.config.PublicPort)}}
	if err := s.reconciler.RemoveEndpoints(serviceName, s.config.PublicAddress, ports); err != nil && !storage.IsNotFound(err) {
		klog.ErrorS(err, "Cannot remove this server's old endpoints from the kubernetes service")
	}
}

func (s *kubernetesService) ensureService(context.Context) error {
	port := corev1.ServicePort{
		Name:       portName,
		Protocol:   corev1.ProtocolTCP,
		Port:       int32(s.config.ServicePort),
		TargetPort: intstr.FromInt32(int32(s.config.PublicPort)),
	}
	kind := corev1.ServiceTypeClusterIP
	if s.config.ServiceNodePort > 0 {
		port.NodePort, kind = int32(s.config.ServiceNodePort), corev1.ServiceTypeNodePort
	}
	return s.controller.CreateOrUpdateMasterServiceIfNeeded(
		serviceName, s.controller.ServiceIP, []corev1.ServicePort{port}, kind, false)
}

// stop withdraws the endpoints for good.
func (s *kubernetesService) stop() {
	s.stopOnce()
	s.controller.Stop()
}
