package customresources_test

import (
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apiextensionsserver "k8s.io/apiextensions-apiserver/pkg/apiserver"
	informers "k8s.io/apiextensions-apiserver/pkg/client/informers/externalversions/apiextensions/v1"
	listers "k8s.io/apiextensions-apiserver/pkg/client/listers/apiextensions/v1"
	"k8s.io/apiextensions-apiserver/pkg/controller/finalizer"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizerfactory"
	"k8s.io/apiserver/pkg/endpoints/filters"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/client-go/tools/cache"

	"github.com/larder-io/larder/internal/admission"
	"github.com/larder-io/larder/internal/registry"
	"github.com/larder-io/larder/internal/registry/encoding"
	"github.com/larder-io/larder/internal/registry/registrytest"
	"github.com/larder-io/larder/kv/kvtest"
)

// upstreamHandler is upstream's complete handler for one CRD, with its own store.
type upstreamHandler struct {
	http.Handler
	crd *apiextensionsv1.CustomResourceDefinition
}

// newUpstreamHandler runs upstream's handler with the schemas of s until the test ends.
func newUpstreamHandler(t *testing.T, s *server, crd *apiextensionsv1.CustomResourceDefinition) *upstreamHandler {
	t.Helper()
	back := registrytest.New(t, nil)
	webhooks, err := admission.NewWebhooks(admission.NewServiceResolver(back.Registry, false), back.ClientConfig, nil, nil)
	must(t, err)
	schemas, err := s.http.Schemas()
	must(t, err)
	crd = crd.DeepCopy()
	for i := range crd.Status.Conditions {
		crd.Status.Conditions[i].LastTransitionTime = metav1.Time{} // the handler does not delay creations
	}
	made := &upstreamHandler{crd: crd}
	var handler interface {
		http.Handler
		GetCustomResourceListerCollectionDeleter(*apiextensionsv1.CustomResourceDefinition) (finalizer.ListerCollectionDeleter, error)
	}
	spec, names := &crd.Spec, &crd.Status.AcceptedNames
	config := registry.CustomResourceConfig{CustomConfig: encoding.CustomConfig{
		GroupResource: schema.GroupResource{Group: spec.Group, Resource: names.Plural}, Versions: len(spec.Versions),
		Webhook: spec.Conversion.Strategy == apiextensionsv1.WebhookConverter, Namespaced: spec.Scope == apiextensionsv1.NamespaceScoped,
		Make: func() error { return nil },
	}}
	for _, v := range spec.Versions {
		if v.Served || v.Storage {
			config.Kinds = append(config.Kinds, registry.CustomKind{GroupVersionKind: schema.GroupVersionKind{Group: spec.Group, Version: v.Name, Kind: names.Kind}, ListKind: names.ListKind})
		}
	}
	custom, err := back.Registry.NewCustomResource(config)
	must(t, err)
	handler, err = apiextensionsserver.NewCustomResourceDefinitionHandler(nil, nil, made, http.NotFoundHandler(), custom, nil, nil, webhooks, webhooks.Auth, 1,
		authorizerfactory.NewAlwaysAllowAuthorizer(), time.Minute, time.Minute, schemas, 3<<20)
	must(t, err)
	_, err = handler.GetCustomResourceListerCollectionDeleter(crd) // builds the storages
	must(t, err)
	back.Start(t)
	kvtest.RunUntilEnd(t, custom.Run)
	must(t, custom.WaitReady(t.Context()))
	admin := &user.DefaultInfo{Name: "admin", Groups: []string{user.SystemPrivilegedGroup}}
	withUser := http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		handler.ServeHTTP(w, req.WithContext(request.WithUser(req.Context(), admin)))
	})
	made.Handler = filters.WithRequestReceivedTimestamp(filters.WithRequestInfo(filters.WithAuditInit(filters.WithWarningRecorder(withUser)), &request.RequestInfoFactory{
		APIPrefixes: sets.NewString("api", "apis"), GrouplessAPIPrefixes: sets.NewString("api"),
	}))
	return made
}

// send sends a request to upstream's handler.
func (s *upstreamHandler) send(t *testing.T, req *http.Request) response {
	t.Helper()
	w := httptest.NewRecorder()
	s.ServeHTTP(w, req)
	return response{w.Code, w.Result().Header, w.Body.String()}
}

// Informer implements informers.CustomResourceDefinitionInformer.
func (s *upstreamHandler) Informer() cache.SharedIndexInformer { return noEvents{} }

// Lister implements informers.CustomResourceDefinitionInformer.
func (s *upstreamHandler) Lister() listers.CustomResourceDefinitionLister { return s }

// List implements listers.CustomResourceDefinitionLister.
func (s *upstreamHandler) List(labels.Selector) ([]*apiextensionsv1.CustomResourceDefinition, error) {
	return []*apiextensionsv1.CustomResourceDefinition{s.crd}, nil
}

// Get implements listers.CustomResourceDefinitionLister.
func (s *upstreamHandler) Get(name string) (*apiextensionsv1.CustomResourceDefinition, error) {
	if s.crd.Name == name {
		return s.crd, nil
	}
	return nil, apierrors.NewNotFound(apiextensionsv1.Resource("customresourcedefinitions"), name)
}

var _ informers.CustomResourceDefinitionInformer = (*upstreamHandler)(nil)

// noEvents is an informer that never calls its event handlers.
type noEvents struct{ cache.SharedIndexInformer }

// AddEventHandler implements cache.SharedInformer.
func (noEvents) AddEventHandler(cache.ResourceEventHandler) (cache.ResourceEventHandlerRegistration, error) {
	return nil, nil
}
