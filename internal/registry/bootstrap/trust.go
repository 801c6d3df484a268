package bootstrap

import (
	"context"

	"k8s.io/kubernetes/pkg/controlplane/controller/clusterauthenticationtrust"
	"k8s.io/kubernetes/pkg/controlplane/controller/legacytokentracking"
)

// keepTrust publishes for other API servers, in a ConfigMap, whose certificates are accepted
// here and how a front proxy names users. Upstream's controller does it, whose goroutines end
// with ctx. The server is ready before the ConfigMap is written.
func (c *Config) keepTrust(namespaces <-chan struct{}) func(context.Context, func()) error {
	return func(ctx context.Context, ready func()) error {
		ready()
		if !await(ctx, namespaces) {
			return ctx.Err()
		}
		controller := clusterauthenticationtrust.NewClusterAuthenticationTrustController(c.Trust, c.Client)
		if ca := c.Trust.ClientCA; ca != nil {
			ca.AddListener(controller)
		}
		if ca := c.Trust.RequestHeaderCA; ca != nil {
			ca.AddListener(controller)
		}
		controller.Run(ctx, 1)
		return nil
	}
}

// keepTokenTracking records since when the use of service accounts' legacy tokens has been
// tracked. Upstream's controller does it, as in keepTrust.
func (c *Config) keepTokenTracking(namespaces <-chan struct{}) func(context.Context, func()) error {
	return func(ctx context.Context, ready func()) error {
		ready()
		if !await(ctx, namespaces) {
			return ctx.Err()
		}
		legacytokentracking.NewController(c.Client).RunWithContext(ctx)
		return nil
	}
}
