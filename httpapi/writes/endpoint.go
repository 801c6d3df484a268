package writes

import (
	"context"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/endpoints/handlers"
	"k8s.io/apiserver/pkg/endpoints/handlers/negotiation"
	"k8s.io/apiserver/pkg/features"
	"k8s.io/apiserver/pkg/registry/rest"
	utilfeature "k8s.io/apiserver/pkg/util/feature"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/larder-io/larder/httpapi/apimetrics"
	"github.com/larder-io/larder/httpapi/managedfields"
	"github.com/larder-io/larder/httpapi/patches"
	"github.com/larder-io/larder/internal/registry"
)

// Config configures an [Endpoint].
type Config struct {
	Endpoint *registry.Endpoint

	// Scope has the serializer, converters, field manager, kind and names of the endpoint. It is
	// upstream's type, used as a plain struct.
	Scope *handlers.RequestScope

	// Admission is the admission chain; nil admits everything.
	Admission admission.Interface

	// ManagedFields computes managedFields, except those of an apply: Scope.FieldManager does.
	ManagedFields *managedfields.Cache

	// Life says whether the version is deprecated. Warnings are sent with every response.
	Life     apimetrics.Lifecycle
	Warnings []string

	// Unrouted means that upstream serves the endpoint without go-restful, as it serves custom resources. Then the
	// endpoint itself rejects unsupported media types, and its messages differ from go-restful's.
	Unrouted bool

	// Converts means that a webhook converts objects.
	Converts bool
}

// Endpoint serves the writes of one resource or subresource in one API version. It is immutable and
// safe for concurrent use.
type Endpoint struct {
	Config

	view    *registry.View    // encodes the objects in responses; nil if there is none
	creater rest.NamedCreater // nil if the storage does not create
	named   bool              // the path names the created object
	updater rest.Updater
	patcher rest.Patcher
	deleter rest.GracefulDeleter
	cleaner rest.CollectionDeleter

	chain    admission.Interface         // Admission with its audit annotations; nil if Admission is
	mutating admission.MutationInterface // chain; nil if it does not mutate
	produces []string                    // the media types of responses
	consumes []string                    // the content types of patches
	patches  patches.Target
}

// New returns an endpoint. The storage in config decides which verbs it serves.
func New(config Config) *Endpoint {
	e := &Endpoint{Config: config, view: viewOf(config.Endpoint), chain: admission.WithAudit(config.Admission)}
	e.mutating, _ = e.chain.(admission.MutationInterface)
	storage := config.Endpoint.Storage
	if s, ok := storage.(rest.NamedCreater); ok {
		e.creater, e.named = s, true
	} else if s, ok := storage.(rest.Creater); ok {
		e.creater = unnamed{s}
	}
	e.updater, _ = storage.(rest.Updater)
	e.patcher, _ = storage.(rest.Patcher)
	e.deleter, _ = storage.(rest.GracefulDeleter)
	e.cleaner, _ = storage.(rest.CollectionDeleter)
	e.produces, _ = negotiation.MediaTypesForSerializer(config.Scope.Serializer)
	e.consumes = patchTypes(!config.Unrouted)
	if e.patcher != nil {
		e.patches = patches.NewTarget(config.Scope, e.patcher.New)
	}
	return e
}

// viewOf returns the view of the objects that writes of e return, or nil. Some subresources return the
// object of their parent.
func viewOf(e *registry.Endpoint) *registry.View {
	if e.View == nil && e.Parent != nil && e.Parent.GVK == e.GVK {
		return e.Parent.View
	}
	return e.View
}

// Serves reports whether the endpoint serves a verb of RequestInfo.
func (e *Endpoint) Serves(verb string) bool {
	switch verb {
	case "create":
		return e.creater != nil
	case "update":
		return e.updater != nil
	case "patch":
		return e.patcher != nil
	case "delete":
		return e.deleter != nil
	case "deletecollection":
		return e.cleaner != nil
	}
	return false
}

// patchTypes returns the content types of patches. Strategic merge patches need a Go type, so custom
// resources do not accept them.
func patchTypes(strategic bool) []string {
	list := []string{string(types.JSONPatchType), string(types.MergePatchType)}
	if strategic {
		list = append(list, string(types.StrategicMergePatchType))
	}
	list = append(list, string(types.ApplyYAMLPatchType))
	if utilfeature.DefaultFeatureGate.Enabled(features.CBORServingAndStorage) {
		list = append(list, string(types.ApplyCBORPatchType))
	}
	return list
}

// unnamed adapts a storage whose objects the path does not name.
type unnamed struct{ rest.Creater }

func (u unnamed) Create(ctx context.Context, _ string, obj runtime.Object, validate rest.ValidateObjectFunc, options *metav1.CreateOptions) (runtime.Object, error) {
	return u.Creater.Create(ctx, obj, validate, options)
}
