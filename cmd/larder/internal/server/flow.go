package server

import (
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/storage"
	flowrequest "k8s.io/apiserver/pkg/util/flowcontrol/request"

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

// stored returns a function that returns the number and size of a resource's objects. It knows only custom
// resources that a request has named. Upstream has no figures for others, either.
func stored(all *registry.Registry) func(string) (storage.Stats, error) {
	known := make(map[string]*registry.Resource)
	for _, r := range all.Resources() {
		known[r.GroupResource.String()] = r
	}
	return func(name string) (storage.Stats, error) {
		r := known[name]
		if r == nil {
			r = all.CustomResource(schema.ParseGroupResource(name))
		}
		if r == nil || r.Cache == nil || !r.Cache.Ready() {
			return storage.Stats{}, flowrequest.ObjectCountNotFoundErr
		}
		now := r.Cache.Snapshot()
		objects := int64(now.Len())
		return storage.Stats{ObjectCount: objects, EstimatedAverageObjectSizeBytes: int64(now.Stored()) / max(objects, 1)}, nil
	}
}
