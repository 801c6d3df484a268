package bootstrap

import (
	"context"

	"k8s.io/kubernetes/pkg/controlplane/controller/clusterauthenticationtrust"
	"k8s.io/kubernetes/pkg/controlplane/controller/legacytokentracking"
)

// publishTrustedCAs publishes the CAs of accepted certificates and the headers of front proxies in a ConfigMap,
// for other API servers. It runs upstream's controller, whose goroutines end with ctx. The server is
// ready before the ConfigMap is written.
func (c *Config) publishTrustedCAs(namespaces <-chan struct{}) func(context.Context, func()) error {
	return background(func(ctx context.Context) {
		if !await(ctx, namespaces) {
			return
		}
		controller := clusterauthenticationtrust.NewClusterAuthenticationTrustController(c.Trust, c.Client)
		if ca := c.Trust.ClientCA; ca != nil {
			ca.AddListener(controller)
		}
		if ca := c.Trust.RequestHeaderCA; ca != nil {
			ca.AddListener(controller)
		}
		controller.Run(ctx, 1)
	})
}

// keepTokenTracking publishes the date since when the use of service accounts' legacy tokens has been
// tracked. It runs upstream's controller, as publishTrustedCAs does.
func (c *Config) keepTokenTracking(namespaces <-chan struct{}) func(context.Context, func()) error {
	return background(func(ctx context.Context) {
		if await(ctx, namespaces) {
			legacytokentracking.NewController(c.Client).RunWithContext(ctx)
		}
	})
}
