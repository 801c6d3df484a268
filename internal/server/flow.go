package server

import (
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/larder-io/larder/internal/auth"
	"github.com/larder-io/larder/internal/registry"
)

// newFlow returns what decides which requests are served at once; nil if only their
// number does.
func (s *Server) newFlow() *auth.Flow {
	if !s.config.InFlight.Fairness {
		return nil
	}
	p := &s.parts
	return auth.NewFlow(auth.FlowConfig{
		Client: p.client, Informers: p.informers, Stored: stored(p.registry),
		Limit: s.config.InFlight.Most + s.config.InFlight.MostMutating,
	})
}

// stored tells how much there is of each resource. Of custom resources it knows those
// that were asked for: upstream, too, has no figures before its first handler is made.
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
