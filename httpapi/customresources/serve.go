package customresources

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"net/http"
	"slices"
	"time"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apiextensionsserver "k8s.io/apiextensions-apiserver/pkg/apiserver"
	"k8s.io/apiextensions-apiserver/pkg/controller/finalizer"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/endpoints/handlers/responsewriters"
	apirequest "k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/util/notfoundhandler"

	"github.com/larder-io/larder/httpapi/apimetrics"
	"github.com/larder-io/larder/httpapi/reads"
	"github.com/larder-io/larder/httpapi/request"
	"github.com/larder-io/larder/internal/registry/storage"
)

// catchUp bounds how long a request waits for the informer to see a definition that the
// store has: it usually takes milliseconds.
const catchUp = 10 * time.Second

// Custom returns the custom resource that the request is for, nil if there is none now. The caller
// calls done when it has answered the request.
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

// AllMonitors returns the monitors of all custom resources that this process has served.
func (e *Extensions) AllMonitors() iter.Seq[*apimetrics.Monitors] { return e.monitors.AllMonitors() }

// Groups lists the groups of the resources, each once.
func (e *Extensions) Groups() []metav1.APIGroup {
	return slices.DeleteFunc(e.discovery.groups(), func(g metav1.APIGroup) bool { return e.builtIn.Has(g.Name) })
}

// ServeHTTP implements http.Handler: upstream's handlers answer the reads that are not answered
// from encoded bytes, and here is said what is wrong with other requests.
func (e *Extensions) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	info, ok := apirequest.RequestInfoFrom(req.Context())
	if !ok || !info.IsResourceRequest {
		e.discovery.serve(w, req, e.unknown())
		return
	}
	for {
		gr := schema.GroupResource{Group: info.APIGroup, Resource: info.Resource}
		s := e.servings.Load().of(gr)
		if s == nil || !s.offers(info.APIVersion) {
			e.unknown().ServeHTTP(w, req)
			return
		}
		err := e.serve(w, req, info, s)
		if err == nil {
			return
		}
		if !errors.Is(err, errRetired) {
			e.config.Logger.Error("custom resource cannot be served", "resource", info.Resource, "group", info.APIGroup, "error", err)
			fail(w, req, info, apierrors.NewInternalError(errors.New("error resolving resource")))
			return
		}
		// The definition has changed since, or this server is shutting down.
		if !e.awaitReplaced(req.Context(), gr, s) {
			fail(w, req, info, errChanging())
			return
		}
	}
}

// serve lets the generation of s answer a request. If it returns an error, nothing is answered;
// errRetired says that the definition has changed.
func (e *Extensions) serve(w http.ResponseWriter, req *http.Request, info *apirequest.RequestInfo, s *serving) error {
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
	version := b.Versions[info.APIVersion]
	if version == nil || !s.inScope(info.Verb, info.Namespace) {
		e.unknown().ServeHTTP(w, req)
		return nil
	}
	g.serve(w, req, &call{info: info, serving: s, version: version, writes: b.serves(target{info.APIVersion, info.Subresource}, info.Verb)})
	return nil
}

func fail(w http.ResponseWriter, req *http.Request, info *apirequest.RequestInfo, err error) {
	gv := schema.GroupVersion{Group: info.APIGroup, Version: info.APIVersion}
	responsewriters.ErrorNegotiated(err, apiextensionsserver.Codecs, gv, w, req)
}

// unknown answers requests for resources that this server does not serve.
func (e *Extensions) unknown() http.Handler {
	return notfoundhandler.New(apiextensionsserver.Codecs, func(context.Context) bool { return e.isSynced() && e.config.Complete() })
}

// Await waits until an unknown resource is known, if the store has its CRD, and reports whether it is
// known now. If the informer does not know the resource, Await looks in
// the store for its definition, and waits for the informer to see it.
func (e *Extensions) Await(ctx context.Context, r *request.Request) bool {
	gr := schema.GroupResource{Group: r.Group, Resource: r.Resource}
	if s := e.servings.Load().of(gr); s != nil && s.offers(r.Version) {
		return true // perhaps only since the caller looked
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

func definitionsResource() schema.GroupVersionResource {
	return apiextensionsv1.SchemeGroupVersion.WithResource("customresourcedefinitions")
}

// off reports whether definitions are not served: there are no custom resources then.
func (e *Extensions) off() bool { return e.config.Registry.Endpoint(definitionsResource(), "") == nil }

// stored returns the revision of the definition of gr in the store, and whether there is
// one.
func (e *Extensions) stored(ctx context.Context, gr schema.GroupResource) (int64, bool) {
	if e.off() {
		return 0, false
	}
	endpoint := e.config.Registry.Endpoint(definitionsResource(), "")
	o, err := endpoint.View.Resource.Get(ctx, storage.Scope{Name: gr.Resource + "." + gr.Group}, "")
	if err != nil {
		return 0, false
	}
	return o.Revision(), true
}

// awaitReplaced waits until another serving, or none, is in the place of s, and reports
// whether that is so.
func (e *Extensions) awaitReplaced(ctx context.Context, gr schema.GroupResource, s *serving) bool {
	bounded, cancel := context.WithTimeout(ctx, catchUp)
	defer cancel()
	return e.changes.until(bounded, func() bool {
		return e.servings.Load().of(gr) != s
	})
}

// GetCustomResourceListerCollectionDeleter implements finalizer.CRClientGetter. It returns once
// this server creates no more objects than the given state of the definition allows: none, if
// that says that the definition is being deleted. Otherwise an object of which the finalizer
// knows nothing could be created while it deletes, or after it, and be found by the next
// definition of that name.
func (e *Extensions) GetCustomResourceListerCollectionDeleter(definition *apiextensionsv1.CustomResourceDefinition) (finalizer.ListerCollectionDeleter, error) {
	s, err := e.settled(definition)
	if err != nil {
		return nil, err
	}
	g, err := s.get()
	if err != nil {
		return nil, err
	}
	b, err := g.built()
	if err != nil {
		return nil, err
	}
	return &guardedDeleter{ListerCollectionDeleter: b.Versions[b.Stored].Storage.CustomResource, serving: s, generation: g, since: time.Now()}, nil
}

// settled waits until definition, or a newer state of it, is what is served, and until the
// objects are created whose creation was allowed before.
func (e *Extensions) settled(definition *apiextensionsv1.CustomResourceDefinition) (*serving, error) {
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
		s = e.servings.Load().of(resourceOf(definition))
		return s == nil || s.definition.Load().UID != definition.UID || s.revision() >= revisionOf(definition)
	})
	switch {
	case !caughtUp:
		return nil, fmt.Errorf("extension: definition %s at %s is not served yet", definition.Name, definition.ResourceVersion)
	case s == nil || s.definition.Load().UID != definition.UID:
		return nil, apierrors.NewNotFound(apiextensionsv1.Resource("customresourcedefinitions"), definition.Name)
	}
	if err := s.creates.wait(ctx); err != nil {
		return nil, fmt.Errorf("extension: objects of %s are still being created: %w", definition.Name, err)
	}
	return s, nil
}
