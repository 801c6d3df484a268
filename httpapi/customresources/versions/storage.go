package versions

import (
	"context"
	"fmt"
	"sync"

	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apiextensionsserver "k8s.io/apiextensions-apiserver/pkg/apiserver"
	structuralschema "k8s.io/apiextensions-apiserver/pkg/apiserver/schema"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/validation"
	"k8s.io/apiextensions-apiserver/pkg/crdserverscheme"
	"k8s.io/apiextensions-apiserver/pkg/registry/customresource"
	"k8s.io/apiextensions-apiserver/pkg/registry/customresource/tableconvertor"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured/unstructuredscheme"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer/versioning"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/registry/generic"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/kube-openapi/pkg/validation/validate"

	"github.com/larder-io/larder/httpapi/crdvalidate"
)

// storage returns the storages of one version.
func (b *builder) storage(v *apiextensionsv1.CustomResourceDefinitionVersion, t *types) (customresource.CustomResourceStorage, error) {
	var none customresource.CustomResourceStorage
	crd, names, kind, s := b.CRD, &b.CRD.Status.AcceptedNames, b.kind(v), b.Schemas[v.Name]
	var (
		statusValidator validation.SchemaValidator
		status          *apiextensions.CustomResourceSubresourceStatus
		scale           *apiextensions.CustomResourceSubresourceScale
	)
	props := schemaOf(v)
	if v.Subresources != nil && v.Subresources.Status != nil {
		status = new(apiextensions.CustomResourceSubresourceStatus)
		if props != nil {
			if own, ok := props.Properties["status"]; ok {
				statusValidator = newValidator(&own)
			}
		}
	}
	if v.Subresources != nil && v.Subresources.Scale != nil {
		scale = new(apiextensions.CustomResourceSubresourceScale)
		if err := apiextensionsv1.Convert_v1_CustomResourceSubresourceScale_To_apiextensions_CustomResourceSubresourceScale(v.Subresources.Scale, scale, nil); err != nil {
			return none, err
		}
	}
	// An invalid column leaves those before it, as in upstream.
	table, _ := tableconvertor.New(columns(v))
	gv := schema.GroupVersion{Group: kind.Group, Version: v.Name}
	storage, err := customresource.NewStorage(
		schema.GroupResource{Group: kind.Group, Resource: names.Plural}, schema.GroupResource{Group: kind.Group, Resource: names.Singular},
		kind, gv.WithKind(names.ListKind),
		customresource.NewStrategy(t.typer, b.namespaced(), kind, newValidator(props), statusValidator, s, status, scale, v.SelectableFields),
		restOptions{b, gv}, names.Categories, table, b.replicas)
	if err != nil || crd.Spec.PreserveUnknownFields || s == nil {
		return storage, err
	}
	prove(storage.CustomResource, func() *checks { return checksOf(kind, b.namespaced(), props, s, scale) })
	return storage, nil
}

// schemaOf returns the schema of a version, nil if there is none.
func schemaOf(v *apiextensionsv1.CustomResourceDefinitionVersion) *apiextensionsv1.JSONSchemaProps {
	if v.Schema == nil {
		return nil
	}
	return v.Schema.OpenAPIV3Schema
}

// validator returns upstream's validator of a schema, which takes as much memory as the schema (X9). It is made for the
// first object that needs it, because package crdvalidate recognizes most objects as valid.
type validator func() validation.SchemaValidator

func newValidator(s *apiextensionsv1.JSONSchemaProps) validator {
	return sync.OnceValue(func() validation.SchemaValidator {
		props, err := PropsOf(&apiextensionsv1.CustomResourceValidation{OpenAPIV3Schema: s})
		if err != nil {
			panic(fmt.Sprintf("versions: SchemasOf has converted a schema that cannot be converted: %v", err))
		}
		made, _, err := validation.NewSchemaValidator(props)
		if err != nil {
			panic(fmt.Sprintf("versions: a schema has no validator: %v", err))
		}
		return made
	})
}

func (v validator) Validate(value any, options ...validation.ValidationOption) *validate.Result {
	return v().Validate(value, options...)
}

func (v validator) ValidateUpdate(value, old any, options ...validation.ValidationOption) *validate.Result {
	return v().ValidateUpdate(value, old, options...)
}

// restOptions are the REST options of the storages of one version: objects are stored in the version that the CRD
// names, and read in the storage's version.
type restOptions struct {
	b  *builder
	gv schema.GroupVersion
}

func (o restOptions) GetRESTOptions(resource schema.GroupResource, _ runtime.Object) (generic.RESTOptions, error) {
	options, err := o.b.RESTOptions.GetRESTOptions(resource, nil)
	if err != nil {
		return options, err
	}
	stored, converted := o.b.coercer(), o.b.coercer()
	stored.stored = true
	options.StorageConfig.Codec = versioning.NewCodec(
		options.StorageConfig.Codec, decoder{Decoder: options.StorageConfig.Codec, coercer: stored}, converter{o.b.safe, converted},
		unstructuredscheme.NewUnstructuredCreator(), crdserverscheme.NewUnstructuredObjectTyper(), defaulter{apiextensionsserver.Scheme, o.b.Schemas, converted.kind},
		schema.GroupVersion{Group: o.gv.Group, Version: o.b.stored}, o.gv, "customResources")
	return options, nil
}

// upstreamStrategy is upstream's strategy of custom resources, whose type is not exported.
type upstreamStrategy interface {
	rest.RESTCreateStrategy
	rest.RESTUpdateStrategy
}

// strategy is upstream's strategy of one version. If package crdvalidate finds an object valid, upstream checks only
// the rules outside the schema.
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

// prove makes storage and its scale validate with checks. The status keeps upstream's validation.
func prove(storage *customresource.REST, checks func() *checks) {
	own := &strategy{storage.UpdateStrategy.(upstreamStrategy), sync.OnceValue(checks)}
	storage.CreateStrategy, storage.UpdateStrategy = own, own
}

// checksOf returns the checks of a version, whose schema is given in two forms.
func checksOf(kind schema.GroupVersionKind, namespaced bool, props *apiextensionsv1.JSONSchemaProps, structural *structuralschema.Structural, scale *apiextensions.CustomResourceSubresourceScale) *checks {
	c := &checks{schema: crdvalidate.New(props)}
	if c.schema == nil {
		return c
	}
	if !needsStructuralValidation(structural) {
		structural = &structuralschema.Structural{}
	}
	c.rest = customresource.NewStrategy(nil, namespaced, kind, nil, nil, structural, nil, scale, nil)
	return c
}

// needsStructuralValidation reports whether a structural schema has constraints that OpenAPI validators ignore: embedded
// resources, keys of lists, and rules.
func needsStructuralValidation(s *structuralschema.Structural) bool {
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
