package server

import (
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/larder-io/larder/internal/auth"
	"github.com/larder-io/larder/internal/registry"
)

// newFlow returns API Priority and Fairness; nil if it is disabled.
func (s *Server) newFlow() *auth.Flow {
	if !s.config.Features.EnablePriorityAndFairness {
		return nil
	}
	p := &s.parts
	return auth.NewFlow(auth.FlowConfig{
		Client: p.client, Informers: p.informers, Stored: stored(p.registry),
		Limit: s.config.GenericServerRunOptions.MaxRequestsInFlight + s.config.GenericServerRunOptions.MaxMutatingRequestsInFlight,
	})
}

// stored returns a function that returns how many objects a resource has, and their size. Of
// custom resources it knows those that a request has named: upstream, too, has no figures for
// the others.
func stored(all *registry.Registry) func(schema.GroupResource) (objects, bytes int64, ok bool) {
	known := make(map[schema.GroupResource]*registry.Resource)
	for _, r := range all.Resources() {
		known[r.GroupResource] = r
	}
	return func(name schema.GroupResource) (objects, bytes int64, ok bool) {
		r := known[name]
		if r == nil {
			r = all.CustomResource(name)
		}
		if r == nil || r.Cache == nil || !r.Cache.Ready() {
			return 0, 0, false
		}
		now := r.Cache.Snapshot()
		return int64(now.Len()), int64(now.Stored()), true
	}
}
