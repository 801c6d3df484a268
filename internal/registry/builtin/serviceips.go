package builtin

import (
	"context"
	"net"
	"net/netip"
	"strings"

	dto "github.com/prometheus/client_model/go"
	networkingv1 "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/registry/generic"
	genericregistry "k8s.io/apiserver/pkg/registry/generic/registry"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/apiserver/pkg/storage/storagebackend"
	"k8s.io/apiserver/pkg/storage/storagebackend/factory"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	networkinginformers "k8s.io/client-go/informers/networking/v1"
	networkingclient "k8s.io/client-go/kubernetes/typed/networking/v1"
	networkinglisters "k8s.io/client-go/listers/networking/v1"
	"k8s.io/client-go/tools/cache"
	api "k8s.io/kubernetes/pkg/apis/core"
	"k8s.io/kubernetes/pkg/features"
	"k8s.io/kubernetes/pkg/registry/core/service/allocator"
	"k8s.io/kubernetes/pkg/registry/core/service/ipallocator"
	netutils "k8s.io/utils/net"
)

// serviceIPs allocates the addresses of services by upstream's allocators over ServiceCIDR and IPAddress objects, one
// for each family. If the feature gate DisableAllocatorDualWrite is off, it also writes the bitmaps of older servers.
// If MultiCIDRServiceAllocator is off, it uses only the bitmaps.
//
// Upstream's storage of services needs the allocators when it is built, but making an allocator starts a goroutine. So
// the storage gets a map whose values run sets after the informers have loaded the allocated addresses. Writes of
// services wait for run.
type serviceIPs struct {
	config    *Config
	informers networkinginformers.Interface
	primary   api.IPFamily

	// bitmaps has an allocator over a record for each range. records has these records, the primary
	// range first. Both are empty if bitmaps are not used.
	bitmaps map[api.IPFamily]*ipallocator.Range
	records [2]*rangeAllocator

	// Invariant: every family is a key from the beginning; its value is set by
	// run before started is closed, and read after.
	allocators map[api.IPFamily]ipallocator.Interface
	started    chan struct{}
}

// newServiceIPs returns the allocators of a config. record returns the factory of the allocator over the record
// with that name, and sets made when the factory is called.
func newServiceIPs(config *Config, record func(made **rangeAllocator, name string) allocator.AllocatorWithOffsetFactory) (*serviceIPs, error) {
	s := &serviceIPs{
		config:     config,
		informers:  config.Informers.Networking().V1(),
		primary:    familyOf(config.Services.ClusterIPRange),
		allocators: make(map[api.IPFamily]ipallocator.Interface),
		started:    make(chan struct{}),
		bitmaps:    make(map[api.IPFamily]*ipallocator.Range),
	}
	names := [...]string{"serviceips", "secondaryserviceips"}
	for i, addresses := range [...]net.IPNet{config.Services.ClusterIPRange, config.Services.SecondaryClusterIPRange} {
		if addresses.IP == nil {
			continue
		}
		family := familyOf(addresses)
		s.allocators[family] = nil
		if !BitmapAddresses() {
			continue
		}
		var err error
		if s.bitmaps[family], err = ipallocator.New(&addresses, record(&s.records[i], names[i])); err != nil {
			return nil, err
		}
	}
	// Request the informers now: the factory starts only informers that were requested.
	s.informers.ServiceCIDRs().Informer()
	s.informers.IPAddresses().Informer()
	return s, nil
}

// BitmapAddresses reports whether bitmaps of service addresses are written, alone or in addition to
// IPAddress objects.
func BitmapAddresses() bool {
	return !ObjectAddresses() || !utilfeature.DefaultFeatureGate.Enabled(features.DisableAllocatorDualWrite)
}

// ObjectAddresses reports whether IPAddress objects decide which service addresses are allocated.
func ObjectAddresses() bool {
	return utilfeature.DefaultFeatureGate.Enabled(features.MultiCIDRServiceAllocator)
}

func familyOf(ipRange net.IPNet) api.IPFamily {
	if netutils.IsIPv6CIDR(&ipRange) {
		return api.IPv6Protocol
	}
	return api.IPv4Protocol
}

// run makes the allocators and serves them until ctx ends. It may be called once.
func (s *serviceIPs) run(ctx context.Context) error {
	if ObjectAddresses() {
		return s.runObjects(ctx)
	}
	for family, bitmap := range s.bitmaps {
		bitmap.EnableMetrics()
		s.allocators[family] = bitmap
	}
	close(s.started)
	<-ctx.Done()
	return nil
}

// initialize writes missing records of bitmaps that are used in addition to IPAddress objects. The loop
// that repairs those objects does not create them.
func (s *serviceIPs) initialize() error {
	for _, record := range s.records {
		if record == nil {
			continue
		}
		stored, err := record.Get()
		if err != nil {
			return err
		}
		if stored.ResourceVersion != "" {
			continue
		}
		stored.Range, _ = record.bitmap.Snapshot()
		if err := record.CreateOrUpdate(stored); err != nil && !apierrors.IsConflict(err) {
			return err
		}
	}
	return nil
}

func (s *serviceIPs) runObjects(ctx context.Context) error {
	client, err := networkingclient.NewForConfig(s.config.LoopbackClientConfig)
	if err != nil {
		return err
	}
	if err := s.initialize(); err != nil {
		return err
	}
	// Upstream's allocator would poll them every 100 ms.
	cidrs, addresses := s.informers.ServiceCIDRs().Informer(), s.informers.IPAddresses().Informer()
	if !cache.WaitFor(ctx, "", cidrs.HasSyncedChecker(), addresses.HasSyncedChecker()) {
		return nil
	}
	for family := range s.allocators {
		var bitmap ipallocator.Interface
		if kept := s.bitmaps[family]; kept != nil {
			bitmap = kept
		}
		allocator, err := ipallocator.NewMetaAllocator(
			client, s.informers.ServiceCIDRs(), unlistedAddresses{s.informers.IPAddresses(), s.informers.IPAddresses().Lister()}, family == api.IPv6Protocol, bitmap)
		if err != nil {
			return err
		}
		defer allocator.Destroy()
		allocator.EnableMetrics()
		s.allocators[family] = allocator
	}
	close(s.started)
	<-ctx.Done()
	return nil
}

// unlistedAddresses is an informer and its lister, which finds addresses by name but lists none. Upstream's allocator
// lists all addresses twice for each allocation and release, only to set the gauges that countAddresses sets.
type unlistedAddresses struct {
	networkinginformers.IPAddressInformer
	networkinglisters.IPAddressLister
}

func (u unlistedAddresses) Lister() networkinglisters.IPAddressLister { return u }

func (unlistedAddresses) List(labels.Selector) ([]*networkingv1.IPAddress, error) { return nil, nil }

// countAddresses sets the gauges of allocated and available addresses in families. Upstream has set the latter to the
// size of the CIDR, as the allocators found no addresses.
func countAddresses(families []*dto.MetricFamily, addresses []*networkingv1.IPAddress) {
	for _, f := range families {
		name, _ := strings.CutPrefix(f.GetName(), "kube_apiserver_clusterip_allocator_")
		if name != "allocated_ips" && name != "available_ips" {
			continue
		}
		for _, m := range f.GetMetric() {
			cidr, _ := netip.ParsePrefix(m.GetLabel()[0].GetValue())
			count := 0.0
			for _, a := range addresses {
				ip, _ := netip.ParseAddr(a.Name)
				if cidr.Contains(ip) && a.Labels[networkingv1.LabelManagedBy] == ipallocator.ControllerName {
					count++
				}
			}
			if name == "available_ips" {
				count = max(0, m.GetGauge().GetValue()-count)
			}
			m.Gauge = &dto.Gauge{Value: &count}
		}
	}
}

func (s *serviceIPs) wait(ctx context.Context) error {
	select {
	case <-s.started:
		return nil
	case <-ctx.Done():
		return apierrors.NewServiceUnavailable("service addresses cannot be allocated yet")
	}
}

// awaitAllocators makes creations and updates, including dry runs, wait until the allocators are ready.
func (s *serviceIPs) awaitAllocators(store *genericregistry.Store) {
	begin := store.BeginCreate
	store.BeginCreate = func(ctx context.Context, obj runtime.Object, options *metav1.CreateOptions) (genericregistry.FinishFunc, error) {
		if err := s.wait(ctx); err != nil {
			return nil, err
		}
		return begin(ctx, obj, options)
	}
	beginUpdate := store.BeginUpdate
	store.BeginUpdate = func(ctx context.Context, obj, old runtime.Object, options *metav1.UpdateOptions) (genericregistry.FinishFunc, error) {
		if err := s.wait(ctx); err != nil {
			return nil, err
		}
		return beginUpdate(ctx, obj, old, options)
	}
}

// waitingOptions makes deletions wait until the allocators are ready, before the hooks of the REST storage are called.
type waitingOptions struct {
	generic.RESTOptionsGetter
	ips *serviceIPs
}

func (g waitingOptions) GetRESTOptions(gr schema.GroupResource, example runtime.Object) (generic.RESTOptions, error) {
	opts, err := g.RESTOptionsGetter.GetRESTOptions(gr, example)
	decorate := opts.Decorator
	opts.Decorator = func(
		config *storagebackend.ConfigForResource, prefix string, keyFunc func(runtime.Object) (string, error), newFunc, newListFunc func() runtime.Object,
		getAttrs storage.AttrFunc, triggers storage.IndexerFuncs, indexers *cache.Indexers,
	) (storage.Interface, factory.DestroyFunc, error) {
		inner, destroy, err := decorate(config, prefix, keyFunc, newFunc, newListFunc, getAttrs, triggers, indexers)
		return gatedStorage{inner, g.ips}, destroy, err
	}
	return opts, err
}

type gatedStorage struct {
	storage.Interface
	ips *serviceIPs
}

func (g gatedStorage) Delete(
	ctx context.Context, key string, out runtime.Object, preconditions *storage.Preconditions,
	validate storage.ValidateObjectFunc, cached runtime.Object, opts storage.DeleteOptions,
) error {
	if err := g.ips.wait(ctx); err != nil {
		return err
	}
	return g.Interface.Delete(ctx, key, out, preconditions, validate, cached, opts)
}
