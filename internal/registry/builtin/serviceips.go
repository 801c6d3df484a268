package builtin

import (
	"context"
	"net"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/registry/generic"
	genericregistry "k8s.io/apiserver/pkg/registry/generic/registry"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/apiserver/pkg/storage/storagebackend"
	"k8s.io/apiserver/pkg/storage/storagebackend/factory"
	networkinginformers "k8s.io/client-go/informers/networking/v1"
	networkingclient "k8s.io/client-go/kubernetes/typed/networking/v1"
	"k8s.io/client-go/tools/cache"
	api "k8s.io/kubernetes/pkg/apis/core"
	"k8s.io/kubernetes/pkg/registry/core/service/ipallocator"
	netutils "k8s.io/utils/net"
)

// serviceIPs allocates the addresses of services by upstream's allocators over ServiceCIDR
// and IPAddress objects, one for each family.
//
// Upstream's storage of services needs the allocators when it is built, and looks at their
// type, but making one starts a goroutine. So the storage gets a map that run fills, and
// its writes wait for that: a service can be neither created, updated nor deleted before
// the Registry runs and its informers have loaded what is allocated.
type serviceIPs struct {
	config    *Config
	informers networkinginformers.Interface
	primary   api.IPFamily

	// Invariant: every family is a key from the beginning; its value is set by
	// run before started is closed, and read after.
	allocators map[api.IPFamily]ipallocator.Interface
	started    chan struct{}
}

func newServiceIPs(config *Config) *serviceIPs {
	s := &serviceIPs{
		config:     config,
		informers:  config.Informers.Networking().V1(),
		primary:    familyOf(config.Services.ClusterIPRange),
		allocators: make(map[api.IPFamily]ipallocator.Interface),
		started:    make(chan struct{}),
	}
	s.allocators[s.primary] = nil
	if second := config.Services.SecondaryClusterIPRange; second.IP != nil {
		s.allocators[familyOf(second)] = nil
	}
	// Ask for the informers now: the factory starts only those that were asked for.
	s.informers.ServiceCIDRs().Informer()
	s.informers.IPAddresses().Informer()
	return s
}

func familyOf(ipRange net.IPNet) api.IPFamily {
	if netutils.IsIPv6CIDR(&ipRange) {
		return api.IPv6Protocol
	}
	return api.IPv4Protocol
}

// run makes the allocators and serves them until ctx ends. It may be called once.
func (s *serviceIPs) run(ctx context.Context) error {
	client, err := networkingclient.NewForConfig(s.config.ClientConfig)
	if err != nil {
		return err
	}
	// Upstream's allocator would look every 100 ms whether they have synced.
	cidrs, addresses := s.informers.ServiceCIDRs().Informer(), s.informers.IPAddresses().Informer()
	if !cache.WaitFor(ctx, "", cidrs.HasSyncedChecker(), addresses.HasSyncedChecker()) {
		return nil
	}
	for family := range s.allocators {
		allocator, err := ipallocator.NewMetaAllocator(
			client, s.informers.ServiceCIDRs(), s.informers.IPAddresses(), family == api.IPv6Protocol, nil)
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

func (s *serviceIPs) wait(ctx context.Context) error {
	select {
	case <-s.started:
		return nil
	case <-ctx.Done():
		return apierrors.NewServiceUnavailable("service addresses cannot be allocated yet")
	}
}

// gate makes the writes of a storage wait until the allocators are there.
func (s *serviceIPs) gate(store *genericregistry.Store) {
	begin := store.BeginCreate
	store.BeginCreate = func(ctx context.Context, obj runtime.Object, options *metav1.CreateOptions) (genericregistry.FinishFunc, error) {
		if err := s.wait(ctx); err != nil {
			return nil, err
		}
		return begin(ctx, obj, options)
	}
}

// gatedOptions makes updates and deletions wait, before the hooks of the REST storage are
// called. gate does so for creations.
type gatedOptions struct {
	generic.RESTOptionsGetter
	ips *serviceIPs
}

// GetRESTOptions implements generic.RESTOptionsGetter.
func (g gatedOptions) GetRESTOptions(gr schema.GroupResource, example runtime.Object) (generic.RESTOptions, error) {
	opts, err := g.RESTOptionsGetter.GetRESTOptions(gr, example)
	decorate := opts.Decorator
	opts.Decorator = func(
		config *storagebackend.ConfigForResource,
		prefix string,
		keyFunc func(runtime.Object) (string, error),
		newFunc, newListFunc func() runtime.Object,
		getAttrs storage.AttrFunc,
		triggers storage.IndexerFuncs,
		indexers *cache.Indexers,
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

// GuaranteedUpdate implements storage.Interface.
func (g gatedStorage) GuaranteedUpdate(
	ctx context.Context, key string, out runtime.Object, ignoreNotFound bool,
	preconditions *storage.Preconditions, update storage.UpdateFunc, cached runtime.Object,
) error {
	if err := g.ips.wait(ctx); err != nil {
		return err
	}
	return g.Interface.GuaranteedUpdate(ctx, key, out, ignoreNotFound, preconditions, update, cached)
}

// Delete implements storage.Interface.
func (g gatedStorage) Delete(
	ctx context.Context, key string, out runtime.Object, preconditions *storage.Preconditions,
	validate storage.ValidateObjectFunc, cached runtime.Object, opts storage.DeleteOptions,
) error {
	if err := g.ips.wait(ctx); err != nil {
		return err
	}
	return g.Interface.Delete(ctx, key, out, preconditions, validate, cached, opts)
}
