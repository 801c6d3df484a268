package routes

import (
	"fmt"
	"net/http"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	fieldmanager "k8s.io/apimachinery/pkg/util/managedfields"
	"k8s.io/apimachinery/pkg/version"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/endpoints"
	"k8s.io/apiserver/pkg/endpoints/deprecation"
	"k8s.io/apiserver/pkg/endpoints/filters"
	"k8s.io/apiserver/pkg/endpoints/handlers"
	"k8s.io/apiserver/pkg/endpoints/handlers/negotiation"
	"k8s.io/apiserver/pkg/endpoints/metrics"
	apirequest "k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/apiserver/pkg/warning"
	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"

	"github.com/larder-io/larder/httpapi/apimetrics"
	"github.com/larder-io/larder/httpapi/managedfields"
	"github.com/larder-io/larder/httpapi/negotiate"
	"github.com/larder-io/larder/httpapi/openapi"
	"github.com/larder-io/larder/httpapi/reads"
	"github.com/larder-io/larder/httpapi/writes"
	"github.com/larder-io/larder/internal/registry"
)

// Installer builds routes from the endpoints of a registry, as apiserver pkg/endpoints/installer.go does.
type Installer struct {
	Admission  admission.Interface
	Authorizer authorizer.Authorizer
	Version    *version.Info

	MaxBodyBytes int64

	// MinRequestTimeout is the minimum duration of a watch without timeoutSeconds.
	MinRequestTimeout time.Duration

	Models   *openapi.Models
	Monitors *apimetrics.Resources

	// Equivalents maps the resources of the registry that share their objects.
	Equivalents runtime.EquivalentResourceMapper
}

// Install adds every endpoint of groups to t.
func (in *Installer) Install(t *Table, groups []*registry.Group) error {
	for _, g := range groups {
		converter := in.Models.Converter(g)
		for _, v := range g.Versions {
			for _, e := range v.Endpoints {
				i, err := in.endpoint(g, e, converter)
				if err != nil {
					return fmt.Errorf("httpapi: %s %s: %w", v.GroupVersion, e.Name(), err)
				}
				t.Add(e.GVR, e.Subresource, i)
			}
		}
	}
	return nil
}

// endpoint builds the Endpoint that serves e.
func (in *Installer) endpoint(g *registry.Group, e *registry.Endpoint, converter fieldmanager.TypeConverter) (*Endpoint, error) {
	scope := in.scope(g, e)
	reset, err := resetFields(e.Storage)
	if err != nil {
		return nil, err
	}
	managed, err := managedfields.New(converter, scope.UnsafeConvertor, scope.Defaulter, scope.Creater, e.GVK, scope.HubGroupVersion, e.Subresource, reset)
	if err != nil {
		return nil, err
	}
	scope.FieldManager = managed.Manager
	life, err := in.lifecycle(g, e)
	if err != nil {
		return nil, err
	}
	b := &handlerBuilder{Installer: in, endpoint: e, scope: scope, life: life}
	var monitors *apimetrics.Monitors
	if e.View != nil { // otherwise upstream's handlers serve and count the reads
		monitors = in.Monitors.Of(e.GVR, e.Subresource)
	}
	return &Endpoint{
		Resource: reads.NewResource(e, scope, life.Lifecycle, life.warnings, monitors),
		Writes: writes.New(writes.Config{
			Endpoint: e, Scope: scope, Admission: in.Admission, ManagedFields: managed,
			Life: life.Lifecycle, Warnings: life.warnings,
		}),
		http:    b.readers(),
		connect: b.connects(),
		subpath: b.subpath(),
	}, nil
}

// scope returns the request scope of an endpoint for upstream's handlers, without a field manager.
func (in *Installer) scope(g *registry.Group, e *registry.Endpoint) *handlers.RequestScope {
	scheme := g.Info.Scheme
	scope := &handlers.RequestScope{
		Namer: handlers.ContextBasedNaming{
			Namer:         runtime.Namer(meta.NewAccessor()),
			ClusterScoped: !e.Namespaced,
		},
		Serializer: g.Info.NegotiatedSerializer, ParameterCodec: g.Info.ParameterCodec, Creater: scheme,
		Convertor: scheme, Defaulter: scheme, Typer: scheme,
		UnsafeConvertor: runtime.UnsafeObjectConvertor(scheme), Authorizer: in.Authorizer,
		EquivalentResourceMapper: in.Equivalents, Resource: e.GVR, Kind: e.GVK, Subresource: e.Subresource,
		MetaGroupVersion:    metav1.SchemeGroupVersion,
		HubGroupVersion:     schema.GroupVersion{Group: e.GVK.Group, Version: runtime.APIVersionInternal},
		MaxRequestBodyBytes: in.MaxBodyBytes,
	}
	if g.Info.MetaGroupVersion != nil {
		scope.MetaGroupVersion = *g.Info.MetaGroupVersion
	}
	// Assign only if e.Storage implements the interface: an interface that holds a nil pointer is not nil.
	if tables, ok := e.Storage.(rest.TableConvertor); ok {
		scope.TableConvertor = tables
	}
	if accepts, ok := e.Storage.(rest.GroupVersionAcceptor); ok {
		scope.AcceptsGroupVersionDelegate = accepts
	}
	return scope
}

// resetFields says which fields storage's strategy ignores in requests, for the
// field manager to leave them to their owners.
func resetFields(storage any) (map[fieldpath.APIVersion]fieldpath.Filter, error) {
	sets, hasSets := storage.(interface {
		GetResetFields() map[fieldpath.APIVersion]*fieldpath.Set
	})
	filters, hasFilters := storage.(interface {
		GetResetFieldsFilter() map[fieldpath.APIVersion]fieldpath.Filter
	})
	switch {
	case hasSets && hasFilters:
		return nil, fmt.Errorf("%T resets fields in two ways", storage)
	case hasSets:
		return fieldpath.NewExcludeFilterSetMap(sets.GetResetFields()), nil
	case hasFilters:
		return filters.GetResetFieldsFilter(), nil
	}
	return nil, nil
}

func (in *Installer) lifecycle(g *registry.Group, e *registry.Endpoint) (lifecycle, error) {
	obj, err := g.Info.Scheme.New(e.GVK)
	if err != nil {
		return lifecycle{}, err
	}
	obj.GetObjectKind().SetGroupVersionKind(e.GVK)
	major, minor, err := deprecation.MajorMinor(*in.Version)
	if err != nil {
		return lifecycle{}, fmt.Errorf("version %q: %w", in.Version, err)
	}
	if !deprecation.IsDeprecated(obj, major, minor) {
		return lifecycle{}, nil
	}
	return lifecycle{
		Lifecycle: apimetrics.Lifecycle{Deprecated: true, Removed: deprecation.RemovedRelease(obj)},
		warnings:  []string{deprecation.WarningMessage(obj)},
	}, nil
}

// handlerBuilder builds the handlers of one endpoint from the interfaces that its storage implements.
type handlerBuilder struct {
	*Installer
	endpoint *registry.Endpoint
	scope    *handlers.RequestScope
	life     lifecycle
}

// readers returns the handlers of get, list and watch, by verb.
func (b *handlerBuilder) readers() map[string]http.Handler {
	h, storage := make(map[string]http.Handler), b.endpoint.Storage
	verb := apirequest.MethodGet
	if s, ok := storage.(endpoints.StorageMetricsOverride); ok {
		verb = s.OverrideMetricsVerb(verb)
	}
	if s, ok := storage.(rest.GetterWithOptions); ok {
		get := handlers.GetResourceWithOptions(s, b.scope, b.endpoint.Subresource != "")
		h["get"] = b.finish(apirequest.MethodGet, verb, get)
	} else if s, ok := storage.(rest.Getter); ok {
		h["get"] = b.finish(apirequest.MethodGet, verb, handlers.GetResource(s, b.scope))
	}
	lister, ok := storage.(rest.Lister)
	if !ok {
		return h
	}
	// With a nil watcher the handler responds that watches are not supported.
	watcher, _ := storage.(rest.Watcher)
	h["list"] = b.finish(apirequest.MethodList, apirequest.MethodList, handlers.ListResource(lister, watcher, b.scope, false, b.MinRequestTimeout))
	// forceWatch is true for the deprecated path. It has no effect on a request with ?watch=1.
	h["watch"] = b.finish(apirequest.MethodList, apirequest.MethodWatch,
		handlers.ListResource(lister, watcher, b.scope, true, b.MinRequestTimeout))
	return h
}

// connects returns the handlers of CONNECT by HTTP method, nil if the storage takes
// over no connections.
func (b *handlerBuilder) connects() map[string]http.Handler {
	s, ok := b.endpoint.Storage.(rest.Connecter)
	if !ok {
		return nil
	}
	connect := func(w http.ResponseWriter, req *http.Request) {
		// A shared handler would grow: it wraps its admission chain once more in every request.
		handlers.ConnectResource(s, b.scope, b.Admission, b.endpoint.Name(), b.endpoint.Subresource != "")(w, req)
	}
	h := make(map[string]http.Handler)
	for _, method := range s.ConnectMethods() {
		h[method] = filters.WithWarningRecorder(instrument(b.endpoint, b.life, apirequest.MethodConnect, connect))
	}
	return h
}

// subpath reports whether the storage accepts path segments after its own.
func (b *handlerBuilder) subpath() bool {
	if s, ok := b.endpoint.Storage.(rest.GetterWithOptions); ok {
		_, sub, _ := s.NewGetOptions()
		return sub
	}
	if s, ok := b.endpoint.Storage.(rest.Connecter); ok {
		_, sub, _ := s.NewConnectOptions()
		return sub
	}
	return false
}

// finish wraps the handler of an action, which metrics know by verb. It first checks the media types that
// the action produces, as go-restful does for upstream, and then measures the handler.
func (b *handlerBuilder) finish(action, verb string, h http.HandlerFunc) http.Handler {
	return negotiate.Producing(b.produces(action), filters.WithWarningRecorder(instrument(b.endpoint, b.life, verb, h)))
}

// produces returns the media types of the responses of an action.
func (b *handlerBuilder) produces(action string) []string {
	var list []string
	if s, ok := b.endpoint.Storage.(rest.StorageMetadata); ok {
		list = append(list, s.ProducesMIMETypes(action)...)
	}
	media, streams := negotiation.MediaTypesForSerializer(b.scope.Serializer)
	list = append(list, media...)
	if action == apirequest.MethodList {
		list = append(list, streams...)
	}
	return list
}

// lifecycle is the lifecycle of a kind and the warnings for clients of a deprecated one.
type lifecycle struct {
	apimetrics.Lifecycle
	warnings []string
}

// instrument wraps h with upstream's metrics for e and verb, and warns clients of deprecated kinds.
func instrument(e *registry.Endpoint, life lifecycle, verb string, h http.HandlerFunc) http.Handler {
	served := func(w http.ResponseWriter, req *http.Request) {
		for _, text := range life.warnings {
			warning.AddWarning(req.Context(), "", text)
		}
		h(w, req)
	}
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		scope := "cluster"
		switch info, _ := apirequest.RequestInfoFrom(req.Context()); {
		case info == nil || len(info.Parts) > 1 || verb == apirequest.MethodPost:
			scope = "resource"
		case info.Namespace != "" && e.Namespaced:
			scope = "namespace"
		}
		// A wrapper for each request is small; three kept for each verb of each endpoint are 0.2 MB.
		metrics.InstrumentHandlerFunc(verb, e.GVR.Group, e.GVR.Version, e.GVR.Resource, e.Subresource,
			scope, metrics.APIServerComponent, life.Deprecated, life.Removed, served)(w, req)
	})
}
