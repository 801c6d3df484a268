package httpapi

import (
	"cmp"
	"context"
	"math/rand/v2"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apiserver/pkg/audit"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/component-base/tracing"

	"github.com/larder-io/larder/httpapi/exchange"
)

// tracer records sampled requests as spans, as apiserver pkg/endpoints/filters/traces.go
// does. A request that is not sampled costs only a read of one header field and a random number.
type tracer struct {
	spans  trace.Tracer // samples every span that it starts; nil records nothing
	chance float64      // probability that a request is sampled if its sender does not decide that
}

func newTracer(provider trace.TracerProvider, chance float64) tracer {
	if provider == nil {
		return tracer{}
	}
	return tracer{spans: provider.Tracer("github.com/larder-io/larder/httpapi"), chance: chance}
}

// begin begins the span of x, whose client is authenticated, if it is sampled. A parent span in the request's header
// becomes the parent only if the user may decide sampling; otherwise it is linked. A server to which x is proxied
// always gets the parent.
func (t *tracer) begin(x *apiCall) {
	if x.Carrier.Internal() {
		return
	}
	var remote trace.SpanContext
	if parent, baggage := x.Peek("Traceparent"), x.Peek("Baggage"); len(parent)+len(baggage) > 0 {
		x.ReplaceBase(func(ctx context.Context) context.Context {
			return tracing.Propagators().Extract(ctx, propagation.MapCarrier{"traceparent": string(parent), "tracestate": string(x.Peek("Tracestate")), "baggage": string(baggage)})
		})
		remote = trace.SpanContextFromContext(x.Base())
	}
	if t.spans == nil {
		return
	}
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
	_, x.span = t.spans.Start(x.Base(), spanName(x), options...)
	x.span.SetAttributes(spanAttributes(x)...)
	x.ReplaceBase(func(ctx context.Context) context.Context { return identified(ctx, x.AuditID) })
	x.Trace(t.spans, x.span)
}

// identified adds the audit ID to ctx, for upstream's spans.
func identified(ctx context.Context, id string) context.Context {
	ctx = exchange.Unaudited(ctx)
	audit.WithAuditID(ctx, types.UID(id))
	return ctx
}

// spanAttributes returns the attributes that go.opentelemetry.io/contrib/instrumentation/net/http/otelhttp sets on the
// span of a server, and the attributes that kube-apiserver adds.
func spanAttributes(x *apiCall) []attribute.KeyValue {
	attributes := []attribute.KeyValue{
		attribute.String("http.request.method", x.Method), attribute.String("url.scheme", "https"), attribute.String("url.path", x.Path), attribute.String("http.target", x.Target),
		attribute.String("user_agent.original", string(x.Peek("User-Agent"))), attribute.String("audit-id", x.AuditID),
		attribute.String("network.protocol.version", map[int]string{1: "1.1", 2: "2"}[x.Carrier.Major()]),
	}
	addHost := func(address, port, value string) string {
		host, number, err := net.SplitHostPort(value)
		if err != nil {
			host = value
		}
		attributes = append(attributes, attribute.String(address, host))
		if n, err := strconv.Atoi(number); err == nil {
			attributes = append(attributes, attribute.Int(port, n))
		}
		return host
	}
	addHost("server.address", "server.port", cmp.Or(x.Host, string(x.Carrier.Host())))
	peer := addHost("network.peer.address", "network.peer.port", x.Carrier.RemoteAddr().String())
	client, _, _ := strings.Cut(string(x.Peek("X-Forwarded-For")), ",")
	attributes = append(attributes, attribute.String("client.address", cmp.Or(strings.TrimSpace(client), peer)))
	if n := x.Carrier.BodyLength(); n > 0 {
		attributes = append(attributes, attribute.Int64("http.request.body.size", n))
	}
	return attributes
}

// end sets the response's attributes in the span of x, unless a handler takes the connection over and responds later. The
// span ends when the response has been sent or, for a streamed response, when it begins.
func (t *tracer) end(x *apiCall) {
	x.Ready()
	if x.span == nil || x.Hijack != nil {
		return
	}
	code := x.StatusCode()
	x.span.SetAttributes(attribute.Int("http.response.status_code", code))
	if n := len(x.Bytes); n > 0 {
		x.span.SetAttributes(attribute.Int("http.response.body.size", n))
	} else if x.Size > 0 {
		x.span.SetAttributes(attribute.Int("http.response.body.size", x.Size))
	}
	if code >= http.StatusInternalServerError {
		x.span.SetStatus(codes.Error, "")
	}
}

// samples reports whether a user may decide which of their requests are sampled.
func samples(u user.Info) bool {
	return u != nil && slices.ContainsFunc(u.GetGroups(), func(group string) bool {
		return group == user.SystemPrivilegedGroup || group == user.MonitoringGroup
	})
}

// spanName returns the span's name, which all requests of a kind share.
func spanName(x *apiCall) string {
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
