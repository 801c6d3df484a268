package admission

import (
	"fmt"

	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apiserver/pkg/util/webhook"
	"k8s.io/kube-aggregator/pkg/apiserver"

	"github.com/larder-io/larder/internal/registry"
)

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
