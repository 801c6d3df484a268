package admission

import (
	"net"
	"net/http"
	"net/url"

	"k8s.io/apiserver/pkg/util/proxy"
	"k8s.io/apiserver/pkg/util/webhook"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/rest"
	"k8s.io/component-base/tracing"

	"github.com/larder-io/larder/internal/registry"
)

// Webhooks is how webhooks are reached: services by their cluster IP, with the
// credentials that the configuration of a plugin names. It implements
// webhook.ServiceResolver.
type Webhooks struct {
	// Auth says with which credentials.
	Auth webhook.AuthenticationInfoResolverWrapper

	services corelisters.ServiceLister
	self     *url.URL
}

// NewWebhooks returns the Webhooks of a server: its services are those of r, and config
// reaches it.
func NewWebhooks(r *registry.Registry, config *rest.Config) (*Webhooks, error) {
	self, err := url.Parse(config.Host)
	if err != nil {
		return nil, err
	}
	// A transport that is given refuses to be told certificates, and webhooks name them.
	local, transport := rest.CopyConfig(config), config.Transport
	if transport != nil {
		local.Transport = nil
		local.Wrap(func(http.RoundTripper) http.RoundTripper { return transport })
	}
	return &Webhooks{
		Auth:     webhook.NewDefaultAuthenticationInfoResolverWrapper(nil, nil, local, tracing.NewNoopTracerProvider()),
		services: coreV1{registry: r}.Services().Lister(),
		self:     self,
	}, nil
}

// ResolveEndpoint implements webhook.ServiceResolver: kube-aggregator
// pkg/apiserver/resolvers.go.
func (w *Webhooks) ResolveEndpoint(namespace, name string, port int32) (*url.URL, error) {
	if namespace == "default" && name == "kubernetes" && port == 443 {
		return &url.URL{Scheme: w.self.Scheme, Host: net.JoinHostPort(w.self.Hostname(), "443")}, nil
	}
	return proxy.ResolveCluster(w.services, namespace, name, port)
}
