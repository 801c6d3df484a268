package versions

import (
	"slices"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apiextensions-apiserver/pkg/registry/customresource/tableconvertor"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/larder-io/larder/internal/registry/table"
)

// ColumnsOf returns the table columns of a version. If a column is invalid, upstream's
// convertor has those before it, and so the error is dropped.
func ColumnsOf(v *apiextensionsv1.CustomResourceDefinitionVersion) *table.Columns {
	shown := columns(v)
	out := new(table.Columns)
	out.Table, _ = tableconvertor.New(shown)
	plain := slices.Clone(shown)
	for i := range plain {
		if plain[i].Type == "date" {
			plain[i].Type = "string"
			out.Dates = append(out.Dates, i+1) // names come first
		}
	}
	out.Plain, _ = tableconvertor.New(plain)
	return out
}

// columns returns the definitions of the columns after the name: age if the version has
// none.
func columns(v *apiextensionsv1.CustomResourceDefinitionVersion) []apiextensionsv1.CustomResourceColumnDefinition {
	if len(v.AdditionalPrinterColumns) > 0 {
		return v.AdditionalPrinterColumns
	}
	return []apiextensionsv1.CustomResourceColumnDefinition{age()}
}

func age() apiextensionsv1.CustomResourceColumnDefinition {
	return apiextensionsv1.CustomResourceColumnDefinition{
		Name: "Age", Type: "date", JSONPath: ".metadata.creationTimestamp",
		Description: metav1.ObjectMeta{}.SwaggerDoc()["creationTimestamp"],
	}
}

// scaleColumns returns the column definitions of a scale after the name.
func scaleColumns(s *apiextensionsv1.CustomResourceSubresourceScale) []apiextensionsv1.CustomResourceColumnDefinition {
	var list []apiextensionsv1.CustomResourceColumnDefinition
	if s.SpecReplicasPath != "" {
		list = append(list, apiextensionsv1.CustomResourceColumnDefinition{
			Name: "Desired", Type: "integer", Description: "Number of desired replicas", JSONPath: ".spec.replicas",
		})
	}
	if s.StatusReplicasPath != "" {
		list = append(list, apiextensionsv1.CustomResourceColumnDefinition{
			Name: "Available", Type: "integer", Description: "Number of actual replicas", JSONPath: ".status.replicas",
		})
	}
	return append(list, age())
}
