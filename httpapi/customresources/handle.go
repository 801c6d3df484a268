package customresources

import (
	"context"
	"net/http"
	"strings"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/endpoints/filters"
	"k8s.io/apiserver/pkg/endpoints/handlers"
	"k8s.io/apiserver/pkg/endpoints/metrics"
	apirequest "k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/warning"

	"github.com/larder-io/larder/httpapi/customresources/versions"
)

// call is a request for a custom resource that upstream's handlers answer: a read that is not
// answered from encoded bytes, or what no endpoint serves.
type call struct {
	info    *apirequest.RequestInfo
	serving *serving
	version *versions.Version
	writes  bool // the endpoint serves the verb, which writes
}

// inScope reports whether a request of a verb, in a namespace or in none, is for the scope of the
// definition: only lists and watches of what is in namespaces may go without one.
func (s *serving) inScope(verb, namespace string) bool {
	namespaced := s.definition.Load().Spec.Scope == apiextensionsv1.NamespaceScoped
	return namespaced == (namespace != "") || namespaced && (verb == "list" || verb == "watch")
}

// serve has upstream's handler answer a request. A watch ends when g is retired.
func (g *generation) serve(w http.ResponseWriter, req *http.Request, c *call) {
	if c.info.Verb == "watch" {
		ctx, cancel := context.WithCancel(req.Context())
		defer cancel()
		defer context.AfterFunc(g.ending, cancel)()
		req = req.WithContext(ctx)
	}
	filters.WithWarningRecorder(c).ServeHTTP(w, req)
}

// ServeHTTP implements http.Handler.
func (c *call) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	definition := c.serving.definition.Load()
	deprecated := false
	for i := range definition.Spec.Versions {
		if v := &definition.Spec.Versions[i]; v.Name == c.info.APIVersion {
			deprecated = v.Deprecated
			for _, text := range warnings(definition, v) {
				warning.AddWarning(req.Context(), "", text)
			}
		}
	}
	h, err := c.handler()
	if err != nil {
		fail(w, req, c.info, err)
		return
	}
	metrics.InstrumentHandlerFunc(strings.ToUpper(c.info.Verb), c.info.APIGroup, c.info.APIVersion, c.info.Resource, c.info.Subresource,
		metrics.CleanScope(c.info), metrics.APIServerComponent, deprecated, "", h)(w, req)
}

// handler returns the handler of the request's subresource and verb.
func (c *call) handler() (http.HandlerFunc, error) {
	gr := schema.GroupResource{Group: c.info.APIGroup, Resource: c.info.Resource}
	storage, scope := endpointOf(c.version, c.info.Subresource)
	switch {
	case storage == nil:
		return nil, apierrors.NewNotFound(gr, c.info.Name)
	case c.info.Verb == "get":
		return handlers.GetResource(storage, scope), nil
	case c.info.Subresource == "" && (c.info.Verb == "list" || c.info.Verb == "watch"):
		main := c.version.Storage.CustomResource
		return handlers.ListResource(main, main, scope, c.info.Verb == "watch", c.serving.extensions.config.MinRequestTimeout), nil
	case c.writes:
		return nil, errChanging() // it was not served, and is now
	}
	return nil, apierrors.NewMethodNotSupported(gr, c.info.Verb)
}
