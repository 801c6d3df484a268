package server

import (
	"context"
	"slices"

	"k8s.io/kubernetes/pkg/apis/core"

	"github.com/larder-io/larder/internal/registry"
)

// followNodes feeds the Node authorizer's graph of which node needs which objects.
func (s *Server) followNodes(ctx context.Context) error {
	resources := s.parts.registry.Resources()
	pods := slices.IndexFunc(resources, func(r *registry.Resource) bool { return r.GroupResource == core.Resource("pods") })
	return s.parts.auth.Follow(ctx, s.parts.client, resources[pods])
}
