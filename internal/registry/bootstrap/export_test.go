package bootstrap

import (
	"context"

	"k8s.io/kubernetes/pkg/controlplane/reconcilers"
)

// Ready is closed once the hook's objects exist.
func (h *Hook) Ready() <-chan struct{} { return h.ready }

// KeepIdentity returns a Bootstrap that has nothing but the identity Lease, and renews it until ctx ends.
func (c *Config) KeepIdentity(ctx context.Context) *Bootstrap {
	b := &Bootstrap{identity: newIdentity(c)}
	namespaces := make(chan struct{})
	close(namespaces)
	go b.identity.keep(c, namespaces)(ctx, func() {})
	return b
}

// Reconciler returns the reconciler of the endpoints of the kubernetes service.
func (c Config) Reconciler() (reconcilers.EndpointReconciler, error) {
	c.setDefaults()
	return newReconciler(&c)
}
