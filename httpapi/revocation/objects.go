package revocation

import (
	"github.com/larder-io/larder/cache"
	"github.com/larder-io/larder/internal/auth"
	"github.com/larder-io/larder/internal/registry"
)

// objects are the caches of the core group's resources, by name: tokens are bound to
// objects of theirs.
type objects map[string]*cache.Cache

// newObjects returns the caches that r has; it may be nil.
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

// tide is where a cache has come to. While it stays, no object changes.
type tide struct {
	ready    bool
	epoch    uint64
	position cache.Position
}

// tide returns where the cache of a resource has come to; known says that there is one.
func (o objects) tide(resource string) (now tide, known bool) {
	of := o[resource]
	if of == nil {
		return tide{}, false
	}
	if now.ready = of.Ready(); now.ready {
		snapshot := of.Snapshot()
		now.epoch, now.position = snapshot.Epoch(), snapshot.Position()
	}
	return now, true
}

// revision is that of an object, 0 if there is none; known says that it can be told now.
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
