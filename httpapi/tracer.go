package httpapi

import (
	"context"
	"math/rand/v2"
	"net/http"
	"slices"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"
	"k8s.io/apiserver/pkg/authentication/user"
)

// tracer records sampled requests as spans, as apiserver pkg/endpoints/filters/traces.go
// does. A request that is not sampled costs a look at one header field and a draw.
type tracer struct {
	spans  trace.Tracer // samples whatever it is asked to; nil records nothing
	chance float64      // that a request is sampled if its sender does not decide that
}

func newTracer(provider trace.TracerProvider, chance float64) tracer {
	if provider == nil {
		return tracer{}
	}
	return tracer{spans: provider.Tracer("github.com/larder-io/larder/httpapi"), chance: chance}
}

// begin begins the span of x, whose client is authenticated, if it is sampled. A parent span in
// the request's header becomes the span's parent only if the user may decide what is sampled;
// for other users it is linked.
func (t *tracer) begin(x *passage) {
	if t.spans == nil || x.Carrier.Internal() {
		return
	}
	ctx := context.Background()
	if parent := x.Peek("Traceparent"); len(parent) > 0 {
		ctx = propagation.TraceContext{}.Extract(ctx, propagation.MapCarrier{"traceparent": string(parent), "tracestate": string(x.Peek("Tracestate"))})
	}
	remote := trace.SpanContextFromContext(ctx)
	options := []trace.SpanStartOption{trace.WithSpanKind(trace.SpanKindServer), trace.WithTimestamp(x.Received)}
	switch {
	case remote.IsValid() && samples(x.User):
		if !remote.IsSampled() {
			return
		}
	case rand.Float64() >= t.chance:
		return
	case remote.IsValid():
		options = append(options, trace.WithNewRoot(), trace.WithLinks(trace.Link{SpanContext: remote}))
	}
	_, x.span = t.spans.Start(ctx, spanName(x), options...)
	x.span.SetAttributes(
		attribute.String("http.request.method", x.Method), attribute.String("url.path", x.Path), attribute.String("http.target", x.Target),
		attribute.String("user_agent.original", string(x.Peek("User-Agent"))), attribute.String("audit-id", x.AuditID),
	)
	x.Carry(func(ctx context.Context) context.Context { return trace.ContextWithSpan(ctx, x.span) })
}

// end ends the span of x, if it has one. A response that is taken over to be streamed goes on
// after its span has ended.
func (t *tracer) end(x *passage) {
	if x.span == nil {
		return
	}
	code := x.StatusCode()
	x.span.SetAttributes(attribute.Int("http.response.status_code", code))
	if code >= http.StatusInternalServerError {
		x.span.SetStatus(codes.Error, "")
	}
	x.span.End()
}

// samples reports whether a user may decide which of their requests are sampled.
func samples(who user.Info) bool {
	return who != nil && slices.ContainsFunc(who.GetGroups(), func(group string) bool {
		return group == user.SystemPrivilegedGroup || group == user.MonitoringGroup
	})
}

// spanName is the same for all requests of a kind.
func spanName(x *passage) string {
	if !x.IsResourceRequest {
		return x.Method
	}
	name := x.Method + " /" + x.APIPrefix
	if x.Group != "" {
		name += "/" + x.Group
	}
	name += "/" + x.Version
	if x.Namespace != "" {
		name += "/namespaces/{:namespace}"
	}
	name += "/" + x.Resource
	if x.Name != "" {
		name += "/{:name}"
	}
	if x.Subresource != "" {
		name += "/" + x.Subresource
	}
	return name
}
