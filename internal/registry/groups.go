package registry

import (
	"fmt"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/registry/rest"
	genericapiserver "k8s.io/apiserver/pkg/server"

	"github.com/larder-io/larder/internal/registry/builtin"
)

// Group is one API group with its served versions.
type Group struct {
	// Name is "" for the core group, which is served under /api.
	Name string

	// Preferred is the version that clients should choose: the first by priority.
	Preferred schema.GroupVersion

	// Versions are those that are served, by priority.
	Versions []GroupVersion

	// Info is what upstream's provider made. It is not to be changed.
	Info *genericapiserver.APIGroupInfo
}

// GroupVersion is one served version with its endpoints, ordered by name.
type GroupVersion struct {
	schema.GroupVersion
	Endpoints []*Endpoint
}

// buildGroups makes a Group of each that upstream's providers made.
func (r *Registry) buildGroups() error {
	groups, err := r.builtin.Groups(r.options)
	if err != nil {
		return err
	}
	for _, g := range groups {
		group, err := r.buildGroup(g)
		if err != nil {
			return fmt.Errorf("group %q: %w", g.Name, err)
		}
		r.groups = append(r.groups, group)
	}
	return nil
}

func (r *Registry) buildGroup(g builtin.Group) (*Group, error) {
	group := &Group{Name: g.Name, Preferred: g.Info.PrioritizedVersions[0], Info: g.Info}
	for _, gv := range g.Info.PrioritizedVersions {
		if len(g.Info.VersionedResourcesStorageMap[gv.Version]) == 0 {
			continue
		}
		endpoints, err := r.buildVersion(g.Info, gv)
		if err != nil {
			return nil, err
		}
		group.Versions = append(group.Versions, GroupVersion{GroupVersion: gv, Endpoints: endpoints})
	}
	return group, nil
}

func (r *Registry) buildVersion(info *genericapiserver.APIGroupInfo, gv schema.GroupVersion) ([]*Endpoint, error) {
	endpoints, err := buildEndpoints(info, gv)
	if err != nil {
		return nil, err
	}
	for _, e := range endpoints {
		r.endpoints[endpointKey{e.GVR, e.Subresource}] = e
		if err := r.attachView(e); err != nil {
			return nil, fmt.Errorf("%s: %w", e.GVR, err)
		}
	}
	return endpoints, nil
}

// attachView gives a stored endpoint its View.
func (r *Registry) attachView(e *Endpoint) error {
	res := r.options.resource(e.GVR.GroupResource())
	if res == nil || e.Subresource != "" || !is[rest.Watcher](e.Storage) {
		return nil
	}
	var err error
	e.View, err = newView(res, e.GVK, e.Storage)
	return err
}
