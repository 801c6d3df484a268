package aggregator

import (
	"maps"
	"net/http"
	"strings"

	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"
	"k8s.io/kube-aggregator/pkg/apis/apiregistration/v1/helper"
	upstream "k8s.io/kube-aggregator/pkg/apiserver"
	"k8s.io/kube-aggregator/pkg/controllers/openapi"
	"k8s.io/kube-aggregator/pkg/controllers/openapiv3"
)

// Remote returns the handler that proxies requests at path to another server, nil if this server serves
// them. It is called for every request.
func (a *Aggregator) Remote(path string) http.Handler {
	routes := a.routes.Load()
	if routes == nil {
		return nil
	}
	if p := (*routes)[routeOf(path)]; p != nil {
		return p
	}
	return nil
}

// Routes reports whether requests for the version of the named APIService go where the newest
// APIService says: to its remote server, or to this server.
func (a *Aggregator) Routes(name string) bool {
	wanted, err := a.lister.Get(name)
	remote := err == nil && wanted.Spec.Service != nil
	routes := a.routes.Load()
	if routes == nil || (*routes)[route(name)] == nil {
		return !remote
	}
	to := (*routes)[route(name)].target.Load()
	return remote && to.namespace == wanted.Spec.Service.Namespace && to.service == wanted.Spec.Service.Name && to.port == *wanted.Spec.Service.Port
}

// routeOf returns the key of path in the map of routes: the version of a group, or coreRoute
// for all below /api, which is one APIService.
func routeOf(path string) string {
	rest, ok := strings.CutPrefix(path, "/apis/")
	if !ok {
		if path == "/api" || strings.HasPrefix(path, "/api/") {
			return coreRoute
		}
		return noRoute
	}
	group := strings.IndexByte(rest, '/')
	if group <= 0 {
		return noRoute
	}
	if version := strings.IndexByte(rest[group+1:], '/'); version >= 0 {
		return rest[:group+1+version]
	}
	return rest
}

// Keys that are not versions of a group.
const (
	coreRoute = "/"
	noRoute   = ""
)

// coreName is the name of the one APIService of the core group.
const coreName = "v1."

// route returns the key of an APIService by its name.
func route(name string) string {
	if name == coreName {
		return coreRoute
	}
	gv := helper.APIServiceNameToGroupVersion(name)
	return gv.Group + "/" + gv.Version
}

// router changes the routes when upstream's registration controller calls it, from one goroutine.
type router struct {
	aggregator *Aggregator
	discovery  upstream.DiscoveryAggregationController
	openAPIv2  *openapi.AggregationController
	openAPIv3  *openapiv3.AggregationController
	wanted     func() // called when there is a remote server
}

var _ upstream.APIHandlerManager = (*router)(nil)

// AddAPIService implements upstream.APIHandlerManager. It adds or updates a route.
func (f *router) AddAPIService(apiService *apiregistrationv1.APIService) error {
	key := route(apiService.Name)
	if apiService.Spec.Service == nil {
		f.drop(apiService.Name)
		return nil
	}
	f.wanted()
	known := f.routes()
	if p := known[key]; p != nil {
		p.update(apiService)
		f.openAPIv2.UpdateAPIService(p, apiService)
		f.openAPIv3.UpdateAPIService(p, apiService)
		f.discovery.AddAPIService(apiService, p.alwaysAvailable())
		return nil
	}
	p := &proxy{aggregator: f.aggregator}
	p.update(apiService)
	next := maps.Clone(known)
	next[key] = p
	f.aggregator.routes.Store(&next)
	f.openAPIv2.AddAPIService(p, apiService)
	f.openAPIv3.AddAPIService(p, apiService)
	f.discovery.AddAPIService(apiService, p)
	return nil
}

func (f *router) RemoveAPIService(name string) { f.drop(name) }

// drop removes the route of an APIService: this server answers its requests again.
func (f *router) drop(name string) {
	known := f.routes()
	key := route(name)
	if known[key] == nil {
		return
	}
	f.discovery.RemoveAPIService(name)
	f.openAPIv2.RemoveAPIService(name)
	f.openAPIv3.RemoveAPIService(name)
	next := maps.Clone(known)
	delete(next, key)
	if len(next) == 0 {
		f.aggregator.routes.Store(nil)
		return
	}
	f.aggregator.routes.Store(&next)
}

func (f *router) routes() map[string]*proxy {
	if routes := f.aggregator.routes.Load(); routes != nil {
		return *routes
	}
	return map[string]*proxy{}
}
