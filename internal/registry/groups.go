package registry

import (
	"cmp"
	"fmt"
	"slices"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/registry/rest"
	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/apiserver/pkg/storageversion"
	printerstorage "k8s.io/kubernetes/pkg/printers/storage"

	"github.com/larder-io/larder/internal/registry/storage"
)

// Group is one API group with its served versions.
type Group struct {
	// Name is "" for the core group, which is served under /api.
	Name string

	// Versions are the served versions, by priority.
	Versions []GroupVersion

	// Info is the result of upstream's provider. It must not be changed.
	Info *genericapiserver.APIGroupInfo
}

// GroupVersion is one served version with its endpoints, ordered by name.
type GroupVersion struct {
	schema.GroupVersion
	Endpoints []*Endpoint
}

// groups collects the groups of upstream's providers.
type groups struct {
	list        []*Group
	endpoints   map[endpointKey]*Endpoint
	equivalents runtime.EquivalentResourceRegistry
	resource    func(schema.GroupResource) *storage.Resource // returns nil for one that is not stored
	tables      printerstorage.TableConvertor                // of all built-in types
}

// add adds a Group with its endpoints.
func (g *groups) add(info *genericapiserver.APIGroupInfo) error {
	group := &Group{Name: info.PrioritizedVersions[0].Group, Info: info}
	for _, gv := range info.PrioritizedVersions {
		if len(info.VersionedResourcesStorageMap[gv.Version]) == 0 {
			continue
		}
		endpoints, err := buildEndpoints(info, gv)
		if err != nil {
			return err
		}
		for _, e := range endpoints {
			g.endpoints[endpointKey{e.GVR, e.Subresource}] = e
			g.equivalents.RegisterKindFor(e.GVR, e.Subresource, e.GVK)
			shareTables(e.Storage, g.tables)
			if err := g.attachView(e); err != nil {
				return fmt.Errorf("%s: %w", e.GVR, err)
			}
		}
		group.Versions = append(group.Versions, GroupVersion{GroupVersion: gv, Endpoints: endpoints})
	}
	g.list = append(g.list, group)
	return nil
}

// attachView gives a stored endpoint its View.
func (g *groups) attachView(e *Endpoint) error {
	res := g.resource(e.GVR.GroupResource())
	if res == nil || e.Subresource != "" || !is[rest.Watcher](e.Storage) {
		return nil
	}
	var err error
	e.View, err = newView(res, e.GVK, e.Storage)
	return err
}

// names lists the resources that are served, in order.
func (g *groups) names() []schema.GroupResource {
	var served []schema.GroupResource
	for key := range g.endpoints {
		if key.subresource == "" {
			served = append(served, key.GroupResource())
		}
	}
	slices.SortFunc(served, func(a, b schema.GroupResource) int { return cmp.Compare(a.String(), b.String()) })
	return slices.Compact(served)
}

// StorageVersions lists the storage versions for upstream's manager: one entry for each endpoint, as
// apiserver pkg/endpoints/installer.go makes them.
func (r *Registry) StorageVersions() []*storageversion.ResourceInfo {
	var infos []*storageversion.ResourceInfo
	for _, g := range r.groups.list {
		served := g.served()
		for _, v := range g.Versions {
			for _, e := range v.Endpoints {
				if e.StorageVersion.Empty() {
					continue
				}
				infos = append(infos, &storageversion.ResourceInfo{
					GroupResource:             schema.GroupResource{Group: e.GVR.Group, Resource: e.Name()},
					EncodingVersion:           e.StorageVersion.String(),
					EquivalentResourceMapper:  r.groups.equivalents,
					DirectlyDecodableVersions: g.Info.Scheme.VersionsForGroupKind(e.GVK.GroupKind()),
					ServedVersions:            served[e.Name()],
				})
			}
		}
	}
	return infos
}

// served lists the versions in which each endpoint of the group is served, by name.
func (g *Group) served() map[string][]string {
	served := make(map[string][]string)
	for _, v := range g.Versions {
		for _, e := range v.Endpoints {
			served[e.Name()] = append(served[e.Name()], v.String())
		}
	}
	return served
}
