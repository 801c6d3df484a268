package reads

import (
	"time"

	"k8s.io/apiserver/pkg/endpoints/handlers"

	"github.com/larder-io/larder/httpapi/apimetrics"
	"github.com/larder-io/larder/internal/registry"
)

// Resource is one resource or subresource as one API version lets it be read. It is
// immutable.
type Resource struct {
	Endpoint *registry.Endpoint
	Scope    *handlers.RequestScope

	// View serves GET, LIST and WATCH from encoded bytes; if it is nil, upstream's handlers
	// serve them.
	View *registry.View

	// bare says that upstream puts no router in front of the resource's handlers.
	bare bool

	// warnings are sent with every response, as for a deprecated version.
	warnings []string

	// Monitors report what is read, by verb and scope; nil if there is no view.
	Monitors apimetrics.Monitors
}

// NewResource returns the resource that e serves, for reads. bare says that upstream puts no
// router in front of its handlers.
func NewResource(e *registry.Endpoint, scope *handlers.RequestScope, bare bool, warnings []string) Resource {
	r := Resource{Endpoint: e, Scope: scope, View: e.View, bare: bare, warnings: warnings}
	if r.View != nil {
		r.Monitors = apimetrics.NewMonitors(e)
	}
	return r
}

// observe reports a request that was answered from encoded bytes.
func (r *Resource) observe(verb, scope string, code, size int, elapsed time.Duration) {
	r.Monitors.Of(verb, scope).Observe(code, size, elapsed)
}
