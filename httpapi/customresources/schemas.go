package customresources

import (
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/larder-io/larder/httpapi/customresources/versions"
	"github.com/larder-io/larder/internal/registry/servedjson"
)

// schemasOf returns the schemas of the versions of a definition: none if objects are not pruned.
func schemasOf(definition *apiextensionsv1.CustomResourceDefinition) map[string]*servedjson.Schema {
	schemas := make(map[string]*servedjson.Schema)
	if definition.Spec.PreserveUnknownFields {
		return schemas
	}
	for i := range definition.Spec.Versions {
		v := &definition.Spec.Versions[i]
		s, err := versions.SchemaOf(definition, v)
		if err != nil || s.Structural == nil {
			continue
		}
		gv := schema.GroupVersion{Group: definition.Spec.Group, Version: v.Name}
		schemas[v.Name] = servedjson.New(s.Structural, gv.WithKind(definition.Status.AcceptedNames.Kind))
	}
	return schemas
}
