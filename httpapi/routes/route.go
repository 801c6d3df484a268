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

// Endpoint is one resource or subresource as one API version serves it.
// It is written before it is published in a table and never after.
type Endpoint struct {
	reads.Resource // as it is read

	// Writes is how it is written; nil if it is not.
	Writes *writes.Endpoint

	// http holds the net/http handlers of reads by Request.Verb: get, list, watch. A verb that is
	// not there is not supported. Where the resource has a view, they serve only what is not read
	// from encoded bytes.
	http map[string]http.Handler

	// connect holds, by HTTP method, the handlers of a subresource that takes the
	// request over (exec, attach, port-forward, proxy). A connecting endpoint has
	// no http entries.
	connect map[string]http.Handler

	// subpath says that path segments behind the subresource belong to the
	// handler, as in .../pods/x/proxy/metrics.
	subpath bool
}

// resourceKey names an endpoint.
type resourceKey struct {
	group, version, resource, subresource string
}

// Table is everything that requests can be routed to. It is immutable once published: a change
// replaces the whole table.
type Table struct {
	resources map[resourceKey]*Endpoint
	versions  map[groupVersion]bool // those that resources stand in

	// exact and prefixes hold the paths that are no resource requests (discovery,
	// openapi, health, metrics, version, pprof). An exact path wins, then the
	// longest prefix; a prefix ends in "/".
	exact    map[string]http.Handler
	prefixes []prefixRoute
}

type prefixRoute struct {
	prefix  string
	handler http.Handler
}

type groupVersion struct{ group, version string }

// New returns a table of nothing.
func New() *Table {
	return &Table{
		resources: make(map[resourceKey]*Endpoint),
		versions:  make(map[groupVersion]bool),
		exact:     make(map[string]http.Handler),
	}
}

// Add puts i under its endpoint's names.
func (t *Table) Add(gvr schema.GroupVersionResource, subresource string, i *Endpoint) {
	t.resources[resourceKey{gvr.Group, gvr.Version, gvr.Resource, subresource}] = i
	t.versions[groupVersion{gvr.Group, gvr.Version}] = true
}

// Handle serves path, and nothing below it, by h.
func (t *Table) Handle(path string, h http.Handler) { t.exact[path] = h }

// HandlePrefix serves every path that begins with prefix by h, unless a more
// precise entry exists. prefix ends in "/".
func (t *Table) HandlePrefix(prefix string, h http.Handler) {
	at, _ := slices.BinarySearchFunc(t.prefixes, prefix, func(p prefixRoute, target string) int {
		return len(target) - len(p.prefix) // longest first
	})
	t.prefixes = slices.Insert(t.prefixes, at, prefixRoute{prefix, h})
}

// NonResource returns the handler of a path that names no resource.
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

// Lookup returns what serves the resource that r names, whatever its verb.
func (t *Table) Lookup(r *request.Request) (*Endpoint, bool) {
	i, ok := t.resources[resourceKey{r.Group, r.Version, r.Resource, r.Subresource}]
	return i, ok && i.covers(r)
}

// ServesVersion reports whether resources stand in a version of a group.
func (t *Table) ServesVersion(group, version string) bool {
	return t.versions[groupVersion{group, version}]
}

// Paths lists the paths that are served exactly.
func (t *Table) Paths() []string { return slices.Collect(maps.Keys(t.exact)) }

// covers reports whether r's path has a shape that i serves by some method: an
// item of a namespaced resource lies below its namespace, its collection may
// also span all of them, and what belongs to the cluster lies below none.
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
	if r.VerbInPath || r.Verb == "watch" || r.Verb == "list" || r.Verb == "get" {
		return r.Method == http.MethodGet && i.serves(r.Verb)
	}
	if i.Endpoint.Namespaced && !r.InNamespace {
		return false
	}
	switch r.Verb {
	case "create":
		return r.NamesItem() == (i.Endpoint.Subresource != "") && i.serves(r.Verb)
	case "update", "patch", "delete":
		return r.NamesItem() && i.serves(r.Verb)
	default:
		return i.serves(r.Verb)
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

// Knows reports whether i answers any method at r's path.
func (i *Endpoint) Knows(r *request.Request) bool {
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
