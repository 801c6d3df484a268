package httpapi

import (
	"net/http"
	"strings"
	"sync/atomic"

	"go.opentelemetry.io/otel/attribute"
	"k8s.io/apiserver/pkg/util/peerproxy"

	"github.com/larder-io/larder/httpapi/aggregator"
	"github.com/larder-io/larder/httpapi/customresources"
	"github.com/larder-io/larder/httpapi/negotiate"
	"github.com/larder-io/larder/httpapi/relay"
	"github.com/larder-io/larder/httpapi/request"
	"github.com/larder-io/larder/httpapi/routes"
)

// router passes requests to their handlers.
type router struct {
	table      *atomic.Pointer[routes.Table]
	extensions *customresources.Extensions // may be nil
	aggregator *aggregator.Aggregator      // may be nil
	peers      peerproxy.Interface         // may be nil
	relay      *relay.Relay                // may be nil
	reader     reader
}

// route passes the request to its handler.
func (r *router) route(x *apiCall) {
	if h := r.remote(x); h != nil {
		x.Forward(h)
		return
	}
	if !x.IsResourceRequest {
		if h, ok := r.table.Load().NonResource(x.Path); ok {
			x.Serve(h)
			return
		}
		r.unknown(x)
		return
	}
	if r.relay != nil {
		r.serveRelayed(x)
		return
	}
	e, ok := r.table.Load().Lookup(&x.Request)
	if ok && x.LacksName() { // the handler rejects it, even with a name in a field selector, because it was authorized as a list
		x.Verb, x.Name = request.VerbOf(x.Method), ""
	}
	switch {
	case !strings.HasPrefix(x.Path, "/"+x.APIPrefix+"/") || x.APIPrefix == "apis" && x.Group == "":
		// "//api/..." and "/apis//...": authorized as a resource, but not routed as one
		x.Text(http.StatusNotFound, "404 page not found")
	case !ok && r.serveCustom(x):
	case !ok:
		r.noEndpoint(x)
	case !e.Permits(&x.Request):
		r.noMethod(x, e)
	case e.View != nil && r.reader.read(x, &e.Resource):
	case e.Writes != nil && e.Writes.Serves(x.Verb):
		write(x, e.Writes)
	default:
		h, ok := e.Handler(&x.Request)
		if !ok {
			r.noMethod(x, e)
			return
		}
		x.Serve(h)
	}
}

// resumes reports whether x is a watch that needs no seat, because it starts at once and has few events to send. After
// a restart, all clients send such watches at the same time.
func (r *router) resumes(x *apiCall) bool {
	if _, given := x.Query.Lookup("sendInitialEvents"); x.Verb != "watch" || x.Subresource != "" || given {
		return false
	}
	version := x.Query.Get("resourceVersion")
	if e, ok := r.table.Load().Lookup(&x.Request); ok {
		return e.View != nil && e.View.Resource.Resumes(version)
	}
	return r.extensions != nil && r.extensions.Resumes(&x.Request, version)
}

// noMethod rejects a request that e does not serve: with 405 if e serves another method at the same path, otherwise as
// unknown does.
func (r *router) noMethod(x *apiCall, e *routes.Endpoint) {
	if !e.ServesPath(&x.Request) {
		r.unknown(x)
		return
	}
	x.NoRoute(http.StatusMethodNotAllowed, "405: Method Not Allowed")
}

// unknown rejects a request for an unknown path: inside a served version as upstream's router does, and elsewhere as
// the end of upstream's delegation chain does.
func (r *router) unknown(x *apiCall) {
	if x.IsResourceRequest && r.table.Load().ServesVersion(x.Group, x.Version) {
		x.NoRoute(http.StatusNotFound, "404: Page Not Found")
		return
	}
	x.Serve(r.notFoundHandler(x))
}

// remote returns the handler that proxies the request to another server; nil if this server serves it.
func (r *router) remote(x *apiCall) http.Handler {
	if r.aggregator == nil {
		return nil
	}
	return r.aggregator.Remote(x.Path)
}

// serveCustom serves a request for a custom resource. It returns false for other requests. Reads are served from
// encoded bytes.
func (r *router) serveCustom(x *apiCall) bool {
	switch {
	case r.extensions == nil:
		return false
	case x.Verb == "create", x.Verb == "update", x.Verb == "patch", x.Verb == "delete", x.Verb == "deletecollection":
		defer timed(x).log(x)
		return r.extensions.Write(&x.Exchange, func() []attribute.KeyValue { return attributesOf(x) })
	case x.Method != http.MethodGet || x.Subresource != "" || x.VerbInPath || len(x.Parts) > 2:
		return false
	}
	c, done := r.extensions.Custom(&x.Request)
	if c == nil {
		return false
	}
	defer done()
	switch {
	case !c.Endpoint.Namespaced && x.Namespace != "":
		return false
	case c.Endpoint.Namespaced && x.Namespace == "" && x.Verb == "get":
		return false
	case c.View.Converts() && x.Verb == "watch":
		return false // the goroutines that write watches must not wait for a webhook
	case c.View.Converts() && x.LabelSelector+x.FieldSelector != "":
		return false // selectors apply to the object that the webhook returns
	}
	return r.reader.read(x, c)
}

// noEndpoint serves a request without an endpoint, by a peer that serves the resource if there is one.
func (r *router) noEndpoint(x *apiCall) {
	if r.awaitCustom(x) && r.serveCustom(x) {
		return
	}
	if r.peers == nil || r.isCustom(x) {
		r.unknown(x)
		return
	}
	x.Forward(r.peers.WrapHandler(r.notFoundHandler(x)))
}

// awaitCustom waits for a custom resource whose CRD is stored but not yet served, and reports
// whether it is served now.
func (r *router) awaitCustom(x *apiCall) bool {
	if t := r.table.Load(); r.extensions == nil || t.ServesVersion(x.Group, x.Version) {
		return false
	} else if _, below := t.NonResource(x.Path); below {
		return false
	}
	return r.extensions.Await(x.Base(), &x.Request)
}

// isCustom reports whether the request is for a custom resource.
func (r *router) isCustom(x *apiCall) bool {
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

// notFoundHandler returns a handler that rejects as unknown does. The group in the path may belong to an aggregated
// server. The document of a group is also served at paths of its versions that are not served.
func (r *router) notFoundHandler(x *apiCall) http.Handler {
	t := r.table.Load()
	below, ok := t.NonResource(x.Path)
	switch {
	case x.IsResourceRequest && t.ServesVersion(x.Group, x.Version):
		return http.HandlerFunc(negotiate.NotFound)
	case ok:
		return below
	}
	if !x.IsResourceRequest && r.aggregator != nil {
		if group := r.aggregator.Group(x.Path); group != nil {
			return group
		}
	}
	if r.extensions != nil {
		return r.extensions
	}
	return http.NotFoundHandler()
}
