package openapi

import (
	"fmt"
	"io"
	"maps"
	"net/http"
	"path"

	restful "github.com/emicklei/go-restful/v3"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/version"
	"k8s.io/apiserver/pkg/endpoints"
	"k8s.io/apiserver/pkg/endpoints/discovery"
	"k8s.io/apiserver/pkg/endpoints/discovery/aggregated"
	"k8s.io/apiserver/pkg/endpoints/metrics"
	"k8s.io/apiserver/pkg/registry/rest"
	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/apiserver/pkg/server/routes"
	"k8s.io/kube-openapi/pkg/builder"
	"k8s.io/kube-openapi/pkg/builder3"
	"k8s.io/kube-openapi/pkg/common"
	"k8s.io/kube-openapi/pkg/common/restfuladapter"
	"k8s.io/kube-openapi/pkg/handler"
	"k8s.io/kube-openapi/pkg/handler3"
	"k8s.io/kube-openapi/pkg/spec3"
	"k8s.io/kube-openapi/pkg/validation/spec"
	"k8s.io/kubernetes/pkg/api/legacyscheme"
	kubernetesroutes "k8s.io/kubernetes/pkg/routes"
	"k8s.io/kubernetes/pkg/serviceaccount"

	"github.com/larder-io/larder/internal/registry"
)

// Describer makes the OpenAPI documents of a server.
type Describer struct {
	Models     *Models
	Groups     []*registry.Group
	Version    *version.Info
	Extensions Extensions // nil if there are none
	Aggregator Aggregator // nil if there is none

	// Handlers serve other paths. The documents describe only the paths of log files and of the OpenID provider.
	Handlers map[string]http.Handler
}

// Install adds /openapi/v2 and /openapi/v3. The first request for a document builds it.
func (d *Describer) Install(to common.PathHandlerByGroupVersion) {
	to.Handle("/openapi/v2", newSwaggerService(d.v2, d.descriptionsV2))
	v3 := &openAPIv3{builtIn: make(map[string]*document), extensions: d.Extensions, aggregator: d.Aggregator}
	for _, s := range d.services() {
		v3.builtIn[s.name] = newDocument(inV3, func(w io.Writer) error {
			document, err := d.v3(s)
			if err != nil {
				return err
			}
			return writeJSON(w, document)
		})
	}
	to.Handle("/openapi/v3", measured("openapi/v3", v3.serveIndex))
	to.HandlePrefix("/openapi/v3/", measured("openapi/v3/", v3.serveDocument))
}

// measured counts the requests for path in upstream's metrics (kube-aggregator
// pkg/controllers/openapiv3/aggregator/aggregator.go).
func measured(path string, h http.HandlerFunc) http.Handler {
	return metrics.InstrumentHandlerFunc(http.MethodGet, "", "", "", path, "", "", false, "", h)
}

// descriptionsV2 returns the descriptions of CRDs and aggregated servers.
func (d *Describer) descriptionsV2() (list []Description[spec.Swagger]) {
	if d.Extensions != nil {
		list = d.Extensions.OpenAPIV2()
	}
	if d.Aggregator != nil {
		list = append(list, d.Aggregator.OpenAPIV2()...)
	}
	return list
}

// service is one web service of upstream's go-restful container. A document of OpenAPI v3 describes one
// service.
type service struct {
	name    string                 // its path, without a slash in front
	version *registry.GroupVersion // nil if the service has no resources
	install func(*restful.Container) error
}

// services lists all services.
func (d *Describer) services() []service {
	list := []service{{name: "version", install: func(c *restful.Container) error {
		routes.Version{Version: d.Version}.Install(c)
		return nil
	}}}
	if d.Handlers["/logs"] != nil {
		list = append(list, service{name: "logs", install: func(c *restful.Container) error {
			kubernetesroutes.Logs{}.Install(c)
			return nil
		}})
	}
	for _, name := range openIDPaths {
		if d.Handlers["/"+name] != nil {
			list = append(list, service{name: name, install: describeOpenID(name)})
		}
	}
	roots := map[bool]any{true: metav1.APIVersions{}, false: metav1.APIGroupList{}}
	for core, sample := range roots {
		name := rootOf(core)
		list = append(list, service{name: name, install: func(c *restful.Container) error {
			c.Add(aggregated.WrapAggregatedDiscoveryToHandler(nil, nil, nil).GenerateWebService("/"+name, sample))
			return nil
		}})
	}
	for _, g := range d.Groups {
		if g.Name != "" {
			list = append(list, service{name: "apis/" + g.Name, install: func(c *restful.Container) error {
				c.Add(discovery.NewAPIGroupHandler(legacyscheme.Codecs, metav1.APIGroup{Name: g.Name}).WebService())
				return nil
			}})
		}
		for _, v := range g.Versions {
			list = append(list, service{
				name:    path.Join(rootOf(g.Name == ""), g.Name, v.Version),
				version: &v,
				install: func(c *restful.Container) error { return d.describe(g, v, c) },
			})
		}
	}
	return list
}

// openIDPaths are the paths of the OpenID provider of service-account tokens.
var openIDPaths = [...]string{serviceaccount.OpenIDConfigPath[1:], serviceaccount.JWKSPath[1:]}

// describeOpenID returns a function that adds one path of the OpenID provider.
func describeOpenID(name string) func(c *restful.Container) error {
	return func(c *restful.Container) error {
		all := restful.NewContainer()
		kubernetesroutes.NewOpenIDMetadataServer(nil).Install(all)
		for _, ws := range all.RegisteredWebServices() {
			if ws.RootPath() == "/"+name {
				c.Add(ws)
			}
		}
		return nil
	}
}

func rootOf(core bool) string {
	if core {
		return "api"
	}
	return "apis"
}

// describe adds the routes of one version to c.
func (d *Describer) describe(g *registry.Group, v registry.GroupVersion, c *restful.Container) error {
	storages := make(map[string]rest.Storage, len(v.Endpoints))
	for _, e := range v.Endpoints {
		storages[e.Name()] = e.Storage
	}
	scheme := g.Info.Scheme
	described := &endpoints.APIGroupVersion{
		Storage: storages, Root: "/" + rootOf(g.Name == ""), GroupVersion: v.GroupVersion,
		OptionsExternalVersion: g.Info.OptionsExternalVersion, MetaGroupVersion: g.Info.MetaGroupVersion,
		Serializer: g.Info.NegotiatedSerializer, ParameterCodec: g.Info.ParameterCodec, Typer: scheme,
		Creater: scheme, Convertor: scheme, ConvertabilityChecker: scheme, Defaulter: scheme,
		UnsafeConvertor: runtime.UnsafeObjectConvertor(scheme), Namer: runtime.Namer(meta.NewAccessor()),
		TypeConverter:              d.Models.Converter(g),
		EquivalentResourceRegistry: runtime.NewEquivalentResourceRegistry(),
	}
	_, _, err := described.InstallREST(c)
	return err
}

// v2 builds the one document that describes all services.
func (d *Describer) v2() (*spec.Swagger, error) {
	c := restful.NewContainer()
	for _, s := range d.services() {
		if err := s.install(c); err != nil {
			return nil, fmt.Errorf("httpapi: describing %s: %w", s.name, err)
		}
	}
	config := genericapiserver.DefaultOpenAPIConfig(d.Models.generate, d.Models.namer())
	config.Info = d.info()
	config.CommonResponses = map[int]spec.Response{http.StatusUnauthorized: {ResponseProps: spec.ResponseProps{Description: "Unauthorized"}}}
	config.DefaultSecurity = []map[string][]string{{"BearerToken": {}}}
	config.SecurityDefinitions = &spec.SecurityDefinitions{"BearerToken": {SecuritySchemeProps: spec.SecuritySchemeProps{
		Type: "apiKey", Name: "authorization", In: "header", Description: "Bearer Token authentication",
	}}}
	document, err := builder.BuildOpenAPISpecFromRoutes(restfuladapter.AdaptWebServices(c.RegisteredWebServices()), config)
	if err != nil {
		return nil, fmt.Errorf("httpapi: openapi v2: %w", err)
	}
	document.Definitions = handler.PruneDefaults(document.Definitions)
	return document, nil
}

// v3 builds the document that describes one service.
func (d *Describer) v3(s service) (*spec3.OpenAPI, error) {
	c := restful.NewContainer()
	if err := s.install(c); err != nil {
		return nil, fmt.Errorf("httpapi: describing %s: %w", s.name, err)
	}
	d.Models.mu.Lock()
	defer d.Models.mu.Unlock()
	config := *d.Models.v3Locked()
	config.Info = d.info()
	config.CommonResponses = map[int]*spec3.Response{http.StatusUnauthorized: {ResponseProps: spec3.ResponseProps{Description: "Unauthorized"}}}
	config.DefaultSecurity = []map[string][]string{{"BearerToken": {}}}
	config.SecuritySchemes = spec3.SecuritySchemes{"BearerToken": {SecuritySchemeProps: spec3.SecuritySchemeProps{
		Type: "apiKey", Name: "authorization", In: "header", Description: "Bearer Token authentication",
	}}}
	document, err := builder3.BuildOpenAPISpecFromRoutes(restfuladapter.AdaptWebServices(c.RegisteredWebServices()), &config)
	if err != nil {
		return nil, fmt.Errorf("httpapi: openapi v3 of %s: %w", s.name, err)
	}
	// The builder returns maps of the definitions and writes to them again when it builds the next document, while
	// this one is being encoded.
	for _, schema := range document.Components.Schemas {
		schema.Extensions = maps.Clone(schema.Extensions)
	}
	if s.version != nil {
		narrow(document, s.version.Group, s.version.Version)
	}
	return document, nil
}

func (d *Describer) info() *spec.Info {
	// As apiserver pkg/server/config.go: the emulated version, without a patch release.
	return &spec.Info{InfoProps: spec.InfoProps{Title: "Kubernetes", Version: d.Version.EmulationMajor + "." + d.Version.EmulationMinor}}
}

// narrow removes the kinds of other versions, except core v1, from WatchEvent and DeleteOptions, which
// every version has. It follows apiserver pkg/server/routes/openapi.go, filterScopedGVKs.
func narrow(document *spec3.OpenAPI, group, version string) {
	for _, schema := range document.Components.Schemas {
		kinds, _ := schema.Extensions[endpoints.RouteMetaGVK].([]any)
		if len(kinds) < 2 {
			continue
		}
		if first, _ := kinds[0].(map[string]any); first["kind"] != "WatchEvent" && first["kind"] != "DeleteOptions" {
			continue
		}
		var kept []any
		for _, kind := range kinds {
			m, _ := kind.(map[string]any)
			if (m["group"] == group && m["version"] == version) || (m["group"] == "" && m["version"] == "v1") {
				kept = append(kept, kind)
			}
		}
		schema.Extensions[endpoints.RouteMetaGVK] = kept
	}
}

// Description describes a part of an OpenAPI document, or a whole one.
type Description[T any] struct {
	Name  string // unique
	State string // differs whenever the description does

	// Build builds the part.
	Build func() (*T, error)
	// Variants describe the same part by templates, which is cheaper than Build. If it is nil or returns
	// nothing, no template fits.
	Variants func() []Variant[T]
}

// describedPart is the document built from a description in one state.
type describedPart[P any] struct {
	part  P
	state string
}

// partsOf returns the parts of descriptions by name, and whether they differ from known. It takes the parts
// of unchanged descriptions from known.
func partsOf[T, P any](known map[string]describedPart[P], descriptions []Description[T], create func(Description[T]) P) (next map[string]describedPart[P], changed bool) {
	same := len(descriptions) == len(known)
	for _, d := range descriptions {
		p, ok := known[d.Name]
		same = same && ok && p.state == d.State
	}
	if same {
		return known, false
	}
	next = make(map[string]describedPart[P], len(descriptions))
	for _, d := range descriptions {
		p, ok := known[d.Name]
		if !ok || p.state != d.State {
			p = describedPart[P]{create(d), d.State}
		}
		next[d.Name] = p
	}
	return next, true
}

// Extensions describes custom resources.
type Extensions interface {
	// OpenAPIV2 describes each CRD. OpenAPIV3 describes each version of a group, named by its path
	// below /openapi/v3/.
	OpenAPIV2() []Description[spec.Swagger]
	OpenAPIV3() []Description[spec3.OpenAPI]
}

// Aggregator describes aggregated servers.
type Aggregator interface {
	// OpenAPIV2 describes the APIs of the other servers. OpenAPIV3 lists their documents of
	// OpenAPI v3 by path below /openapi/v3/, and ServeOpenAPIV3 serves these documents.
	OpenAPIV2() []Description[spec.Swagger]
	OpenAPIV3() map[string]handler3.OpenAPIV3DiscoveryGroupVersion
	ServeOpenAPIV3(w http.ResponseWriter, req *http.Request)
}
