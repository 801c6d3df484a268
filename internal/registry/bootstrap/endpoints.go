package bootstrap

import (
	"net"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/klog/v2"
	"k8s.io/kubernetes/pkg/controlplane/reconcilers"

	"github.com/larder-io/larder/internal/registry"
)

// considerate enters this server into the endpoints of the kubernetes service by
// upstream's reconciler, which takes for granted that all servers have one port and
// addresses of their own: it would publish this server at its siblings' port, and its
// siblings, when it leaves, at this server's. So, while others are alive at another port,
// this server keeps out: it touches neither endpoints nor leases. When nobody else is
// left it enters, and corrects the port.
type considerate struct {
	reconcilers.EndpointReconciler
	adapter reconcilers.EndpointsAdapter
	leases  *registry.Leases
	ttl     time.Duration // of a lease

	mu      sync.Mutex
	joined  bool      // this server has entered itself
	aside   bool      // it has been said that it keeps out
	foreign time.Time // when the record of this server's address was last seen refreshed by another
}

func newConsiderate(upstream reconcilers.EndpointReconciler, adapter reconcilers.EndpointsAdapter, leases *registry.Leases, ttl time.Duration) *considerate {
	return &considerate{EndpointReconciler: upstream, adapter: adapter, leases: leases, ttl: ttl}
}

// published is what the cluster says of its servers.
type published struct {
	ports  []corev1.EndpointPort // of the endpoints; nil if there are none
	others bool                  // servers other than this one are alive
	shared bool                  // one of them has this server's address
}

// elsewhere reports whether other ports than these are published.
func (p *published) elsewhere(ports []corev1.EndpointPort) bool {
	return len(p.ports) > 0 && !slices.Equal(p.ports, ports)
}

func (c *considerate) lookLocked(service string, ip net.IP) (now published, err error) {
	endpoints, err := c.adapter.Get(metav1.NamespaceDefault, service, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
	case err != nil:
		return now, err
	case len(endpoints.Subsets) == 1:
		now.ports = endpoints.Subsets[0].Ports
	}
	refreshed, err := c.leases.Foreign(ip.String())
	if err != nil {
		return now, err
	}
	if refreshed {
		c.foreign = time.Now()
	}
	alive, err := c.leases.ListLeases()
	if err != nil {
		return now, err
	}
	// Both servers at an address refresh its record in turn, if not exactly.
	now.shared = slices.Contains(alive, ip.String()) && !c.foreign.IsZero() && time.Since(c.foreign) < c.ttl
	now.others = now.shared || slices.ContainsFunc(alive, func(other string) bool { return other != ip.String() })
	return now, nil
}

// ReconcileEndpoints implements reconcilers.EndpointReconciler.
func (c *considerate) ReconcileEndpoints(service string, ip net.IP, ports []corev1.EndpointPort, reconcilePorts bool) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	now, err := c.lookLocked(service, ip)
	if err != nil {
		return err
	}
	if now.others && now.elsewhere(ports) {
		return c.keepOutLocked(service, ip, now)
	}
	if err := c.EndpointReconciler.ReconcileEndpoints(service, ip, ports, reconcilePorts || !now.others); err != nil {
		return err
	}
	c.joined, c.aside = true, false
	return nil
}

// keepOutLocked leaves the endpoints to the others.
func (c *considerate) keepOutLocked(service string, ip net.IP, now published) error {
	if !c.aside {
		klog.Warningf("This server is not among the endpoints of service %q: other servers have published port %d", service, now.ports[0].Port)
		c.aside = true
	}
	joined := c.joined
	c.joined = false
	if !joined || now.shared {
		return nil
	}
	return c.EndpointReconciler.RemoveEndpoints(service, ip, now.ports)
}

// RemoveEndpoints implements reconcilers.EndpointReconciler. Before this server has
// entered itself it removes what a former life has left.
func (c *considerate) RemoveEndpoints(service string, ip net.IP, ports []corev1.EndpointPort) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	now, err := c.lookLocked(service, ip)
	if err != nil {
		return err
	}
	joined, elsewhere := c.joined, now.elsewhere(ports)
	c.joined = false
	switch {
	case !joined && (elsewhere || len(now.ports) == 0):
		return nil // nothing of this server's
	case elsewhere && now.shared:
		return nil // the other's
	case elsewhere:
		ports = now.ports
	}
	return c.EndpointReconciler.RemoveEndpoints(service, ip, ports)
}
