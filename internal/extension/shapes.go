package extension

import (
	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	structuralschema "k8s.io/apiextensions-apiserver/pkg/apiserver/schema"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/defaulting"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/larder-io/larder/internal/registry/shape"
)

// schemasOf returns the schema of a version, and that by which its objects are decoded, made
// as upstream makes it (apiextensions-apiserver pkg/apiserver/customresource_handler.go). It
// returns nil if its objects are not pruned, or if upstream would not accept its schema.
func schemasOf(definition *apiextensionsv1.CustomResourceDefinition, v *apiextensionsv1.CustomResourceDefinitionVersion) (*apiextensions.JSONSchemaProps, *structuralschema.Structural) {
	if definition.Spec.PreserveUnknownFields || v.Schema == nil || v.Schema.OpenAPIV3Schema == nil {
		return nil, nil
	}
	var internal apiextensions.CustomResourceValidation
	if err := apiextensionsv1.Convert_v1_CustomResourceValidation_To_apiextensions_CustomResourceValidation(v.Schema.DeepCopy(), &internal, nil); err != nil {
		return nil, nil
	}
	structural, err := structuralschema.NewStructural(internal.OpenAPIV3Schema)
	if err != nil {
		return nil, nil
	}
	structural = structural.DeepCopy()
	if err := defaulting.PruneDefaults(structural); err != nil {
		return nil, nil
	}
	return internal.OpenAPIV3Schema, structural
}

// shapesOf returns the shapes of the versions of a definition.
func shapesOf(definition *apiextensionsv1.CustomResourceDefinition) map[string]*shape.Shape {
	shapes := make(map[string]*shape.Shape)
	for i := range definition.Spec.Versions {
		v := &definition.Spec.Versions[i]
		_, structural := schemasOf(definition, v)
		if structural == nil {
			continue
		}
		gv := schema.GroupVersion{Group: definition.Spec.Group, Version: v.Name}
		shapes[v.Name] = shape.New(structural, gv.WithKind(definition.Status.AcceptedNames.Kind))
	}
	return shapes
}
