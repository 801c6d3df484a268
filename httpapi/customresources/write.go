package customresources

import (
	"context"
	"errors"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"k8s.io/apiextensions-apiserver/pkg/apihelpers"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/endpoints/handlers"
	"k8s.io/apiserver/pkg/registry/rest"

	"github.com/larder-io/larder/httpapi/apimetrics"
	"github.com/larder-io/larder/httpapi/customresources/versions"
	"github.com/larder-io/larder/httpapi/exchange"
	"github.com/larder-io/larder/httpapi/writes"
	"github.com/larder-io/larder/internal/registry"
)

// built is what the first write of a generation builds: the storages and scopes of its versions,
// and the endpoints that write.
type built struct {
	*versions.Set
	endpoints map[target]*writes.Endpoint
}

// target is what a request for a custom resource is for.
type target struct{ version, subresource string }

// part is the storage of a subresource.
type part struct{ rest.Patcher }

// Destroy implements rest.Storage: the storage of the resource itself has all that there is.
func (part) Destroy() {}

// itemStorage is a storage whose objects are read and changed.
type itemStorage interface {
	rest.Storage
	rest.Patcher
}

// endpointOf returns the storage and the scope of a subresource, nil if the version has none.
func endpointOf(v *versions.Version, subresource string) (itemStorage, *handlers.RequestScope) {
	switch {
	case subresource == "":
		return v.Storage.CustomResource, v.Scope
	case subresource == "status" && v.Status != nil:
		return part{v.Storage.Status}, v.Status
	case subresource == "scale" && v.Scale != nil:
		return part{v.Storage.Scale}, v.Scale
	}
	return nil, nil
}

// newBuilt returns what is built for g, which serves s, with the endpoints of set.
func (s *serving) newBuilt(g *generation, set *versions.Set) *built {
	b := &built{set, make(map[target]*writes.Endpoint)}
	definition, admit := s.definition.Load(), s.extensions.config.Admission
	for i := range definition.Spec.Versions {
		v := &definition.Spec.Versions[i]
		if !v.Served {
			continue
		}
		for _, subresource := range []string{"", "status", "scale"} {
			storage, scope := endpointOf(set.Versions[v.Name], subresource)
			if storage == nil {
				continue
			}
			own, view := admit, func() *registry.View { return g.readable[v.Name].View }
			var monitors *apimetrics.Monitors
			manager := set.Versions[v.Name].Updates
			switch subresource {
			case "":
				own, monitors = creates{admit, s}, s.extensions.monitors.Of(scope.Resource)
			case "status":
				manager = set.Versions[v.Name].StatusUpdates
			case "scale":
				view, manager = nil, nil
			}
			b.endpoints[target{v.Name, subresource}] = writes.New(writes.Config{
				Endpoint: &registry.Endpoint{
					GVR: scope.Resource, Subresource: subresource, GVK: scope.Kind,
					Namespaced: definition.Spec.Scope == apiextensionsv1.NamespaceScoped, Storage: storage,
				},
				View: view, Scope: scope, Admission: own, PatchTypes: writes.PatchTypes(false), Unrouted: true,
				Life: apimetrics.Lifecycle{Deprecated: v.Deprecated}, Warnings: warnings(definition, v), Monitors: monitors, Manager: manager,
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

// Write serves a write of a custom resource and reports whether it has. If it has not, there is no such
// resource now. Attributes are those of the span of the write.
func (e *Extensions) Write(x *exchange.Exchange, attributes func() []attribute.KeyValue) bool {
	gr := schema.GroupResource{Group: x.Group, Resource: x.Resource}
	for {
		s := e.servings.Load().of(gr)
		if s == nil || !s.offers(x.Version) || e.builtIn.Has(x.Group) || !s.inScope(x.Verb, x.Namespace) {
			return false
		}
		served, err := e.write(x, s, attributes)
		if err == nil || !errors.Is(err, errRetired) {
			return served // ServeHTTP says what is wrong
		}
		// The definition has changed since, or this server is shutting down.
		ctx, cancel := x.Bounded()
		replaced := e.awaitReplaced(ctx, gr, s)
		cancel()
		if !replaced {
			x.Fail(errChanging())
			return true
		}
	}
}

// write lets the generation of s serve a write, and reports whether it has. If it has not, or
// returns an error, nothing is answered; errRetired says that the definition has changed.
func (e *Extensions) write(x *exchange.Exchange, s *serving, attributes func() []attribute.KeyValue) (bool, error) {
	g, err := s.get()
	if err != nil {
		return false, err
	}
	if !g.acquire() {
		return false, errRetired
	}
	defer g.release()
	b, err := g.built()
	if err != nil {
		return false, err
	}
	t := target{x.Version, x.Subresource}
	if !b.serves(t, x.Verb) {
		return false, nil
	}
	if x.Verb == "create" || x.Verb == "patch" {
		defer s.creates.begin()()
		// Whoever waits for creates either waits for this one, or has seen before that s, if it
		// still serves the resource, refuses them.
		if e.servings.Load().of(schema.GroupResource{Group: x.Group, Resource: x.Resource}) != s {
			return false, errRetired
		}
	}
	if x.Verb == "create" {
		ctx, cancel := x.Bounded()
		awaitOthers(ctx, s.definition.Load())
		cancel()
	}
	b.endpoints[t].Serve(x, attributes)
	return true, nil
}

// othersCatchUp is how long after a definition is established no object is created, so that other
// servers of the cluster have seen it, too, before a client reads the object from them.
const othersCatchUp = 2 * time.Second

// awaitOthers waits that long if definition was established within that time.
func awaitOthers(ctx context.Context, definition *apiextensionsv1.CustomResourceDefinition) {
	established := apihelpers.FindCRDCondition(definition, apiextensionsv1.Established)
	if established == nil || time.Since(established.LastTransitionTime.Time) >= othersCatchUp {
		return
	}
	select {
	case <-time.After(othersCatchUp):
	case <-ctx.Done():
	}
}

// creates is the admission of what may create objects: none is created any more once the
// definition is being deleted.
type creates struct {
	admission.Interface // may be nil
	serving             *serving
}

var (
	_ admission.MutationInterface   = creates{}
	_ admission.ValidationInterface = creates{}
)

// Handles implements admission.Interface.
func (c creates) Handles(operation admission.Operation) bool {
	return operation == admission.Create || c.Interface != nil && c.Interface.Handles(operation)
}

// Admit implements admission.MutationInterface.
func (c creates) Admit(ctx context.Context, a admission.Attributes, o admission.ObjectInterfaces) error {
	if a.GetOperation() == admission.Create && apihelpers.IsCRDConditionTrue(c.serving.definition.Load(), apiextensionsv1.Terminating) {
		return apierrors.NewForbidden(a.GetResource().GroupResource(), a.GetName(), errors.New("create not allowed while custom resource definition is terminating"))
	}
	if inner, ok := c.Interface.(admission.MutationInterface); ok && inner.Handles(a.GetOperation()) {
		return inner.Admit(ctx, a, o)
	}
	return nil
}

// Validate implements admission.ValidationInterface. What was admitted before the definition went is
// created: whoever deletes its objects waits for that.
func (c creates) Validate(ctx context.Context, a admission.Attributes, o admission.ObjectInterfaces) error {
	if inner, ok := c.Interface.(admission.ValidationInterface); ok && inner.Handles(a.GetOperation()) {
		return inner.Validate(ctx, a, o)
	}
	return nil
}
