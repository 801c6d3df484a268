package versions

import (
	"context"
	"sync"

	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	structuralschema "k8s.io/apiextensions-apiserver/pkg/apiserver/schema"
	"k8s.io/apiextensions-apiserver/pkg/registry/customresource"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/kube-openapi/pkg/validation/spec"

	"github.com/larder-io/larder/httpapi/crdvalidate"
)

// upstreamStrategy is upstream's strategy of custom resources, whose type is not exported.
type upstreamStrategy interface {
	rest.RESTCreateStrategy
	rest.RESTUpdateStrategy
}

// strategy is upstream's strategy of one version. If package crdvalidate finds an object valid, upstream
// checks only what the schema does not say.
type strategy struct {
	upstreamStrategy

	checks func() *checks // made by the first write
}

// checks validate the objects of a version. schema is nil if package crdvalidate cannot recognize valid
// objects. rest is upstream's strategy without the checks of the schema.
type checks struct {
	schema *crdvalidate.Schema
	rest   upstreamStrategy
}

// prove lets storage and its scale validate by checks. The status is not changed.
func prove(storage *customresource.REST, checks func() *checks) {
	upstream, ok := storage.UpdateStrategy.(upstreamStrategy)
	if !ok {
		return
	}
	own := &strategy{upstream, sync.OnceValue(checks)}
	storage.CreateStrategy, storage.UpdateStrategy = own, own
}

// checksOf returns the checks of a version, whose schema is given in two forms.
func checksOf(kind schema.GroupVersionKind, namespaced bool, openAPI *spec.Schema, structural *structuralschema.Structural, scale *apiextensions.CustomResourceSubresourceScale) *checks {
	c := &checks{schema: crdvalidate.New(openAPI)}
	if c.schema == nil {
		return c
	}
	if !asksForMore(structural) {
		structural = &structuralschema.Structural{}
	}
	c.rest = customresource.NewStrategy(nil, namespaced, kind, nil, nil, structural, nil, scale, nil)
	return c
}

// asksForMore reports whether a structural schema has constraints that OpenAPI validators ignore: embedded
// resources, keys of lists, and rules.
func asksForMore(s *structuralschema.Structural) bool {
	more := false
	visitor := structuralschema.Visitor{
		Structural: func(s *structuralschema.Structural) bool {
			more = more || s.XEmbeddedResource || s.XListType != nil || len(s.XListMapKeys) > 0 || len(s.XValidations) > 0
			return false
		},
		NestedValueValidation: func(v *structuralschema.NestedValueValidation) bool {
			more = more || len(v.XValidations) > 0
			return false
		},
	}
	visitor.Visit(s)
	return more
}

func (s *strategy) Validate(ctx context.Context, obj runtime.Object) field.ErrorList {
	return s.of(obj).Validate(ctx, obj)
}

func (s *strategy) ValidateUpdate(ctx context.Context, obj, old runtime.Object) field.ErrorList {
	return s.of(obj).ValidateUpdate(ctx, obj, old)
}

// of returns the strategy that validates obj.
func (s *strategy) of(obj runtime.Object) upstreamStrategy {
	if c := s.checks(); c.prove(obj) {
		return c.rest
	}
	return s.upstreamStrategy
}

// prove reports whether obj certainly satisfies its schema.
func (c *checks) prove(obj runtime.Object) bool {
	u, ok := obj.(*unstructured.Unstructured)
	return ok && c.schema != nil && c.schema.Valid(u.Object)
}
