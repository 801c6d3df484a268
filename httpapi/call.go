package httpapi

import (
	"time"

	"go.opentelemetry.io/otel/trace"

	"github.com/larder-io/larder/httpapi/nethttp"
	"github.com/larder-io/larder/httpapi/reads"
	"github.com/larder-io/larder/httpapi/request"
	"github.com/larder-io/larder/httpapi/revocation"
)

// apiCall is one exchange in the chain.
//
// It belongs to the goroutine that serves the exchange and ends with it.
type apiCall struct {
	nethttp.Call

	impersonates bool // the request impersonates another user
	foreign      bool // the request may have credentials outside the Authorization header
	attrs        request.Attributes
	basis        revocation.Basis // of the authorizer's answer about a watch
	reading      reads.Read
	span         trace.Span // nil: it is not traced

	audited, impersonated time.Duration // how long these filters took, if they did anything
}

// attributes returns the request's attributes, for flow control and the authorizer. They end
// with the call.
func (x *apiCall) attributes() *request.Attributes {
	x.attrs = request.Attributes{User: x.User, Request: &x.Action}
	return &x.attrs
}
