package extension

import (
	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	structuralschema "k8s.io/apiextensions-apiserver/pkg/apiserver/schema"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/defaulting"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/larder-io/larder/internal/registry/shape"
)

// shapesOf returns the shapes of the versions of a definition. Their schemas are made as
// upstream makes those by which it decodes (apiextensions-apiserver
// pkg/apiserver/customresource_handler.go). A version has none if its objects are not pruned,
// or if upstream would not accept its schema.
func shapesOf(definition *apiextensionsv1.CustomResourceDefinition) map[string]*shape.Shape {
	shapes := make(map[string]*shape.Shape)
	if definition.Spec.PreserveUnknownFields {
		return shapes
	}
	for i := range definition.Spec.Versions {
		v := &definition.Spec.Versions[i]
		if v.Schema == nil || v.Schema.OpenAPIV3Schema == nil {
			continue
		}
		var internal apiextensions.CustomResourceValidation
		if err := apiextensionsv1.Convert_v1_CustomResourceValidation_To_apiextensions_CustomResourceValidation(v.Schema.DeepCopy(), &internal, nil); err != nil {
			continue
		}
		structural, err := structuralschema.NewStructural(internal.OpenAPIV3Schema)
		if err != nil {
			continue
		}
		structural = structural.DeepCopy()
		if err := defaulting.PruneDefaults(structural); err != nil {
			continue
		}
		gv := schema.GroupVersion{Group: definition.Spec.Group, Version: v.Name}
		shapes[v.Name] = shape.New(structural, gv.WithKind(definition.Status.AcceptedNames.Kind))
	}
	return shapes
}
