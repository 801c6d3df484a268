package openapi

import (
	"net/http"

	"k8s.io/kube-openapi/pkg/handler3"
	"k8s.io/kube-openapi/pkg/spec3"
	"k8s.io/kube-openapi/pkg/validation/spec"
)

// Description describes a part of an OpenAPI document, or a whole one.
type Description[T any] struct {
	Name  string // unique
	State string // differs whenever the description does

	// Build builds the part.
	Build func() (*T, error)
	// Variants describe the same part by templates, which is cheaper than Build. If it is nil or returns
	// nothing, no template fits.
	Variants func() []Variant[T]
}

// Extensions describes custom resources.
type Extensions interface {
	// OpenAPIV2 describes each CRD. OpenAPIV3 describes each version of a group, named by its path
	// below /openapi/v3/.
	OpenAPIV2() []Description[spec.Swagger]
	OpenAPIV3() []Description[spec3.OpenAPI]
}

// Aggregator describes aggregated servers.
type Aggregator interface {
	// OpenAPIV2 describes the APIs of the other servers. OpenAPIV3 lists their documents of
	// OpenAPI v3 by path below /openapi/v3/, and ServeOpenAPIV3 serves these documents.
	OpenAPIV2() []Description[spec.Swagger]
	OpenAPIV3() map[string]handler3.OpenAPIV3DiscoveryGroupVersion
	ServeOpenAPIV3(w http.ResponseWriter, req *http.Request)
}
