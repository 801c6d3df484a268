package reads

import (
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

	// Life says whether the version is deprecated.
	Life apimetrics.Lifecycle

	// Monitors count what is read.
	Monitors *apimetrics.Monitors
}

// NewResource returns the resource that e serves, for reads, which monitors count.
func NewResource(e *registry.Endpoint, scope *handlers.RequestScope, life apimetrics.Lifecycle, warnings []string, monitors *apimetrics.Monitors) Resource {
	return Resource{Endpoint: e, Scope: scope, View: e.View, Life: life, warnings: warnings, Monitors: monitors}
}
