package httpapi

import (
	"net/http"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/larder-io/larder/httpapi/openapi"
	"github.com/larder-io/larder/httpapi/reads"
	"github.com/larder-io/larder/httpapi/request"
)

// Extensions knows the resources that come and go while a [Server] runs. None of them
// is in a group that the Server itself serves.
type Extensions interface {
	// Handler serves what the Server does not know: writes, documents, 404.
	http.Handler

	// Custom returns the resource that a request for it is answered from, and what to
	// call when it was; nil if there is none now.
	Custom(r *request.Request) (c *reads.Resource, done func())

	// Groups lists the groups that the resources are in, each once.
	Groups() []metav1.APIGroup

	// What the resources are is described in the OpenAPI documents.
	openapi.Extensions
}
