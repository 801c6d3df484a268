package extension

import (
	"context"
	"sync"

	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	structuralschema "k8s.io/apiextensions-apiserver/pkg/apiserver/schema"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/validation"
	"k8s.io/apiextensions-apiserver/pkg/registry/customresource"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/registry/rest"

	"github.com/larder-io/larder/internal/registry/proof"
)

// upstreamStrategy is upstream's strategy of custom resources, whose type is not exported.
type upstreamStrategy interface {
	rest.RESTCreateStrategy
	rest.RESTUpdateStrategy
}

// strategy is upstream's strategy of one version. Of an object that is proved to be as its
// schema wants, it has upstream look at the rest only.
type strategy struct {
	upstreamStrategy

	checks func() *checks // made by the first write
}

// checks are how the objects of a version are validated. schema is nil if nothing can be
// proved by it. rest is upstream's strategy without what schema proves.
type checks struct {
	schema *proof.Schema
	rest   upstreamStrategy
}

// prove has the storage that upstream made for a version validate by proof.
func prove(storage *customresource.REST, definition *apiextensionsv1.CustomResourceDefinition, v *apiextensionsv1.CustomResourceDefinitionVersion) {
	upstream, ok := storage.UpdateStrategy.(upstreamStrategy)
	if !ok {
		return
	}
	own := &strategy{upstream, sync.OnceValue(func() *checks { return checksOf(definition, v) })}
	storage.CreateStrategy, storage.UpdateStrategy = own, own
}

// checksOf returns the checks of a version.
func checksOf(definition *apiextensionsv1.CustomResourceDefinition, v *apiextensionsv1.CustomResourceDefinitionVersion) *checks {
	props, structural := schemasOf(definition, v)
	if structural == nil {
		return &checks{}
	}
	_, openAPI, err := validation.NewSchemaValidator(props)
	if err != nil {
		return &checks{}
	}
	c := &checks{schema: proof.New(openAPI)}
	if c.schema == nil {
		return c
	}
	var scale *apiextensions.CustomResourceSubresourceScale
	if v.Subresources != nil && v.Subresources.Scale != nil {
		scale = new(apiextensions.CustomResourceSubresourceScale)
		if err := apiextensionsv1.Convert_v1_CustomResourceSubresourceScale_To_apiextensions_CustomResourceSubresourceScale(v.Subresources.Scale, scale, nil); err != nil {
			return &checks{}
		}
	}
	if !asksForMore(structural) {
		structural = &structuralschema.Structural{}
	}
	gv := schema.GroupVersion{Group: definition.Spec.Group, Version: v.Name}
	c.rest = customresource.NewStrategy(nil, definition.Spec.Scope == apiextensionsv1.NamespaceScoped,
		gv.WithKind(definition.Status.AcceptedNames.Kind), nil, nil, structural, nil, scale, nil)
	return c
}

// asksForMore reports whether a structural schema asks for more than validators of OpenAPI
// look at: embedded resources, keys of lists, and rules.
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

// Validate implements rest.RESTCreateStrategy.
func (s *strategy) Validate(ctx context.Context, obj runtime.Object) field.ErrorList {
	return s.of(obj).Validate(ctx, obj)
}

// ValidateUpdate implements rest.RESTUpdateStrategy.
func (s *strategy) ValidateUpdate(ctx context.Context, obj, old runtime.Object) field.ErrorList {
	return s.of(obj).ValidateUpdate(ctx, obj, old)
}

// of returns what has to look at obj.
func (s *strategy) of(obj runtime.Object) upstreamStrategy {
	if c := s.checks(); c.prove(obj) {
		return c.rest
	}
	return s.upstreamStrategy
}

// prove reports whether obj is proved to be as its schema wants.
func (c *checks) prove(obj runtime.Object) bool {
	u, ok := obj.(*unstructured.Unstructured)
	return ok && c.schema != nil && c.schema.Proves(u.Object)
}

// proveStored has the storage of the version that is stored validate by proof. Those of other
// versions cannot be reached: their writes are upstream's alone.
func proveStored(stored any, definition *apiextensionsv1.CustomResourceDefinition) {
	storage, ok := stored.(*customresource.REST)
	for i := range definition.Spec.Versions {
		if v := &definition.Spec.Versions[i]; ok && v.Storage {
			prove(storage, definition, v)
		}
	}
}
