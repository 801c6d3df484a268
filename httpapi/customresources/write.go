package customresources

import (
	"bytes"
	"context"
	"errors"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"k8s.io/apiextensions-apiserver/pkg/apihelpers"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/admission"

	"github.com/larder-io/larder/httpapi/apimetrics"
	"github.com/larder-io/larder/httpapi/customresources/versions"
	"github.com/larder-io/larder/httpapi/exchange"
	"github.com/larder-io/larder/httpapi/managedfields"
	"github.com/larder-io/larder/httpapi/writes"
	"github.com/larder-io/larder/internal/registry"
)

// built holds the storages and scopes of the versions of a backend, and the endpoints that serve its
// writes.
type built struct {
	*versions.Set
	endpoints map[target]*writes.Endpoint
}

// target is the version and the subresource of a request.
type target struct{ version, subresource string }

// newWriters adds the endpoints of g, which serves s, to set.
func (s *serving) newWriters(g *backend, set *versions.Set) *built {
	b := &built{set, make(map[target]*writes.Endpoint)}
	crd, admit := s.crd.Load(), s.extensions.config.Admission
	for i := range crd.Spec.Versions {
		v := &crd.Spec.Versions[i]
		if !v.Served {
			continue
		}
		for subresource, e := range set.Versions[v.Name].Endpoints {
			own, view := admit, g.readable[v.Name].View
			switch subresource {
			case "":
				own = creates{admit, s}
			case "scale":
				view = nil
			}
			b.endpoints[target{v.Name, subresource}] = writes.New(writes.Config{
				Endpoint: &registry.Endpoint{
					GVR: e.Scope.Resource, Subresource: subresource, GVK: e.Scope.Kind,
					Namespaced: crd.Spec.Scope == apiextensionsv1.NamespaceScoped, Storage: e.Storage, View: view,
				},
				Scope: e.Scope, Admission: own, ManagedFields: managedfields.Uncached(e.Updates, e.Scope.Creater, e.Scope.Kind),
				Life: apimetrics.Lifecycle{Deprecated: v.Deprecated}, Warnings: warnings(crd, v), Unrouted: true, Converts: hasWebhook(crd),
			})
		}
	}
	return b
}

// serves reports whether the endpoint of t serves a verb that writes.
func (b *built) serves(t target, verb string) bool {
	endpoint := b.endpoints[t]
	return endpoint != nil && endpoint.Serves(verb)
}

func errChanging() error {
	return apierrors.NewServiceUnavailable("the definition of the resource is changing, please try again")
}

// Write serves a write of a custom resource and reports whether it has. If not, there is no such
// resource now, or it cannot be served. attributes returns the attributes of the write's tracing span.
func (e *Extensions) Write(x *exchange.Exchange, attributes func() []attribute.KeyValue) (served bool) {
	if e.builtIn.Has(x.Group) {
		return false
	}
	gr := schema.GroupResource{Group: x.Group, Resource: x.Resource}
	_, err := e.use(x.Base(), gr, x.Version, func(s *serving, _ *backend, b *built) (err error) {
		served, err = e.write(x, s, b, attributes)
		return err
	})
	if errors.Is(err, errRetired) {
		x.Fail(errChanging())
		return true
	}
	return served // ServeHTTP responds with other errors
}

// write serves a write by an endpoint of b and reports whether it has. It returns errRetired if the CRD has changed.
func (e *Extensions) write(x *exchange.Exchange, s *serving, b *built, attributes func() []attribute.KeyValue) (served bool, err error) {
	t := target{x.Version, x.Subresource}
	if !b.serves(t, x.Verb) || !s.inScope(x.Verb, x.Namespace) {
		return false, nil
	}
	if x.Verb == "create" || x.Verb == "patch" && x.Subresource == "" && bytes.HasPrefix(x.Peek("Content-Type"), []byte("application/apply-patch")) {
		if s.creates.TryAcquire(1) { // else the finalizer is waiting, and s rejects creates
			defer s.creates.Release(1)
		}
		// The finalizer either waits for this create, or has come before. Then s has already seen the
		// deletion, and rejects creates, or another serving has replaced s.
		if e.servings.Load().of(schema.GroupResource{Group: x.Group, Resource: x.Resource}) != s {
			return false, errRetired
		}
		if x.Verb == "create" && !e.config.Alone {
			awaitOthers(x.Base(), s.crd.Load())
		}
	}
	b.endpoints[t].Serve(x, attributes)
	return true, nil
}

// othersCatchUp is the time after a CRD is established in which other servers of the cluster see it.
// Creates wait, so that a client can read the object from any of them.
const othersCatchUp = 2 * time.Second

// awaitOthers waits for othersCatchUp if crd was established within that time.
func awaitOthers(ctx context.Context, crd *apiextensionsv1.CustomResourceDefinition) {
	established := apihelpers.FindCRDCondition(crd, apiextensionsv1.Established)
	if established == nil || time.Since(established.LastTransitionTime.Time) >= othersCatchUp {
		return
	}
	select {
	case <-time.After(othersCatchUp):
	case <-ctx.Done():
	}
}

// creates is the admission of creates: it rejects them while the CRD is being deleted.
type creates struct {
	admission.Interface // may be nil
	serving             *serving
}

var (
	_ admission.MutationInterface   = creates{}
	_ admission.ValidationInterface = creates{}
)

func (c creates) Handles(operation admission.Operation) bool {
	return operation == admission.Create || c.Interface != nil && c.Interface.Handles(operation)
}

func (c creates) Admit(ctx context.Context, a admission.Attributes, o admission.ObjectInterfaces) error {
	if a.GetOperation() == admission.Create && apihelpers.IsCRDConditionTrue(c.serving.crd.Load(), apiextensionsv1.Terminating) {
		return apierrors.NewForbidden(a.GetResource().GroupResource(), a.GetName(), errors.New("create not allowed while custom resource definition is terminating"))
	}
	if inner, ok := c.Interface.(admission.MutationInterface); ok && inner.Handles(a.GetOperation()) {
		return inner.Admit(ctx, a, o)
	}
	return nil
}

// Validate implements admission.ValidationInterface. A create that Admit has admitted continues: the finalizer waits
// for it.
func (c creates) Validate(ctx context.Context, a admission.Attributes, o admission.ObjectInterfaces) error {
	if inner, ok := c.Interface.(admission.ValidationInterface); ok && inner.Handles(a.GetOperation()) {
		return inner.Validate(ctx, a, o)
	}
	return nil
}
