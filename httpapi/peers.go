package httpapi

import (
	"net/http"

	"github.com/larder-io/larder/httpapi/discovery"
)

// Peers are the other servers of the cluster, which may serve what this one does not, while
// it is being upgraded for example.
type Peers interface {
	// WrapHandler returns a handler that hands a request for a resource on to a peer that
	// serves it, and to h if there is none.
	WrapHandler(h http.Handler) http.Handler

	// Discovery lists what the peers serve, too.
	discovery.Peers
}
