package registry

import (
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/storageversion"
)

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
