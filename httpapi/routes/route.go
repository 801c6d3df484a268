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
	// supported. If the resource has a view, they serve only reads that are not answered from encoded bytes.
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

// covers reports whether i serves the form of r's path with any method: an item of a namespaced resource
// is below its namespace, its collection may also span all namespaces, and a cluster-scoped resource is
// below none.
func (i *Endpoint) covers(r *request.Request) bool {
	switch {
	case len(r.Parts) > 3 && !i.subpath:
		return false
	case r.VerbInPath && (r.Verb != "watch" || len(r.Parts) > 2 || !i.watched()):
		return false
	case !i.Endpoint.Namespaced:
		return !r.InNamespace
	case !r.InNamespace:
		return !r.NamesItem() && i.serves("list")
	}
	return true
}

// watched reports whether the storage of i can be watched. A resource that can only be listed has no
// path for watches.
func (i *Endpoint) watched() bool {
	_, ok := i.Endpoint.Storage.(rest.Watcher)
	return ok
}

// serves reports whether i answers verb at all.
func (i *Endpoint) serves(verb string) bool {
	if _, ok := i.http[verb]; ok || i.Writes != nil && i.Writes.Serves(verb) {
		return true
	}
	return i.View != nil && (verb == "get" || verb == "list" || verb == "watch")
}

// Permits reports whether i answers r's method and verb at r's path.
func (i *Endpoint) Permits(r *request.Request) bool {
	if len(i.connect) > 0 {
		return i.connect[r.Method] != nil
	}
	verb := r.Verb
	if r.LacksName() {
		verb = request.VerbOf(r.Method)
	}
	if r.VerbInPath || verb == "watch" || verb == "list" || verb == "get" {
		return r.Method == http.MethodGet && i.serves(verb)
	}
	if i.Endpoint.Namespaced && !r.InNamespace {
		return false
	}
	switch verb {
	case "create":
		return r.NamesItem() == (i.Endpoint.Subresource != "") && i.serves(verb)
	case "update", "patch", "delete":
		return r.NamesItem() && i.serves(verb)
	default:
		return i.serves(verb)
	}
}

// Handler returns the net/http handler for r, which i permits.
func (i *Endpoint) Handler(r *request.Request) (http.Handler, bool) {
	if h, ok := i.connect[r.Method]; ok {
		return h, true
	}
	h, ok := i.http[r.Verb]
	return h, ok
}

// ServesPath reports whether i answers any method at r's path.
func (i *Endpoint) ServesPath(r *request.Request) bool {
	verbs := []string{"get", "update", "patch", "delete"}
	switch {
	case len(i.connect) > 0:
		return true
	case r.VerbInPath:
		verbs = []string{"watch"}
	case !r.NamesItem() && i.Endpoint.Namespaced && !r.InNamespace:
		verbs = []string{"list", "watch"}
	case !r.NamesItem():
		verbs = []string{"list", "watch", "create", "deletecollection"}
	case i.Endpoint.Subresource != "":
		verbs = append(verbs, "create")
	}
	return slices.ContainsFunc(verbs, i.serves)
}
