package versions

import (
	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apiextensionsserver "k8s.io/apiextensions-apiserver/pkg/apiserver"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/validation"
	"k8s.io/apiextensions-apiserver/pkg/crdserverscheme"
	"k8s.io/apiextensions-apiserver/pkg/registry/customresource"
	"k8s.io/apiextensions-apiserver/pkg/registry/customresource/tableconvertor"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured/unstructuredscheme"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer/versioning"
	"k8s.io/apiserver/pkg/registry/generic"
)

// storage returns the storages of one version.
func (b *builder) storage(v *apiextensionsv1.CustomResourceDefinitionVersion, t *types) (customresource.CustomResourceStorage, error) {
	var none customresource.CustomResourceStorage
	crd, names, kind, s := b.CRD, &b.CRD.Status.AcceptedNames, b.kind(v), b.schemas[v.Name]
	validator, openAPI, err := validation.NewSchemaValidator(s.Props)
	if err != nil {
		return none, err
	}
	var (
		status          *apiextensions.CustomResourceSubresourceStatus
		statusValidator validation.SchemaValidator
		scale           *apiextensions.CustomResourceSubresourceScale
	)
	if v.Subresources != nil && v.Subresources.Status != nil {
		status = new(apiextensions.CustomResourceSubresourceStatus)
		if s.Props != nil {
			if props, ok := s.Props.Properties["status"]; ok {
				if statusValidator, _, err = validation.NewSchemaValidator(&props); err != nil {
					return none, err
				}
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
		customresource.NewStrategy(t.typer, b.namespaced(), kind, validator, statusValidator, s.Structural, status, scale, v.SelectableFields),
		restOptions{b.RESTOptions, b, gv}, names.Categories, table, b.replicas)
	if err != nil || crd.Spec.PreserveUnknownFields || s.Structural == nil {
		return storage, err
	}
	prove(storage.CustomResource, func() *checks { return checksOf(kind, b.namespaced(), openAPI, s.Structural, scale) })
	return storage, nil
}

// restOptions are the REST options of the storages of one version: objects are stored in the
// version that the CRD names, and read in that of the storage.
type restOptions struct {
	generic.RESTOptionsGetter
	b  *builder
	gv schema.GroupVersion
}

func (o restOptions) GetRESTOptions(resource schema.GroupResource, _ runtime.Object) (generic.RESTOptions, error) {
	options, err := o.RESTOptionsGetter.GetRESTOptions(resource, nil)
	if err != nil {
		return options, err
	}
	kind := schema.GroupKind{Group: o.gv.Group, Kind: o.b.CRD.Status.AcceptedNames.Kind}
	converted := o.b.coercer(kind)
	stored := *converted
	stored.stored = true
	options.StorageConfig.Codec = versioning.NewCodec(
		options.StorageConfig.Codec, decoder{Decoder: options.StorageConfig.Codec, coercer: &stored}, converter{o.b.safe, converted},
		unstructuredscheme.NewUnstructuredCreator(), crdserverscheme.NewUnstructuredObjectTyper(), defaulter{apiextensionsserver.Scheme, o.b.structurals, kind},
		schema.GroupVersion{Group: o.gv.Group, Version: o.b.stored}, o.gv, "customResources")
	return options, nil
}
