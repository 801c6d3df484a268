package httpapi

import (
	"strings"
	"time"

	"go.opentelemetry.io/otel/trace"
	"k8s.io/apiserver/pkg/authorization/authorizer"

	"github.com/larder-io/larder/httpapi/costs"
	"github.com/larder-io/larder/httpapi/nethttp"
	"github.com/larder-io/larder/httpapi/reads"
)

// apiCall is one exchange in the chain.
//
// It belongs to the goroutine that serves the exchange and ends with it.
type apiCall struct {
	nethttp.Call

	impersonates     bool // the request impersonates another user
	otherCredentials bool // the request may have credentials outside the Authorization header
	uncached         bool // the request is proxied to the upstream of a relay, which authorizes it
	attrs            authorizer.AttributesRecord
	reading          reads.Read
	counted          bool       // shutdown waits for the request
	span             trace.Span // nil: the request is not traced

	audited, impersonated time.Duration // durations of these filters
}

// attributes returns the request's attributes, for flow control and the authorizer. They are valid as long as a.
func (a *apiCall) attributes() *authorizer.AttributesRecord {
	a.attrs = a.Attributes(a.User)
	return &a.attrs
}

// findAccount sets the account that is charged for x, unless it is set.
func (c *chain) findAccount(x *apiCall) {
	if x.Account != nil {
		return
	}
	key := costs.Key{UserAgent: string(x.Peek("User-Agent")), Resource: x.Resource, Verb: x.Verb}
	if x.User != nil {
		key.User = x.User.GetName()
	}
	if x.Group != "" {
		key.Resource += "." + x.Group
	}
	if x.Subresource != "" {
		key.Resource += "/" + x.Subresource
	}
	if !x.IsResourceRequest {
		key.Resource = firstPart(x.Path)
	}
	x.Account = c.ledger.Account(key)
}

// firstPart returns a path up to the second slash.
func firstPart(path string) string {
	if path == "" {
		return ""
	}
	first, _, _ := strings.Cut(path[1:], "/")
	return path[:1+len(first)]
}
