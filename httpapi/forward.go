package httpapi

import (
	"context"
	"net/http"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/larder-io/larder/httpapi/openapi"
	"github.com/larder-io/larder/httpapi/streams"
)

// Aggregator answers for other servers, which serve parts of what clients see as one.
type Aggregator interface {
	// Remote returns what hands requests at path on to another server; nil if this one
	// serves it. It is asked for every request.
	Remote(path string) http.Handler

	// ServeGroups lists the groups of all servers, in the order of /apis. Group returns
	// what describes the one at path, nil if there is none.
	ServeGroups(w http.ResponseWriter, req *http.Request)
	Group(path string) http.Handler

	// What the other servers serve is described in the OpenAPI documents.
	openapi.Aggregator

	// Paths lists the paths of the groups and their versions.
	Paths() []string

	prometheus.Gatherer
}

// remote returns what hands the request on to another server; nil if this one serves it.
func (x *chain) remote() http.Handler {
	if x.s.config.Aggregator == nil {
		return nil
	}
	return x.s.config.Aggregator.Remote(x.Path)
}

// forward serves the request by h, which hands it on to another server: bodies pass as
// they come. A body that is short, or none, and an answer to it leave the connection to
// be used again; others have it to themselves.
func (x *chain) forward(h http.Handler) {
	req := x.http()
	req.Header.Set("Audit-Id", x.AuditID)
	h = abortable(h)
	upgrades := streams.IsUpgrade(req.Header.Get("Connection"), req.Header.Get("Upgrade"))
	switch length := req.ContentLength; {
	case x.LongRunning():
		x.serveStream(h)
	case upgrades, length < 0, length > maxHandedWhole, x.Method == http.MethodHead:
		x.serveStream(x.bound(h))
	default:
		x.serveHandler(h, true)
	}
}

// abortable tells h that it is served by a server: net/http's proxy then panics where an
// answer ends too early, and the client sees that it does.
func abortable(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		h.ServeHTTP(w, req.WithContext(context.WithValue(req.Context(), http.ServerContextKey, h)))
	})
}

// describeGroup answers if the request is for the description of a group that is not
// built in, and reports whether it did.
func (x *chain) describeGroup() bool {
	if x.IsResourceRequest || x.s.config.Aggregator == nil {
		return false
	}
	h := x.s.config.Aggregator.Group(x.Path)
	if h != nil {
		x.serveHTTP(h)
	}
	return h != nil
}

// maxHandedWhole is up to which length a body is read before it is handed on.
const maxHandedWhole = 64 << 10

// bound gives h, which has a connection to itself, the request's deadline.
func (x *chain) bound(h http.Handler) http.Handler {
	deadline := x.Deadline
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		ctx, cancel := context.WithDeadline(req.Context(), deadline)
		defer cancel()
		h.ServeHTTP(w, req.WithContext(ctx))
	})
}
