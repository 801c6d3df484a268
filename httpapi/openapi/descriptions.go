package openapi

import (
	"net/http"

	"k8s.io/kube-openapi/pkg/handler3"
	"k8s.io/kube-openapi/pkg/spec3"
	"k8s.io/kube-openapi/pkg/validation/spec"
)

// Description is a part of an OpenAPI document, or a whole one, that can be built.
type Description[T any] struct {
	Name  string // tells it from the others
	State string // another one stands for another description

	// Build makes it anew.
	Build func() (*T, error)
	// Variants describe the same together, for less. nil, or none, if there is nothing that it
	// is like.
	Variants func() []Variant[T]
}

// Extensions describes resources that come and go.
type Extensions interface {
	// OpenAPIV2 describes the resources, each by itself, and OpenAPIV3 each of their
	// versions by its path below /openapi/v3/.
	OpenAPIV2() []Description[spec.Swagger]
	OpenAPIV3() []Description[spec3.OpenAPI]
}

// Aggregator describes what other servers serve.
type Aggregator interface {
	// OpenAPIV2 describes what the other servers serve, OpenAPIV3 says where their
	// documents of OpenAPI v3 are, by path below /openapi/v3/, and ServeOpenAPIV3 serves
	// them.
	OpenAPIV2() []Description[spec.Swagger]
	OpenAPIV3() map[string]handler3.OpenAPIV3DiscoveryGroupVersion
	ServeOpenAPIV3(w http.ResponseWriter, req *http.Request)
}
