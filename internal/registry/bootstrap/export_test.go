package bootstrap

import "k8s.io/kubernetes/pkg/controlplane/reconcilers"

// Ready is closed once the hook's objects exist.
func (h *Hook) Ready() <-chan struct{} { return h.ready }

// Reconciler returns the reconciler of the endpoints of the kubernetes service.
func (c Config) Reconciler() (reconcilers.EndpointReconciler, error) {
	c.setDefaults()
	return newReconciler(&c)
}
