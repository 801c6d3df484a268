package customresources

import (
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/larder-io/larder/httpapi/customresources/versions"
	"github.com/larder-io/larder/internal/registry/servedjson"
)

// shapesOf returns the shapes of the versions of a definition: none if objects are not pruned.
func shapesOf(definition *apiextensionsv1.CustomResourceDefinition) map[string]*servedjson.Shape {
	shapes := make(map[string]*servedjson.Shape)
	if definition.Spec.PreserveUnknownFields {
		return shapes
	}
	for i := range definition.Spec.Versions {
		v := &definition.Spec.Versions[i]
		s, err := versions.SchemaOf(definition, v)
		if err != nil || s.Structural == nil {
			continue
		}
		gv := schema.GroupVersion{Group: definition.Spec.Group, Version: v.Name}
		shapes[v.Name] = servedjson.New(s.Structural, gv.WithKind(definition.Status.AcceptedNames.Kind))
	}
	return shapes
}
