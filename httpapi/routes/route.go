package routes

import (
	"maps"
	"net/http"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/registry/rest"

	"github.com/larder-io/larder/httpapi/reads"
	"github.com/larder-io/larder/httpapi/request"
	"github.com/larder-io/larder/httpapi/writes"
)

// Endpoint serves a resource or subresource in one API version. It does not change after its table is
// published.
type Endpoint struct {
	reads.Resource // serves reads

	// Writes serves writes; nil if there are none.
	Writes *writes.Endpoint

	// http has the net/http handlers of reads by Request.Verb: get, list, watch. Other verbs are not
	// supported. If the resource has a view, they serve only reads that it cannot serve.
	http map[string]http.Handler

	// connect has the handlers of a subresource that takes over the request (exec, attach, port-forward,
	// proxy), by HTTP method. Such an endpoint has no http entries.
	connect map[string]http.Handler

	// subpath means that the handler accepts path segments after the subresource, as in
	// .../pods/x/proxy/metrics.
	subpath bool
}

// resourceKey names an endpoint.
type resourceKey struct {
	group, version, resource, subresource string
}

// Table is the routing table. It is immutable once published: a change replaces the whole table.
type Table struct {
	resources map[resourceKey]*Endpoint
	versions  map[schema.GroupVersion]bool // that have resources

	// exact and prefixes have the paths of other requests (discovery, openapi, health, metrics, version,
	// pprof). An exact path wins, then the longest prefix. A prefix ends in "/".
	exact    map[string]http.Handler
	prefixes []prefixRoute
}

type prefixRoute struct {
	prefix  string
	handler http.Handler
}

// New returns an empty table.
func New() *Table {
	return &Table{
		resources: make(map[resourceKey]*Endpoint),
		versions:  make(map[schema.GroupVersion]bool),
		exact:     make(map[string]http.Handler),
	}
}

// Add routes the requests for a resource or subresource to i.
func (t *Table) Add(gvr schema.GroupVersionResource, subresource string, i *Endpoint) {
	t.resources[resourceKey{gvr.Group, gvr.Version, gvr.Resource, subresource}] = i
	t.versions[gvr.GroupVersion()] = true
}

// Handle routes path, and nothing below it, to h.
func (t *Table) Handle(path string, h http.Handler) { t.exact[path] = h }

// HandlePrefix routes every path that begins with prefix to h, unless a more specific entry exists.
// prefix ends in "/".
func (t *Table) HandlePrefix(prefix string, h http.Handler) {
	at, _ := slices.BinarySearchFunc(t.prefixes, prefix, func(p prefixRoute, target string) int {
		return len(target) - len(p.prefix) // longest first
	})
	t.prefixes = slices.Insert(t.prefixes, at, prefixRoute{prefix, h})
}

// NonResource returns the handler of a path that is not of a resource.
func (t *Table) NonResource(path string) (http.Handler, bool) {
	if h, ok := t.exact[path]; ok {
		return h, true
	}
	for _, p := range t.prefixes {
		if strings.HasPrefix(path, p.prefix) {
			return p.handler, true
		}
	}
	return nil, false
}

// Lookup returns the endpoint of the resource that r names, whatever its verb.
func (t *Table) Lookup(r *request.Request) (*Endpoint, bool) {
	i, ok := t.resources[resourceKey{r.Group, r.Version, r.Resource, r.Subresource}]
	return i, ok && i.covers(r)
}

// ServesVersion reports whether a version of a group has resources.
func (t *Table) ServesVersion(group, version string) bool {
	return t.versions[schema.GroupVersion{Group: group, Version: version}]
}

// Paths returns the paths passed to Handle.
func (t *Table) Paths() []string { return slices.Collect(maps.Keys(t.exact)) }

// covers reports whether e serves the form of r's path with any method: an item of a namespaced resource
// is below its namespace, its collection may also span all namespaces, and a cluster-scoped resource is
// below none.
func (e *Endpoint) covers(r *request.Request) bool {
	switch {
	case len(r.Parts) > 3 && !e.subpath:
		return false
	case r.VerbInPath && (r.Verb != "watch" || len(r.Parts) > 2 || !e.watched()):
		return false
	case !e.Endpoint.Namespaced:
		return !r.InNamespace
	case !r.InNamespace:
		return !r.NamesItem() && e.serves("list")
	}
	return true
}

// watched reports whether the storage of e can be watched. A resource that can only be listed has no
// path for watches.
func (e *Endpoint) watched() bool {
	_, ok := e.Endpoint.Storage.(rest.Watcher)
	return ok
}

// serves reports whether e serves verb at any path.
func (e *Endpoint) serves(verb string) bool {
	if _, ok := e.http[verb]; ok || e.Writes != nil && e.Writes.Serves(verb) {
		return true
	}
	return e.View != nil && (verb == "get" || verb == "list" || verb == "watch")
}

// Permits reports whether e serves r's method and verb at r's path.
func (e *Endpoint) Permits(r *request.Request) bool {
	if len(e.connect) > 0 {
		return e.connect[r.Method] != nil
	}
	verb := r.Verb
	if r.VerbInPath || verb == "watch" || verb == "list" || verb == "get" {
		return r.Method == http.MethodGet && e.serves(verb)
	}
	if e.Endpoint.Namespaced && !r.InNamespace {
		return false
	}
	switch verb {
	case "create":
		return r.NamesItem() == (e.Endpoint.Subresource != "") && e.serves(verb)
	case "update", "patch", "delete":
		return r.NamesItem() && e.serves(verb)
	default:
		return e.serves(verb)
	}
}

// Handler returns the net/http handler for r, which e permits.
func (e *Endpoint) Handler(r *request.Request) (http.Handler, bool) {
	if h, ok := e.connect[r.Method]; ok {
		return h, true
	}
	h, ok := e.http[r.Verb]
	return h, ok
}

// ServesPath reports whether e serves any method at r's path.
func (e *Endpoint) ServesPath(r *request.Request) bool {
	verbs := []string{"get", "update", "patch", "delete"}
	switch {
	case len(e.connect) > 0:
		return true
	case r.VerbInPath:
		verbs = []string{"watch"}
	case !r.NamesItem() && e.Endpoint.Namespaced && !r.InNamespace:
		verbs = []string{"list", "watch"}
	case !r.NamesItem():
		verbs = []string{"list", "watch", "create", "deletecollection"}
	case e.Endpoint.Subresource != "":
		verbs = append(verbs, "create")
	}
	return slices.ContainsFunc(verbs, e.serves)
}
