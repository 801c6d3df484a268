package registry

import (
	"slices"
	"sync"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/larder-io/larder/internal/registry/storage"
)

// customs is the set of resources of CRDs that have a cache now. Two states of one CRD may have caches
// for a while.
type customs struct {
	mu   sync.Mutex
	list []*storage.Resource                          // in the order in which they began
	by   map[schema.GroupResource][]*storage.Resource // the same, by name
}

// begin adds r until end is called.
func (c *customs) begin(r *storage.Resource) (end func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.by == nil {
		c.by = make(map[schema.GroupResource][]*storage.Resource)
	}
	c.list = append(c.list, r)
	c.by[r.GroupResource] = append(c.by[r.GroupResource], r)
	return func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		own := func(other *storage.Resource) bool { return other == r }
		c.list = slices.DeleteFunc(c.list, own)
		if c.by[r.GroupResource] = slices.DeleteFunc(c.by[r.GroupResource], own); len(c.by[r.GroupResource]) == 0 {
			delete(c.by, r.GroupResource)
		}
	}
}

// all lists the resources.
func (c *customs) all() []*storage.Resource {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.list)
}

// holds reports whether r is kept now.
func (c *customs) holds(r *storage.Resource) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Contains(c.by[r.GroupResource], r)
}

// newest returns the newest state of a resource, nil if there is none.
func (c *customs) newest(gr schema.GroupResource) *storage.Resource {
	c.mu.Lock()
	defer c.mu.Unlock()
	if states := c.by[gr]; len(states) > 0 {
		return states[len(states)-1]
	}
	return nil
}

// allNewest lists the newest states of all resources.
func (c *customs) allNewest() []*storage.Resource {
	c.mu.Lock()
	defer c.mu.Unlock()
	list := make([]*storage.Resource, 0, len(c.by))
	for _, states := range c.by {
		list = append(list, states[len(states)-1])
	}
	return list
}
