package httpapi

import (
	"net/http"

	"github.com/larder-io/larder/httpapi/discovery"
	"github.com/larder-io/larder/httpapi/negotiate"
)

// Peers are the other servers of the cluster, which may serve what this one does not, while
// it is being upgraded for example.
type Peers interface {
	// WrapHandler returns a handler that hands a request for a resource on to a peer that
	// serves it, and to h if there is none.
	WrapHandler(h http.Handler) http.Handler

	// What peers serve is among what is discovered.
	discovery.Peers
}

// elsewhere answers a request for what no endpoint is installed for, if need be by a peer.
func (r *router) elsewhere(x *passage) {
	if r.peers == nil || r.custom(x) {
		r.unknown(x)
		return
	}
	x.Forward(r.peers.WrapHandler(r.nowhere(x)))
}

// custom reports whether the request is for a custom resource.
func (r *router) custom(x *passage) bool {
	if r.extensions == nil {
		return false
	}
	c, done := r.extensions.Custom(&x.Request)
	if c == nil {
		return false
	}
	done()
	return true
}

// nowhere does what unknown does to a request for a resource.
func (r *router) nowhere(x *passage) http.Handler {
	t := r.table.Load()
	below, ok := t.NonResource(x.Path)
	switch {
	case t.ServesVersion(x.Group, x.Version):
		return http.HandlerFunc(negotiate.NothingBelow)
	case ok:
		return below
	case r.extensions != nil:
		return r.extensions
	default:
		return http.NotFoundHandler()
	}
}
