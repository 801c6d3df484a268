package httpapi

import (
	"net/http"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/larder-io/larder/httpapi/apimetrics"
	"github.com/larder-io/larder/httpapi/openapi"
	"github.com/larder-io/larder/httpapi/reads"
	"github.com/larder-io/larder/httpapi/request"
)

// Extensions knows the resources that come and go while a [Server] runs. None of them
// is in a group that the Server itself serves.
type Extensions interface {
	// Handler serves what the Server does not know: writes, documents, 404.
	http.Handler

	// Custom returns the custom resource that the request is for, nil if there is none now.
	// The caller calls done when it has answered the request.
	Custom(r *request.Request) (c *reads.Resource, done func())

	// AllMonitors gives out the monitors of all custom resources that there have been.
	apimetrics.Resources

	// Groups lists the groups that the resources are in, each once.
	Groups() []metav1.APIGroup

	// The OpenAPI documents describe the resources.
	openapi.Extensions
}
