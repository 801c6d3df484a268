package admission

import (
	"fmt"
	"net"
	"net/http"
	"net/url"

	"go.opentelemetry.io/otel/trace"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apiserver/pkg/server/egressselector"
	"k8s.io/apiserver/pkg/util/webhook"
	"k8s.io/client-go/rest"
	"k8s.io/component-base/tracing"
	"k8s.io/kube-aggregator/pkg/apiserver"

	"github.com/larder-io/larder/internal/registry"
)

// Webhooks finds and authenticates webhooks: services by a ServiceResolver, with the credentials
// that the configuration of a plugin names.
type Webhooks struct {
	webhook.ServiceResolver

	// Auth returns the credentials.
	Auth webhook.AuthenticationInfoResolverWrapper
}

// NewWebhooks returns the Webhooks of a server. services finds its services, and config connects to it. Other
// connections use egress; nil connects directly. If spans is not nil, it records calls as spans within the spans of
// the requests that cause them.
func NewWebhooks(services webhook.ServiceResolver, config *rest.Config, egress *egressselector.EgressSelector, spans trace.TracerProvider) (*Webhooks, error) {
	if spans == nil {
		spans = tracing.NewNoopTracerProvider() // still passes on the trace context of requests
	}
	self, err := url.Parse(config.Host)
	if err != nil {
		return nil, fmt.Errorf("admission: %w", err)
	}
	self = &url.URL{Scheme: self.Scheme, Host: net.JoinHostPort(self.Hostname(), "443")}
	// Upstream adds the CA of a webhook to a copy of local. A rest.Config must not have a CA and a Transport.
	local, transport := rest.CopyConfig(config), config.Transport
	if transport != nil {
		local.Transport = nil
		local.Wrap(func(http.RoundTripper) http.RoundTripper { return transport })
	}
	auth := webhook.NewDefaultAuthenticationInfoResolverWrapper(nil, egress, local, spans)
	return &Webhooks{
		ServiceResolver: apiserver.NewLoopbackServiceResolver(services, self),
		Auth: func(inner webhook.AuthenticationInfoResolver) webhook.AuthenticationInfoResolver {
			return checkedResolver{auth(inner)}
		},
	}, nil
}

// checkedResolver resolves to configurations whose transport is a [checkedTransport].
type checkedResolver struct {
	webhook.AuthenticationInfoResolver
}

// ClientConfigFor implements webhook.AuthenticationInfoResolver.
func (c checkedResolver) ClientConfigFor(hostPort string) (*rest.Config, error) {
	return c.check(c.AuthenticationInfoResolver.ClientConfigFor(hostPort))
}

// ClientConfigForService implements webhook.AuthenticationInfoResolver.
func (c checkedResolver) ClientConfigForService(name, namespace string, port int) (*rest.Config, error) {
	return c.check(c.AuthenticationInfoResolver.ClientConfigForService(name, namespace, port))
}

func (checkedResolver) check(config *rest.Config, err error) (*rest.Config, error) {
	if err != nil {
		return nil, err
	}
	config = rest.CopyConfig(config)
	config.Wrap(func(next http.RoundTripper) http.RoundTripper { return checkedTransport{next} })
	return config, nil
}

// checkedTransport fails where net/http would follow a redirect, and if the protocol is switched.
// kube-apiserver follows redirects, although the server can reach addresses that the webhook cannot
// (CVE-2020-8561). The body of a 101 is the connection, which no context closes: reading it would never end.
type checkedTransport struct{ next http.RoundTripper }

// RoundTrip implements http.RoundTripper.
func (t checkedTransport) RoundTrip(req *http.Request) (*http.Response, error) {
	resp, err := t.next.RoundTrip(req)
	if err != nil {
		return nil, err
	}
	does := ""
	switch resp.StatusCode {
	case http.StatusSwitchingProtocols:
		does = "switches protocols"
	case http.StatusMovedPermanently, http.StatusFound, http.StatusSeeOther, http.StatusTemporaryRedirect, http.StatusPermanentRedirect:
		if resp.Header.Get("Location") != "" {
			does = "redirects"
		}
	}
	if does == "" {
		return resp, nil
	}
	resp.Body.Close()
	return nil, fmt.Errorf("admission: the webhook %s (%s)", does, resp.Status)
}

// WrappedRoundTripper returns the transport below, which client-go looks for.
func (t checkedTransport) WrappedRoundTripper() http.RoundTripper { return t.next }

// NewServiceResolver returns the resolver that finds webhooks and aggregated servers by their
// services, as kubernetes cmd/kube-apiserver/app/server.go does: by cluster IP, or by endpoint if
// endpoints is true. It reads the caches of r.
func NewServiceResolver(r *registry.Registry, endpoints bool) webhook.ServiceResolver {
	services := coreV1{registry: r}.Services().Lister()
	if !endpoints {
		return apiserver.NewClusterIPServiceResolver(services)
	}
	var slices endpointSlices
	if gvr := discoveryv1.SchemeGroupVersion.WithResource("endpointslices"); r.Endpoint(gvr, "") != nil {
		slices.store = newStore[discoveryv1.EndpointSlice](r, gvr)
	}
	return apiserver.NewEndpointServiceResolver(services, slices)
}

// endpointSlices is a proxy.EndpointSliceGetter. Its store is nil if EndpointSlices are not
// served. Then no service has endpoints.
type endpointSlices struct{ store *store }

// GetEndpointSlices implements proxy.EndpointSliceGetter.
func (s endpointSlices) GetEndpointSlices(namespace, service string) ([]*discoveryv1.EndpointSlice, error) {
	if s.store == nil {
		return nil, nil
	}
	items, err := s.store.list(namespace, labels.SelectorFromSet(labels.Set{discoveryv1.LabelServiceName: service}))
	if err != nil {
		return nil, err
	}
	slices := make([]*discoveryv1.EndpointSlice, 0, len(items))
	for _, item := range items {
		slice, ok := item.(*discoveryv1.EndpointSlice)
		if !ok {
			return nil, fmt.Errorf("admission: an EndpointSlice is a %T", item)
		}
		slices = append(slices, slice)
	}
	return slices, nil
}
