package versions

import (
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	openapibuilder "k8s.io/apiextensions-apiserver/pkg/controller/openapi/builder"
	"k8s.io/apimachinery/pkg/util/managedfields"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/kube-openapi/pkg/spec3"
	"k8s.io/kube-openapi/pkg/validation/spec"
)

// typesOf returns the types by which the fields of objects are told apart: those of the CRD's
// schemas, or ones that are deduced from objects where there are no models, or where the CRD
// cannot be described.
func typesOf(definition *apiextensionsv1.CustomResourceDefinition, models map[string]*spec.Schema) (managedfields.TypeConverter, error) {
	if models == nil {
		return managedfields.NewDeducedTypeConverter(), nil
	}
	all, err := modelsOf(definition, models)
	if err != nil {
		utilruntime.HandleError(err)
		return managedfields.NewDeducedTypeConverter(), nil
	}
	if len(all) == 0 {
		return managedfields.NewDeducedTypeConverter(), nil
	}
	return managedfields.NewTypeConverter(all, definition.Spec.PreserveUnknownFields)
}

// modelsOf returns models and those of all versions of a CRD.
func modelsOf(definition *apiextensionsv1.CustomResourceDefinition, models map[string]*spec.Schema) (map[string]*spec.Schema, error) {
	documents := []*spec3.OpenAPI{{Version: "3.0.0", Info: &spec.Info{}, Components: &spec3.Components{Schemas: models}}}
	for i := range definition.Spec.Versions {
		d, err := openapibuilder.BuildOpenAPIV3(definition, definition.Spec.Versions[i].Name, openapibuilder.Options{})
		if err != nil {
			return nil, err
		}
		documents = append(documents, d)
	}
	merged, err := openapibuilder.MergeSpecsV3(documents...)
	if err != nil {
		return nil, err
	}
	return merged.Components.Schemas, nil
}
