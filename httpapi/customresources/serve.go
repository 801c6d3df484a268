package customresources

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apiextensionsserver "k8s.io/apiextensions-apiserver/pkg/apiserver"
	"k8s.io/apiextensions-apiserver/pkg/controller/finalizer"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/endpoints/filters"
	"k8s.io/apiserver/pkg/endpoints/handlers"
	"k8s.io/apiserver/pkg/endpoints/handlers/responsewriters"
	"k8s.io/apiserver/pkg/endpoints/metrics"
	apirequest "k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/util/notfoundhandler"
	"k8s.io/apiserver/pkg/warning"
	"k8s.io/klog/v2"

	"github.com/larder-io/larder/httpapi/apimetrics"
	"github.com/larder-io/larder/httpapi/reads"
	"github.com/larder-io/larder/httpapi/request"
	"github.com/larder-io/larder/internal/registry"
	"github.com/larder-io/larder/internal/registry/storage"
)

// catchUp limits how long a request waits until the informer has seen a CRD that the store has. It
// usually takes milliseconds.
const catchUp = 10 * time.Second

// Custom returns the custom resource that a request names, nil if there is none now. The caller calls done after the
// response.
func (e *Extensions) Custom(r *request.Request) (c *reads.Resource, done func()) {
	s := e.servings.Load().of(schema.GroupResource{Group: r.Group, Resource: r.Resource})
	if s == nil || !s.offers(r.Version) || e.builtIn.Has(r.Group) {
		return nil, nil
	}
	g, err := s.get()
	if err != nil || g.readable[r.Version] == nil || !g.acquire() {
		return nil, nil
	}
	return g.readable[r.Version], g.release
}

// Resumes reports whether [storage.Resource.Resumes] holds for a watch of a custom resource that has a cache and is not
// converted by a webhook. It loads no cache, because the user may have no right to the resource.
func (e *Extensions) Resumes(r *request.Request, resourceVersion string) bool {
	gr := schema.GroupResource{Group: r.Group, Resource: r.Resource}
	custom, s := e.config.Registry.CustomResource(gr), e.servings.Load().of(gr)
	return custom != nil && s != nil && !hasWebhook(s.crd.Load()) && custom.Resumes(resourceVersion)
}

// Monitors counts the requests for all custom resources that this process has served.
func (e *Extensions) Monitors() *apimetrics.Resources { return &e.monitors }

// ServeHTTP implements http.Handler. It serves reads that do not come from encoded bytes by
// upstream's handlers, and responds to all other requests with an error.
func (e *Extensions) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	info, ok := apirequest.RequestInfoFrom(req.Context())
	if !ok || !info.IsResourceRequest {
		e.discovery.serve(w, req, e.unknown())
		return
	}
	gr := schema.GroupResource{Group: info.APIGroup, Resource: info.Resource}
	found, err := e.use(req.Context(), gr, info.APIVersion, func(s *serving, g *backend, b *built) error {
		e.serve(w, req, info, s, g, b)
		return nil
	})
	switch {
	case !found:
		e.unknown().ServeHTTP(w, req)
	case errors.Is(err, errRetired):
		fail(w, req, info, errChanging())
	case err != nil:
		klog.ErrorS(err, "Custom resource cannot be served", "resource", info.Resource, "group", info.APIGroup)
		fail(w, req, info, apierrors.NewInternalError(errors.New("error resolving resource")))
	}
}

// use calls serve with the backend of gr, which is not retired before serve returns. If the CRD has changed since, or
// serve returns errRetired, use begins again. It returns errRetired if the server is shutting down. found is false if
// there is no such resource now.
func (e *Extensions) use(ctx context.Context, gr schema.GroupResource, version string, serve func(*serving, *backend, *built) error) (found bool, err error) {
	for {
		s := e.servings.Load().of(gr)
		if s == nil || !s.offers(version) {
			return false, nil
		}
		err := s.use(serve)
		if !errors.Is(err, errRetired) || !e.awaitReplaced(ctx, gr, s) {
			return true, err
		}
	}
}

func (s *serving) use(serve func(*serving, *backend, *built) error) error {
	g, err := s.get()
	if err != nil {
		return err
	}
	if !g.acquire() {
		return errRetired
	}
	defer g.release()
	b, err := g.built()
	if err != nil {
		return err
	}
	return serve(s, g, b)
}

// serve serves a request by upstream's handlers.
func (e *Extensions) serve(w http.ResponseWriter, req *http.Request, info *apirequest.RequestInfo, s *serving, g *backend, b *built) {
	if b.Versions[info.APIVersion] == nil || !s.inScope(info.Verb, info.Namespace) {
		e.unknown().ServeHTTP(w, req)
		return
	}
	if info.Verb == "watch" { // ends when g is retired
		ctx, cancel := context.WithCancel(req.Context())
		defer cancel()
		defer context.AfterFunc(g.ending, cancel)()
		req = req.WithContext(ctx)
	}
	filters.WithWarningRecorder(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) { s.serveUpstream(w, req, info, b) })).ServeHTTP(w, req)
}

func fail(w http.ResponseWriter, req *http.Request, info *apirequest.RequestInfo, err error) {
	gv := schema.GroupVersion{Group: info.APIGroup, Version: info.APIVersion}
	responsewriters.ErrorNegotiated(err, apiextensionsserver.Codecs, gv, w, req)
}

// unknown returns the handler of requests for resources that this server does not serve.
func (e *Extensions) unknown() http.Handler {
	return notfoundhandler.New(apiextensionsserver.Codecs, func(context.Context) bool { return e.isSynced() && e.config.Complete() })
}

// Await waits until a resource that Custom does not know is served, and reports whether it is. It
// looks up the CRD in the store, and waits until the informer has seen that state.
func (e *Extensions) Await(ctx context.Context, r *request.Request) bool {
	gr := schema.GroupResource{Group: r.Group, Resource: r.Resource}
	if s := e.servings.Load().of(gr); s != nil && s.offers(r.Version) {
		return true // it may have appeared since the caller looked
	}
	revision, ok := e.stored(ctx, gr)
	if !ok {
		return false
	}
	bounded, cancel := context.WithTimeout(ctx, catchUp)
	defer cancel()
	var s *serving
	e.changes.until(bounded, func() bool {
		s = e.servings.Load().of(gr)
		return s != nil && s.revision() >= revision
	})
	return s != nil && s.offers(r.Version)
}

// crds returns the endpoint of CRDs, nil if this server does not serve CRDs, and so has no custom resources.
func (e *Extensions) crds() *registry.Endpoint {
	return e.config.Registry.Endpoint(apiextensionsv1.SchemeGroupVersion.WithResource("customresourcedefinitions"), "")
}

// stored returns the revision of the CRD of gr in the store, and whether the store has it.
func (e *Extensions) stored(ctx context.Context, gr schema.GroupResource) (int64, bool) {
	endpoint := e.crds()
	if endpoint == nil {
		return 0, false
	}
	o, err := endpoint.View.Resource.Get(ctx, storage.Scope{Name: gr.Resource + "." + gr.Group}, "")
	if err != nil {
		return 0, false
	}
	return o.Revision(), true
}

// awaitReplaced waits until s no longer serves gr, and reports whether that has happened.
func (e *Extensions) awaitReplaced(ctx context.Context, gr schema.GroupResource, s *serving) bool {
	bounded, cancel := context.WithTimeout(ctx, catchUp)
	defer cancel()
	return e.changes.until(bounded, func() bool {
		return e.servings.Load().of(gr) != s
	})
}

// GetCustomResourceListerCollectionDeleter implements finalizer.CRClientGetter. It returns after
// this server has created all objects that it had admitted before it saw crd. If crd is being
// deleted, no create follows. Otherwise a create could add an object that the finalizer misses, and
// the next CRD of the name would find it.
func (e *Extensions) GetCustomResourceListerCollectionDeleter(crd *apiextensionsv1.CustomResourceDefinition) (finalizer.ListerCollectionDeleter, error) {
	s, err := e.awaitServing(crd)
	if err != nil {
		return nil, err
	}
	var deleter *guardedDeleter
	err = s.use(func(s *serving, g *backend, b *built) error {
		deleter = &guardedDeleter{ListerCollectionDeleter: b.Versions[b.Stored].Storage, serving: s, backend: g, since: time.Now()}
		return nil
	})
	return deleter, err
}

// awaitServing waits until crd or a newer state of it is served, and until the creates that were admitted
// before have ended.
func (e *Extensions) awaitServing(crd *apiextensionsv1.CustomResourceDefinition) (*serving, error) {
	e.mu.Lock()
	base := e.base
	e.mu.Unlock()
	if base == nil {
		return nil, errRetired
	}
	ctx, cancel := context.WithTimeout(base, catchUp)
	defer cancel()
	var s *serving
	caughtUp := e.changes.until(ctx, func() bool {
		s = e.servings.Load().of(resourceOf(crd))
		return s == nil || s.crd.Load().UID != crd.UID || s.revision() >= revisionOf(crd)
	})
	switch {
	case !caughtUp:
		return nil, fmt.Errorf("customresources: CRD %s at %s is not served yet", crd.Name, crd.ResourceVersion)
	case s == nil || s.crd.Load().UID != crd.UID:
		return nil, apierrors.NewNotFound(apiextensionsv1.Resource("customresourcedefinitions"), crd.Name)
	}
	if err := s.creates.Acquire(ctx, allCreates); err != nil {
		return nil, fmt.Errorf("customresources: objects of %s are still being created: %w", crd.Name, err)
	}
	s.creates.Release(allCreates)
	return s, nil
}

// inScope reports whether the scope of the CRD allows requests of a verb in a namespace, or in none.
// Only lists and watches of namespaced resources may span all namespaces.
func (s *serving) inScope(verb, namespace string) bool {
	namespaced := s.crd.Load().Spec.Scope == apiextensionsv1.NamespaceScoped
	return namespaced == (namespace != "") || namespaced && (verb == "list" || verb == "watch")
}

// serveUpstream serves a request by upstream's handler: a read that does not come from encoded bytes, or a
// request that no endpoint serves.
func (s *serving) serveUpstream(w http.ResponseWriter, req *http.Request, info *apirequest.RequestInfo, b *built) {
	crd := s.crd.Load()
	deprecated := false
	for i := range crd.Spec.Versions {
		if v := &crd.Spec.Versions[i]; v.Name == info.APIVersion {
			deprecated = v.Deprecated
			for _, text := range warnings(crd, v) {
				warning.AddWarning(req.Context(), "", text)
			}
		}
	}
	h, err := s.handler(info, b)
	if err != nil {
		fail(w, req, info, err)
		return
	}
	metrics.InstrumentHandlerFunc(strings.ToUpper(info.Verb), info.APIGroup, info.APIVersion, info.Resource, info.Subresource,
		metrics.CleanScope(info), metrics.APIServerComponent, deprecated, "", h)(w, req)
}

// handler returns the handler of the request's subresource and verb.
func (s *serving) handler(info *apirequest.RequestInfo, b *built) (http.HandlerFunc, error) {
	gr := schema.GroupResource{Group: info.APIGroup, Resource: info.Resource}
	version := b.Versions[info.APIVersion]
	e := version.Endpoints[info.Subresource]
	switch {
	case e == nil:
		return nil, apierrors.NewNotFound(gr, info.Name)
	case info.Verb == "get":
		return handlers.GetResource(e.Storage, e.Scope), nil
	case info.Subresource == "" && (info.Verb == "list" || info.Verb == "watch"):
		return handlers.ListResource(version.Storage, version.Storage, e.Scope, info.Verb == "watch", s.extensions.config.MinRequestTimeout), nil
	case b.serves(target{info.APIVersion, info.Subresource}, info.Verb):
		return nil, errChanging() // the verb was not served before, and is now
	}
	return nil, apierrors.NewMethodNotSupported(gr, info.Verb)
}
