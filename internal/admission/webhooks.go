package admission

import (
	"fmt"
	"net"
	"net/http"
	"net/url"

	"k8s.io/apiserver/pkg/util/webhook"
	"k8s.io/client-go/rest"
	"k8s.io/component-base/tracing"
	"k8s.io/kube-aggregator/pkg/apiserver"

	"github.com/larder-io/larder/internal/registry"
)

// Webhooks is how webhooks are reached: services by their cluster IP, with the
// credentials that the configuration of a plugin names.
type Webhooks struct {
	webhook.ServiceResolver

	// Auth says with which credentials.
	Auth webhook.AuthenticationInfoResolverWrapper
}

// NewWebhooks returns the Webhooks of a server: its services are those of r, and config
// reaches it.
func NewWebhooks(r *registry.Registry, config *rest.Config) (*Webhooks, error) {
	self, err := url.Parse(config.Host)
	if err != nil {
		return nil, fmt.Errorf("admission: %w", err)
	}
	self = &url.URL{Scheme: self.Scheme, Host: net.JoinHostPort(self.Hostname(), "443")}
	// A transport that is given refuses to be told certificates, and webhooks name them.
	local, transport := rest.CopyConfig(config), config.Transport
	if transport != nil {
		local.Transport = nil
		local.Wrap(func(http.RoundTripper) http.RoundTripper { return transport })
	}
	services := apiserver.NewClusterIPServiceResolver(coreV1{registry: r}.Services().Lister())
	return &Webhooks{
		ServiceResolver: apiserver.NewLoopbackServiceResolver(services, self),
		Auth:            webhook.NewDefaultAuthenticationInfoResolverWrapper(nil, nil, local, tracing.NewNoopTracerProvider()),
	}, nil
}
