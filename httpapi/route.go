package httpapi

import (
	"iter"
	"net/http"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/larder-io/larder/httpapi/apimetrics"
	"github.com/larder-io/larder/httpapi/reads"
	"github.com/larder-io/larder/httpapi/request"
)

// installed is one resource or subresource as one API version serves it.
// It is written before it is published in a table and never after.
type installed struct {
	reads.Resource // as it is read

	// http holds the net/http handlers by Request.Verb: get, list, watch, create,
	// update, patch, delete, deletecollection. A verb that is not there is not
	// supported. Where resource has a view, the entries for get, list and watch serve
	// only what is not read from encoded bytes.
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

// table is everything that can be routed to. It is immutable once published:
// Server.publish replaces it whole, so that definitions may come and go while
// requests are served.
type table struct {
	resources map[resourceKey]*installed
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

func newTable() *table {
	return &table{
		resources: make(map[resourceKey]*installed),
		versions:  make(map[groupVersion]bool),
		exact:     make(map[string]http.Handler),
	}
}

// add puts i under its endpoint's names.
func (t *table) add(gvr schema.GroupVersionResource, subresource string, i *installed) {
	t.resources[resourceKey{gvr.Group, gvr.Version, gvr.Resource, subresource}] = i
	t.versions[groupVersion{gvr.Group, gvr.Version}] = true
}

// Monitors implements what /metrics asks for.
func (t *table) Monitors(group, version, resource, subresource string) apimetrics.Monitors {
	if i := t.resources[resourceKey{group, version, resource, subresource}]; i != nil {
		return i.Monitors
	}
	return nil
}

// AllMonitors implements what /metrics asks for.
func (t *table) AllMonitors() iter.Seq[apimetrics.Monitors] {
	return func(yield func(apimetrics.Monitors) bool) {
		for _, i := range t.resources {
			if !yield(i.Monitors) {
				return
			}
		}
	}
}

// handle serves path, and nothing below it, by h.
func (t *table) handle(path string, h http.Handler) { t.exact[path] = h }

// handlePrefix serves every path that begins with prefix by h, unless a more
// precise entry exists. prefix ends in "/".
func (t *table) handlePrefix(prefix string, h http.Handler) {
	at, _ := slices.BinarySearchFunc(t.prefixes, prefix, func(p prefixRoute, target string) int {
		return len(target) - len(p.prefix) // longest first
	})
	t.prefixes = slices.Insert(t.prefixes, at, prefixRoute{prefix, h})
}

// nonResource returns the handler of a path that names no resource.
func (t *table) nonResource(path string) (http.Handler, bool) {
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

// publish makes t what requests are routed by from now on.
func (s *Server) publish(t *table) { s.table.Store(t) }

// lookup returns what serves the resource that r names, whatever its verb.
func (s *Server) lookup(r *request.Request) (*installed, bool) {
	i, ok := s.table.Load().resources[resourceKey{r.Group, r.Version, r.Resource, r.Subresource}]
	return i, ok && i.covers(r)
}

// covers reports whether r's path has a shape that i serves by some method: an
// item of a namespaced resource lies below its namespace, its collection may
// also span all of them, and what belongs to the cluster lies below none.
func (i *installed) covers(r *request.Request) bool {
	switch {
	case len(r.Parts) > 3 && !i.subpath:
		return false
	case r.VerbInPath && (r.Verb != "watch" || len(r.Parts) > 2):
		return false
	case !i.Endpoint.Namespaced:
		return !r.InNamespace
	case !r.InNamespace:
		return !r.NamesItem() && i.serves("list")
	}
	return true
}

// serves reports whether i answers verb at all.
func (i *installed) serves(verb string) bool {
	if _, ok := i.http[verb]; ok {
		return true
	}
	return i.View != nil && (verb == "get" || verb == "list" || verb == "watch")
}

// permits reports whether i answers r's method and verb at r's path.
func (i *installed) permits(r *request.Request) bool {
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

// handler returns the net/http handler for r, which i permits.
func (i *installed) handler(r *request.Request) (http.Handler, bool) {
	if h, ok := i.connect[r.Method]; ok {
		return h, true
	}
	h, ok := i.http[r.Verb]
	return h, ok
}

// knows reports whether i answers any method at r's path.
func (i *installed) knows(r *request.Request) bool {
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

// paths makes a table what upstream's installers register paths on.
type paths struct{ t *table }

// Handle serves path by h.
func (p paths) Handle(path string, h http.Handler) { p.t.handle(path, h) }

// HandlePrefix serves every path below path, which ends in "/", by h.
func (p paths) HandlePrefix(path string, h http.Handler) { p.t.handlePrefix(path, h) }
