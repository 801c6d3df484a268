package versions

import (
	"maps"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	openapibuilder "k8s.io/apiextensions-apiserver/pkg/controller/openapi/builder"
	"k8s.io/apimachinery/pkg/util/managedfields"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/kube-openapi/pkg/validation/spec"
)

// typesOf returns the type converter of the field managers. Its types come from the CRD's schemas. It
// deduces them from objects if there are no models, or if the CRD cannot be described.
func (b *builder) typesOf() (managedfields.TypeConverter, error) {
	if len(b.Models) == 0 {
		return managedfields.NewDeducedTypeConverter(), nil
	}
	all := maps.Clone(b.Models)
	for i := range b.CRD.Spec.Versions {
		if err := b.describe(all, &b.CRD.Spec.Versions[i]); err != nil {
			utilruntime.HandleError(err)
			return managedfields.NewDeducedTypeConverter(), nil
		}
	}
	return managedfields.NewTypeConverter(all, b.CRD.Spec.PreserveUnknownFields)
}

// describe adds the models of a version to all.
func (b *builder) describe(all map[string]*spec.Schema, v *apiextensionsv1.CustomResourceDefinitionVersion) error {
	// Upstream's builder adds the model of Scale where there is one.
	if b.Model != nil && (v.Subresources == nil || v.Subresources.Scale == nil) {
		name, model, err := b.Model(b.CRD, v)
		if err != nil {
			return err
		}
		if name != "" {
			all[name] = model
			return nil
		}
	}
	document, err := openapibuilder.BuildOpenAPIV3(b.CRD, v.Name, openapibuilder.Options{})
	if err != nil {
		return err
	}
	maps.Copy(all, document.Components.Schemas)
	return nil
}
