package revocation

import (
	"github.com/larder-io/larder/cache"
	"github.com/larder-io/larder/internal/auth"
	"github.com/larder-io/larder/internal/registry"
)

// objects are the caches of the core group's resources, by the resource's name. They have the
// objects that tokens are bound to.
type objects map[string]*cache.Cache

// newObjects returns the caches that r has; r may be nil.
func newObjects(r *registry.Registry) objects {
	o := make(objects)
	if r == nil {
		return o
	}
	for _, resource := range r.Resources() {
		if resource.GroupResource.Group == "" && resource.Cache != nil {
			o[resource.GroupResource.Resource] = resource.Cache
		}
	}
	return o
}

// revision returns an object's revision, 0 if there is no such object; known is false while
// the cache is not ready.
func (o objects) revision(name auth.ObjectName) (revision int64, known bool) {
	of := o[name.Resource]
	if of == nil || !of.Ready() {
		return 0, false
	}
	key := name.Name
	if name.Namespace != "" {
		key = name.Namespace + "/" + name.Name
	}
	if object := of.Snapshot().Get(key); object != nil {
		return object.Revision(), true
	}
	return 0, true
}
