package bootstrap

import (
	"errors"
	"net"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/klog/v2"
	"k8s.io/kubernetes/pkg/controlplane/reconcilers"

	"github.com/larder-io/larder/internal/registry/builtin"
)

// promptReconciler repeats a reconciliation at once if another server has changed the endpoints meanwhile. Upstream's
// controller would wait for its interval. It overwrites the EndpointSlice, so the last writer must have seen the
// current Endpoints.
type promptReconciler struct {
	reconcilers.EndpointReconciler
	adapter reconcilers.EndpointsAdapter
}

// version returns the resource version of the endpoints; "" if they cannot be read.
func (r *promptReconciler) version(service string) string {
	if endpoints, err := r.adapter.Get(metav1.NamespaceDefault, service, metav1.GetOptions{}); err == nil {
		return endpoints.ResourceVersion
	}
	return ""
}

// ReconcileEndpoints implements reconcilers.EndpointReconciler. It reconciles until the endpoints no longer change.
func (r *promptReconciler) ReconcileEndpoints(service string, ip net.IP, ports []corev1.EndpointPort, reconcilePorts bool) error {
	return contended(func() error {
		before := r.version(service)
		err := r.EndpointReconciler.ReconcileEndpoints(service, ip, ports, reconcilePorts)
		if err == nil && r.version(service) != before {
			err = apierrors.NewConflict(corev1.Resource("endpoints"), service, errors.New("they have changed during their reconciliation"))
		}
		return err
	})
}

// samePortReconciler runs upstream's reconciler of the endpoints of the kubernetes service only if all servers have the
// same port. Otherwise upstream's reconciler would publish a server with the port of another one. So while other
// servers are alive at another port, this server writes neither endpoints nor leases. When no other server is left, it
// publishes itself and corrects the port.
type samePortReconciler struct {
	reconcilers.EndpointReconciler
	adapter reconcilers.EndpointsAdapter
	leases  *builtin.Leases
	ttl     time.Duration // of a lease

	mu      sync.Mutex
	joined  bool      // this server is published
	keptOut bool      // this server is not published, and has logged that
	foreign time.Time // when another server was last seen to refresh the record of this server's address
}

// published is the state of the cluster's servers in the store.
type published struct {
	ports  []corev1.EndpointPort // of the endpoints; nil if there are none
	others bool                  // servers other than this one are alive
	shared bool                  // one of them has this server's address
}

// portsDiffer reports whether the published ports differ from these.
func (p *published) portsDiffer(ports []corev1.EndpointPort) bool {
	return len(p.ports) > 0 && !slices.Equal(p.ports, ports)
}

func (s *samePortReconciler) lookLocked(service string, ip net.IP) (now published, err error) {
	endpoints, err := s.adapter.Get(metav1.NamespaceDefault, service, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
	case err != nil:
		return now, err
	case len(endpoints.Subsets) == 1:
		now.ports = endpoints.Subsets[0].Ports
	}
	refreshed, err := s.leases.RefreshedByOther(ip.String())
	if err != nil {
		return now, err
	}
	if refreshed {
		s.foreign = time.Now()
	}
	alive, err := s.leases.ListLeases()
	if err != nil {
		return now, err
	}
	// Two servers at one address refresh its record roughly alternately.
	now.shared = slices.Contains(alive, ip.String()) && !s.foreign.IsZero() && time.Since(s.foreign) < s.ttl
	now.others = now.shared || slices.ContainsFunc(alive, func(other string) bool { return other != ip.String() })
	return now, nil
}

// ReconcileEndpoints implements reconcilers.EndpointReconciler.
func (s *samePortReconciler) ReconcileEndpoints(service string, ip net.IP, ports []corev1.EndpointPort, reconcilePorts bool) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	now, err := s.lookLocked(service, ip)
	if err != nil {
		return err
	}
	if now.others && now.portsDiffer(ports) {
		return s.unpublishLocked(service, ip, now)
	}
	if err := s.EndpointReconciler.ReconcileEndpoints(service, ip, ports, reconcilePorts || !now.others); err != nil {
		return err
	}
	s.joined, s.keptOut = true, false
	return nil
}

// unpublishLocked removes this server from the endpoints if it was published, and logs that.
func (s *samePortReconciler) unpublishLocked(service string, ip net.IP, now published) error {
	if !s.keptOut {
		klog.Warningf("This server is not in the endpoints of service %q: other servers publish port %d", service, now.ports[0].Port)
		s.keptOut = true
	}
	joined := s.joined
	s.joined = false
	if !joined || now.shared {
		return nil
	}
	return s.EndpointReconciler.RemoveEndpoints(service, ip, now.ports)
}

// RemoveEndpoints implements reconcilers.EndpointReconciler. Before this server has published itself,
// it removes the endpoint of an earlier process of this server.
func (s *samePortReconciler) RemoveEndpoints(service string, ip net.IP, ports []corev1.EndpointPort) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	now, err := s.lookLocked(service, ip)
	if err != nil {
		return err
	}
	joined, elsewhere := s.joined, now.portsDiffer(ports)
	s.joined = false
	switch {
	case !joined && (elsewhere || len(now.ports) == 0):
		return nil // this server has published nothing
	case elsewhere && now.shared:
		return nil // the endpoint is of the other server at this address
	case elsewhere:
		ports = now.ports
	}
	return s.EndpointReconciler.RemoveEndpoints(service, ip, ports)
}
