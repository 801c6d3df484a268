package extension

import (
	"context"
	"errors"
	"mime"
	"net/http"
	"strings"
	"time"

	"k8s.io/apiextensions-apiserver/pkg/apihelpers"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/endpoints/filters"
	"k8s.io/apiserver/pkg/endpoints/handlers"
	"k8s.io/apiserver/pkg/endpoints/handlers/negotiation"
	"k8s.io/apiserver/pkg/endpoints/metrics"
	apirequest "k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/features"
	"k8s.io/apiserver/pkg/registry/rest"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	"k8s.io/apiserver/pkg/warning"

	"github.com/larder-io/larder/httpapi/patches"
	"github.com/larder-io/larder/internal/extension/versions"
)

// call is a request for a custom resource that upstream's handlers answer.
type call struct {
	info    *apirequest.RequestInfo
	serving *serving
	version *versions.Version
}

// inScope reports whether the request's path is one of the scope of the definition: only lists
// and watches of what is in namespaces may go without one.
func (s *serving) inScope(info *apirequest.RequestInfo) bool {
	namespaced := s.definition.Load().Spec.Scope == apiextensionsv1.NamespaceScoped
	return namespaced == (info.Namespace != "") || namespaced && (info.Verb == "list" || info.Verb == "watch")
}

// serve has upstream's handler answer a request. A watch ends when g is retired.
func (g *generation) serve(w http.ResponseWriter, req *http.Request, c *call) {
	if c.info.Verb == "watch" {
		ctx, cancel := context.WithCancel(req.Context())
		defer cancel()
		defer context.AfterFunc(g.ending, cancel)()
		req = req.WithContext(ctx)
	}
	if panics(req, c.info) {
		err := negotiation.NewUnsupportedMediaTypeError([]string{runtime.ContentTypeJSON, runtime.ContentTypeYAML})
		fail(w, req, c.info, err)
		return
	}
	filters.WithWarningRecorder(patches.Bounded(c)).ServeHTTP(w, patches.ReadOnce(req))
}

// panics reports whether upstream's handler would panic: it accepts the media type of
// protobuf, in which custom resources have no encoding, and has no strict decoder for it,
// but looks for one unless fieldValidation is Ignore.
func panics(req *http.Request, info *apirequest.RequestInfo) bool {
	if info.Verb != "create" && info.Verb != "update" || info.Subresource == "scale" {
		return false
	}
	kind, _, err := mime.ParseMediaType(req.Header.Get("Content-Type"))
	return err == nil && kind == runtime.ContentTypeProtobuf && req.URL.Query().Get("fieldValidation") != metav1.FieldValidationIgnore
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
	h, err := c.handler(req.Context(), definition)
	if err != nil {
		fail(w, req, c.info, err)
		return
	}
	metrics.InstrumentHandlerFunc(strings.ToUpper(c.info.Verb), c.info.APIGroup, c.info.APIVersion, c.info.Resource, c.info.Subresource,
		metrics.CleanScope(c.info), metrics.APIServerComponent, deprecated, "", h)(w, req)
}

// handler returns the handler of the request's subresource and verb. Handlers of writes are made
// for each request, because each request wraps the admission of its handler once more.
func (c *call) handler(ctx context.Context, definition *apiextensionsv1.CustomResourceDefinition) (http.HandlerFunc, error) {
	gr := schema.GroupResource{Group: c.info.APIGroup, Resource: c.info.Resource}
	var h http.HandlerFunc
	switch v := c.version; {
	case c.info.Subresource == "":
		h = c.main(ctx, definition)
	case c.info.Subresource == "status" && v.Status != nil:
		h = c.item(v.Storage.Status, v.Status, c.admission())
	case c.info.Subresource == "scale" && v.Scale != nil:
		h = c.item(v.Storage.Scale, v.Scale, c.admission())
	default:
		return nil, apierrors.NewNotFound(gr, c.info.Name)
	}
	if h == nil {
		return nil, apierrors.NewMethodNotSupported(gr, c.info.Verb)
	}
	return h, nil
}

// main returns the handler of a verb of the resource itself, nil if it is not supported.
func (c *call) main(ctx context.Context, definition *apiextensionsv1.CustomResourceDefinition) http.HandlerFunc {
	storage, scope, config := c.version.Storage.CustomResource, c.version.Scope, &c.serving.extensions.config
	switch c.info.Verb {
	case "list", "watch":
		return handlers.ListResource(storage, storage, scope, c.info.Verb == "watch", config.MinRequestTimeout)
	case "create":
		awaitOthers(ctx, definition)
		return handlers.CreateResource(storage, scope, c.creating(definition))
	case "delete":
		return handlers.DeleteResource(storage, true, scope, c.admission())
	case "deletecollection":
		return handlers.DeleteCollection(storage, true, scope, c.admission())
	}
	return c.item(storage, scope, c.creating(definition))
}

// item returns the handler of a verb that a subresource has, too, nil for others. admit admits
// patches, which may create; updates create nothing.
func (c *call) item(storage rest.Patcher, scope *handlers.RequestScope, admit admission.Interface) http.HandlerFunc {
	switch c.info.Verb {
	case "get":
		return handlers.GetResource(storage, scope)
	case "update":
		return handlers.UpdateResource(storage, scope, c.admission())
	case "patch":
		return handlers.PatchResource(storage, scope, admit, patchTypes())
	}
	return nil
}

func (c *call) admission() admission.Interface {
	return patches.AskedFor(c.serving.extensions.config.Admission)
}

// creating returns the admission of requests that may create objects.
func (c *call) creating(definition *apiextensionsv1.CustomResourceDefinition) admission.Interface {
	if apihelpers.IsCRDConditionTrue(definition, apiextensionsv1.Terminating) {
		return noCreates{c.admission()}
	}
	return c.admission()
}

// patchTypes lists the types of patches that custom resources take.
func patchTypes() []string {
	list := []string{string(types.JSONPatchType), string(types.MergePatchType), string(types.ApplyYAMLPatchType)}
	if utilfeature.DefaultFeatureGate.Enabled(features.CBORServingAndStorage) {
		list = append(list, string(types.ApplyCBORPatchType))
	}
	return list
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

// noCreates is the admission of a definition that is being deleted: it refuses to create objects.
type noCreates struct{ admission.Interface }

var (
	_ admission.MutationInterface   = noCreates{}
	_ admission.ValidationInterface = noCreates{}
)

// Handles implements admission.Interface.
func (n noCreates) Handles(operation admission.Operation) bool {
	return operation == admission.Create || n.Interface != nil && n.Interface.Handles(operation)
}

// Admit implements admission.MutationInterface.
func (n noCreates) Admit(ctx context.Context, a admission.Attributes, o admission.ObjectInterfaces) error {
	if err := refuseCreate(a); err != nil {
		return err
	}
	if inner, ok := n.Interface.(admission.MutationInterface); ok {
		return inner.Admit(ctx, a, o)
	}
	return nil
}

// Validate implements admission.ValidationInterface.
func (n noCreates) Validate(ctx context.Context, a admission.Attributes, o admission.ObjectInterfaces) error {
	if err := refuseCreate(a); err != nil {
		return err
	}
	if inner, ok := n.Interface.(admission.ValidationInterface); ok {
		return inner.Validate(ctx, a, o)
	}
	return nil
}

func refuseCreate(a admission.Attributes) error {
	if a.GetOperation() != admission.Create {
		return nil
	}
	return apierrors.NewForbidden(a.GetResource().GroupResource(), a.GetName(), errors.New("create not allowed while custom resource definition is terminating"))
}
