package aggregator

import (
	"context"
	"encoding/json"
	"errors"
	"maps"
	"net/http"
	"net/url"
	"strings"
	"sync/atomic"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	utilproxy "k8s.io/apimachinery/pkg/util/proxy"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/endpoints/handlers/responsewriters"
	"k8s.io/apiserver/pkg/endpoints/metrics"
	apirequest "k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/features"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	utilflowcontrol "k8s.io/apiserver/pkg/util/flowcontrol"
	serviceproxy "k8s.io/apiserver/pkg/util/proxy"
	"k8s.io/client-go/transport"
	"k8s.io/klog/v2"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"
	"k8s.io/kube-aggregator/pkg/apis/apiregistration/v1/helper"
	upstream "k8s.io/kube-aggregator/pkg/apiserver"
	"k8s.io/kube-aggregator/pkg/controllers/openapi"
	"k8s.io/kube-aggregator/pkg/controllers/openapiv3"
	"k8s.io/kube-aggregator/pkg/controllers/status/remote"
	"k8s.io/streaming/pkg/httpstream"

	"github.com/larder-io/larder/internal/registry/backend"
)

// Remote returns the handler that proxies requests at path to another server, nil if this server serves
// them. It is called for every request.
func (a *Aggregator) Remote(path string) http.Handler {
	routes := *a.routes.Load()
	if len(routes) == 0 {
		return nil
	}
	if p := routes[routeOf(path)]; p != nil {
		return p
	}
	return nil
}

// Routes reports whether requests for the version of the named APIService go where the newest
// APIService says: to its remote server, or to this server.
func (a *Aggregator) Routes(name string) bool {
	wanted, err := a.lister.Get(name)
	remote := err == nil && wanted.Spec.Service != nil
	p := (*a.routes.Load())[route(name)]
	if p == nil {
		return !remote
	}
	to := p.target.Load()
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
func (r *router) AddAPIService(apiService *apiregistrationv1.APIService) error {
	key := route(apiService.Name)
	if apiService.Spec.Service == nil {
		r.RemoveAPIService(apiService.Name)
		return nil
	}
	r.wanted()
	known := *r.aggregator.routes.Load()
	if p := known[key]; p != nil {
		p.update(apiService)
		r.openAPIv2.UpdateAPIService(p, apiService)
		r.openAPIv3.UpdateAPIService(p, apiService)
		r.discovery.AddAPIService(apiService, p.alwaysAvailable())
		return nil
	}
	p := &proxy{aggregator: r.aggregator}
	p.update(apiService)
	next := maps.Clone(known)
	next[key] = p
	r.aggregator.routes.Store(&next)
	r.openAPIv2.AddAPIService(p, apiService)
	r.openAPIv3.AddAPIService(p, apiService)
	r.discovery.AddAPIService(apiService, p)
	return nil
}

// RemoveAPIService implements upstream.APIHandlerManager. It removes a route: this server serves the requests again.
func (r *router) RemoveAPIService(name string) {
	known := *r.aggregator.routes.Load()
	key := route(name)
	if known[key] == nil {
		return
	}
	r.discovery.RemoveAPIService(name)
	r.openAPIv2.RemoveAPIService(name)
	r.openAPIv3.RemoveAPIService(name)
	next := maps.Clone(known)
	delete(next, key)
	r.aggregator.routes.Store(&next)
}

// component is the value of the component label in metrics.
const component = "aggregator"

// proxy proxies requests to one remote server, as kube-aggregator
// pkg/apiserver/handler_proxy.go does.
type proxy struct {
	aggregator *Aggregator
	target     atomic.Pointer[target]
}

// target is a remote server in one state of its APIService. It is immutable.
type target struct {
	namespace, service string
	port               int32
	available          bool
	transport          http.RoundTripper
	err                error // of making transport
}

// update replaces the target after a change of the APIService, which is remote, or of the
// certificate.
func (p *proxy) update(apiService *apiregistrationv1.APIService) {
	cert, key := p.aggregator.certificate()
	service := apiService.Spec.Service
	t := &target{
		namespace: service.Namespace, service: service.Name, port: *service.Port,
		available: helper.IsAPIServiceConditionTrue(apiService, apiregistrationv1.Available),
	}
	// Equal configurations share their connections.
	t.transport, t.err = transport.New(remote.BuildTransportConfig(p.aggregator.dial, cert, key, apiService))
	p.target.Store(t)
}

// alwaysAvailable returns a proxy to the same server that does not check its availability.
func (p *proxy) alwaysAvailable() *proxy {
	t := *p.target.Load()
	t.available = true
	out := &proxy{aggregator: p.aggregator}
	out.target.Store(&t)
	return out
}

func (p *proxy) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	t := p.target.Load()
	who, known := apirequest.UserFrom(req.Context())
	switch {
	case !t.available:
		refuse(w, req, http.StatusServiceUnavailable, "service unavailable")
		return
	case t.err != nil:
		refuse(w, req, http.StatusInternalServerError, t.err.Error())
		return
	case !known:
		refuse(w, req, http.StatusInternalServerError, "missing user")
		return
	}
	at, err := p.aggregator.resolver.ResolveEndpoint(t.namespace, t.service, t.port)
	if err != nil {
		klog.ErrorS(err, "Service of an APIService cannot be found", "namespace", t.namespace, "service", t.service)
		refuse(w, req, http.StatusServiceUnavailable, "service unavailable")
		return
	}
	utilflowcontrol.RequestDelegated(req.Context()) // the other server counts a watch
	location := &url.URL{Scheme: "https", Host: at.Host, Path: req.URL.Path, RawQuery: req.URL.Query().Encode()}
	p.forward(w, req, location, t.transport, who)
}

// forward sends a request of the user who to location.
func (p *proxy) forward(w http.ResponseWriter, req *http.Request, location *url.URL, next http.RoundTripper, who user.Info) {
	onward, cancel := serviceproxy.NewRequestForProxy(location, req)
	defer cancel()
	uid := ""
	if utilfeature.DefaultFeatureGate.Enabled(features.RemoteRequestHeaderUID) {
		uid = who.GetUID()
	}
	next = transport.NewAuthProxyRoundTripper(who.GetName(), uid, who.GetGroups(), who.GetExtra(), backend.Transport(next))
	upgrade := httpstream.IsUpgradeRequest(req)
	if upgrade { // the handler writes it to a connection of its own, not through next
		removeHopByHop(onward.Header)
		transport.SetAuthProxyHeaders(onward, who.GetName(), uid, who.GetGroups(), who.GetExtra())
	}
	handler := utilproxy.NewUpgradeAwareHandler(location, next, true, upgrade, responder{w})
	handler.RejectForwardingRedirects = p.aggregator.config.RejectRedirects
	handler.ServeHTTP(w, onward)
}

// removeHopByHop removes hop-by-hop headers from an upgrade request (RFC 9110, section
// 7.6.1). From other requests net/http's proxy removes them.
func removeHopByHop(header http.Header) {
	for _, value := range header.Values("Connection") {
		for name := range strings.SplitSeq(value, ",") {
			if name = strings.TrimSpace(name); !strings.EqualFold(name, "Upgrade") {
				header.Del(name)
			}
		}
	}
	for _, name := range [...]string{"Keep-Alive", "Proxy-Authorization", "Proxy-Connection", "Te"} {
		header.Del(name)
	}
	header.Set("Connection", "Upgrade")
}

// refuse rejects a request that is not proxied.
func refuse(w http.ResponseWriter, req *http.Request, code int, text string) {
	http.Error(w, text, code)
	if info, ok := apirequest.RequestInfoFrom(req.Context()); ok {
		metrics.RecordRequestTermination(req, info, component, code)
	}
}

// responder responds to a request that could not be proxied.
type responder struct{ w http.ResponseWriter }

func (r responder) Object(code int, obj runtime.Object) {
	responsewriters.WriteRawJSON(code, obj, r.w)
}

func (r responder) Error(_ http.ResponseWriter, req *http.Request, err error) {
	if errors.Is(context.Cause(req.Context()), context.DeadlineExceeded) { // err has only the text of that
		status := apierrors.NewTimeoutError("request did not complete within the allotted timeout", 0).Status()
		r.w.Header().Set("Content-Type", "text/plain; charset=utf-8") // as apiserver pkg/server/filters/timeout.go
		r.w.WriteHeader(int(status.Code))
		_ = json.NewEncoder(r.w).Encode(&status) // the client may have left
		return
	}
	http.Error(r.w, err.Error(), http.StatusServiceUnavailable)
}
