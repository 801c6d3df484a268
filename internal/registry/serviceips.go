package registry

import (
	"net"
	"sync/atomic"

	networkinginformers "k8s.io/client-go/informers/networking/v1"
	networkingclient "k8s.io/client-go/kubernetes/typed/networking/v1"
	api "k8s.io/kubernetes/pkg/apis/core"
	"k8s.io/kubernetes/pkg/registry/core/service/ipallocator"
	netutils "k8s.io/utils/net"
)

// serviceIPs gives out the service addresses of one family. It is upstream's
// allocator over ServiceCIDR and IPAddress objects, which starts a goroutine when
// it is made and so is made by start. Before that nothing can be allocated.
type serviceIPs struct {
	family    api.IPFamily
	config    *Config
	informers networkinginformers.Interface
	allocator atomic.Pointer[ipallocator.MetaAllocator]
}

var _ ipallocator.Interface = (*serviceIPs)(nil)

func newServiceIPs(config *Config, ipRange net.IPNet) *serviceIPs {
	s := &serviceIPs{family: api.IPv4Protocol, config: config, informers: config.Informers.Networking().V1()}
	if netutils.IsIPv6CIDR(&ipRange) {
		s.family = api.IPv6Protocol
	}
	// Ask for the informers now: their owner starts those it was asked for.
	s.informers.ServiceCIDRs().Informer()
	s.informers.IPAddresses().Informer()
	return s
}

func (s *serviceIPs) start() error {
	client, err := networkingclient.NewForConfig(s.config.ClientConfig)
	if err != nil {
		return err
	}
	allocator, err := ipallocator.NewMetaAllocator(
		client, s.informers.ServiceCIDRs(), s.informers.IPAddresses(), s.family == api.IPv6Protocol, nil)
	if err != nil {
		return err
	}
	allocator.EnableMetrics()
	s.allocator.Store(allocator)
	return nil
}

func (s *serviceIPs) stop() {
	if a := s.allocator.Load(); a != nil {
		a.Destroy()
	}
}

// Allocate takes one address.
func (s *serviceIPs) Allocate(ip net.IP) error {
	if a := s.allocator.Load(); a != nil {
		return a.Allocate(ip)
	}
	return ipallocator.ErrNotReady
}

// AllocateNext takes any free address.
func (s *serviceIPs) AllocateNext() (net.IP, error) {
	if a := s.allocator.Load(); a != nil {
		return a.AllocateNext()
	}
	return nil, ipallocator.ErrNotReady
}

// Release gives an address back.
func (s *serviceIPs) Release(ip net.IP) error {
	if a := s.allocator.Load(); a != nil {
		return a.Release(ip)
	}
	return ipallocator.ErrNotReady
}

// ForEach calls fn for every address taken.
func (s *serviceIPs) ForEach(fn func(net.IP)) {
	if a := s.allocator.Load(); a != nil {
		a.ForEach(fn)
	}
}

// CIDR is the zero range: the ranges are ServiceCIDR objects.
func (s *serviceIPs) CIDR() net.IPNet { return net.IPNet{} }

// IPFamily is the family of the addresses.
func (s *serviceIPs) IPFamily() api.IPFamily { return s.family }

// Has reports whether an address is taken.
func (s *serviceIPs) Has(ip net.IP) bool {
	a := s.allocator.Load()
	return a != nil && a.Has(ip)
}

// DryRun returns an allocator that writes nothing.
func (s *serviceIPs) DryRun() ipallocator.Interface {
	if a := s.allocator.Load(); a != nil {
		return a.DryRun()
	}
	return s
}

// EnableMetrics does nothing: start enables them.
func (s *serviceIPs) EnableMetrics() {}

// Destroy does nothing: the registry's Run ends the allocator.
func (s *serviceIPs) Destroy() {}
