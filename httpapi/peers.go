package httpapi

import (
	"net/http"

	"github.com/larder-io/larder/httpapi/discovery"
)

// Peers are the other servers of the cluster. During an upgrade they may serve resources that this
// server does not.
type Peers interface {
	// WrapHandler returns a handler that hands a request for a resource on to a peer that
	// serves it, and to h if there is none.
	WrapHandler(h http.Handler) http.Handler

	// Discovery lists what the peers serve, too.
	discovery.Peers
}
