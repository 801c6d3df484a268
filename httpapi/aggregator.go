package httpapi

import (
	"net/http"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/larder-io/larder/httpapi/openapi"
)

// Aggregator answers for other servers, which serve parts of what clients see as one API.
type Aggregator interface {
	// Remote returns the handler that hands requests at path on to another server; nil if
	// this server serves them. It is called for every request.
	Remote(path string) http.Handler

	// ServeGroups lists the groups of all servers, in the order of /apis. Group returns
	// what describes the one at path, nil if there is none.
	ServeGroups(w http.ResponseWriter, req *http.Request)
	Group(path string) http.Handler

	// The OpenAPI documents describe what the other servers serve.
	openapi.Aggregator

	// Paths lists the paths of the groups and their versions.
	Paths() []string

	prometheus.Gatherer
}
