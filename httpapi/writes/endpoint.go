package writes

import (
	"context"
	"fmt"

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
	"github.com/larder-io/larder/httpapi/patches"
	"github.com/larder-io/larder/internal/registry"
	"github.com/larder-io/larder/internal/registry/fields"
)

// Config says how a resource or subresource is written in one API version.
type Config struct {
	Endpoint *registry.Endpoint

	// Scope is upstream's record of an endpoint: its serializer, converters and field manager,
	// its kind and its names. Only its data are used.
	Scope *handlers.RequestScope

	// Admission may be nil: everything is admitted.
	Admission admission.Interface

	// PatchTypes are the content types of patches that are taken. See [PatchTypes].
	PatchTypes []string

	// Creations and Updates make managedFields; nil leaves that to the field manager of Scope.
	Creations *fields.Creations
	Updates   *fields.Updates

	// Life says whether the version is deprecated, Warnings what every client is told.
	Life     apimetrics.Lifecycle
	Warnings []string

	// Monitors count most writes; nil has upstream's metrics count all.
	Monitors *apimetrics.Monitors

	// Unrouted says that upstream has no router in front of the endpoint: what a router refuses
	// by its headers, the endpoint refuses itself, with another text.
	Unrouted bool
}

// Endpoint writes one resource or subresource in one API version. It is immutable, and may be
// used by any number of goroutines.
type Endpoint struct {
	Config

	creater rest.NamedCreater // nil: it cannot be created
	named   bool              // what is created is named by the path
	updater rest.Updater
	patcher rest.Patcher
	deleter rest.GracefulDeleter
	cleaner rest.CollectionDeleter

	chain    admission.Interface         // Admission, which notes in the audit log what it says; may be nil
	mutating admission.MutationInterface // chain; nil if there is none
	produces []string                    // the media types of answers
	view     *registry.View              // by which answers are encoded; nil if none is of a stored object
	patches  patches.Target
}

// New returns the endpoint that config describes.
func New(config Config) *Endpoint {
	e := &Endpoint{Config: config, chain: admission.WithAudit(config.Admission)}
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
	e.view = viewOf(config.Endpoint)
	if e.patcher != nil {
		e.patches = patches.NewTarget(config.Scope, e.patcher.New)
	}
	return e
}

// viewOf returns the view of the objects that writes of e return; nil if there is none. Some
// subresources return the object that they are of.
func viewOf(e *registry.Endpoint) *registry.View {
	if e.View == nil && e.Parent != nil && e.Parent.GVK == e.GVK {
		return e.Parent.View
	}
	return e.View
}

// Serves reports whether the endpoint supports a verb, as [request.Request] has it.
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

// PatchTypes lists the content types that PATCH takes; strategic merge patches need Go types.
func PatchTypes(strategic bool) []string {
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

// unnamed creates what no path names.
type unnamed struct{ rest.Creater }

// Create implements rest.NamedCreater.
func (u unnamed) Create(ctx context.Context, _ string, obj runtime.Object, validate rest.ValidateObjectFunc, options *metav1.CreateOptions) (runtime.Object, error) {
	return u.Creater.Create(ctx, obj, validate, options)
}

// manage makes the managedFields of obj, which takes the place of live: nil if it is created.
func (e *Endpoint) manage(live, obj runtime.Object, manager string) (runtime.Object, error) {
	switch {
	case live == nil && e.Creations != nil:
		if err := e.Creations.Record(obj, manager); err != nil {
			return nil, fmt.Errorf("failed to create new object (Create for %v): %w", e.Scope.Kind, err)
		}
		return obj, nil
	case live == nil:
		empty, err := e.Scope.Creater.New(e.Scope.Kind)
		if err != nil {
			return nil, fmt.Errorf("failed to create new object (Create for %v): %w", e.Scope.Kind, err)
		}
		return e.Scope.FieldManager.UpdateNoErrors(empty, obj, manager), nil
	case e.Updates != nil:
		e.Updates.Record(live, obj, manager)
		return obj, nil
	}
	return e.Scope.FieldManager.UpdateNoErrors(live, obj, manager), nil
}
