package versions

import (
	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	structuralschema "k8s.io/apiextensions-apiserver/pkg/apiserver/schema"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/defaulting"
)

// Schema is the schema of one version, in upstream's two forms. Both are nil if the version has
// none. Structural, by which objects are decoded, may be nil, too, if they are not pruned.
type Schema struct {
	Props      *apiextensions.JSONSchemaProps
	Structural *structuralschema.Structural
}

// SchemaOf returns the schema of a version, which is the caller's own. It fails if upstream does
// not serve CRDs with such a schema.
func SchemaOf(crd *apiextensionsv1.CustomResourceDefinition, v *apiextensionsv1.CustomResourceDefinitionVersion) (*Schema, error) {
	if v.Schema == nil || v.Schema.OpenAPIV3Schema == nil {
		return &Schema{}, nil
	}
	var internal apiextensions.CustomResourceValidation
	if err := apiextensionsv1.Convert_v1_CustomResourceValidation_To_apiextensions_CustomResourceValidation(v.Schema.DeepCopy(), &internal, nil); err != nil {
		return nil, err
	}
	s := &Schema{Props: internal.OpenAPIV3Schema}
	structural, err := structuralschema.NewStructural(s.Props)
	if crd.Spec.PreserveUnknownFields {
		s.Structural = structural // nil if it is not structural
		return s, nil
	}
	if err != nil {
		return nil, err
	}
	s.Structural = structural.DeepCopy() // it shares defaults with Props
	return s, defaulting.PruneDefaults(s.Structural)
}
