package httpapi

import (
	"context"
	"net/http"

	"go.opentelemetry.io/otel/attribute"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/larder-io/larder/httpapi/apimetrics"
	"github.com/larder-io/larder/httpapi/exchange"
	"github.com/larder-io/larder/httpapi/openapi"
	"github.com/larder-io/larder/httpapi/reads"
	"github.com/larder-io/larder/httpapi/request"
)

// Extensions knows the resources that come and go while a [Server] runs. None of them
// is in a group that the Server itself serves.
type Extensions interface {
	// Handler serves what the Server does not know: documents, reads that are not answered from
	// encoded bytes, 404.
	http.Handler

	// Await waits until a resource that is not known is, if the store has its definition, and
	// reports whether it has become known.
	Await(ctx context.Context, r *request.Request) bool

	// Write serves a write of a custom resource, and reports whether it has. If there is no such
	// resource now, Handler answers. Attributes are those of the write's span.
	Write(x *exchange.Exchange, attributes func() []attribute.KeyValue) bool

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
