package exchange

import (
	"context"
	"strings"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/trace"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/kubernetes/pkg/api/legacyscheme"
)

// spans has the open spans of a request, each a child of the previous one.
type spans struct {
	tracer      trace.Tracer
	open        []openSpan
	serializing bool // the last open span is that of encoding and sending the response
	responding  bool // BeginResponse was called: the span around it also gets an event at the end
}

// openSpan is a span that has not ended, and the context around it.
type openSpan struct {
	trace.Span
	around context.Context
}

// Trace makes x record spans below root.
func (x *Exchange) Trace(tracer trace.Tracer, root trace.Span) {
	x.spans = &spans{tracer: tracer, open: []openSpan{{root, x.Base()}}}
	x.base = trace.ContextWithSpan(x.Base(), root)
}

// Traced reports whether spans are recorded for the exchange.
func (s *spans) Traced() bool { return s != nil }

// Event adds an event to the last span that has not ended, if the exchange is traced.
func (s *spans) Event(name string, attributes ...attribute.KeyValue) {
	if s != nil && len(s.open) > 0 {
		s.open[len(s.open)-1].AddEvent(name, trace.WithAttributes(attributes...))
	}
}

// BeginResponse adds an event to the span of x, once, before the response is written.
func (x *Exchange) BeginResponse() {
	if x.spans != nil && !x.spans.responding {
		x.spans.responding = true
		x.Event("About to write a response")
	}
}

// BeginSerializing is BeginResponse, if that has not been called, and Serializing.
func (x *Exchange) BeginSerializing(mediaType string, version schema.GroupVersion) {
	x.BeginResponse()
	x.Serializing(mediaType, version)
}

// Serializing records the time before the response is encoded, for the audit record. If x is traced, it begins a span
// that ends when the response has been sent (apiserver pkg/endpoints/handlers/responsewriters/writers.go).
func (x *Exchange) Serializing(mediaType string, version schema.GroupVersion) {
	if x.Audit != nil {
		x.encoding = time.Now()
	}
	if x.spans == nil {
		return
	}
	if x.spans.serializing { // another response, which will not be sent
		x.Leave()
	}
	x.enterResponse("SerializeObject", mediaType, version)
	x.spans.serializing = true
}

// Streaming begins the span of a stream of events, if x is traced.
func (x *Exchange) Streaming(mediaType string, version schema.GroupVersion) {
	if x.spans != nil {
		x.enterResponse("WatchServer.HandleHTTP", mediaType, version)
		x.Event("About to start writing response")
	}
}

// enterResponse begins a span of the response.
func (x *Exchange) enterResponse(name, mediaType string, version schema.GroupVersion) {
	x.Enter(name, attribute.String("audit-id", x.AuditID), attribute.String("method", x.Method), attribute.String("url", x.Path),
		attribute.String("protocol", [...]string{1: "HTTP/1.1", 2: "HTTP/2.0"}[x.Carrier.Major()]), attribute.String("mediaType", mediaType), attribute.String("encoder", encoderOf(mediaType, version)))
}

// KeepSpans lets the last n spans outlive the exchange, and returns a function that ends them.
func (s *spans) KeepSpans(n int) func() {
	first := len(s.open) - n
	kept := &Exchange{spans: &spans{open: s.open[first:]}}
	s.open = s.open[:first:first]
	return func() {
		kept.Event("Writing initial events done")
		kept.EndSpans()
	}
}

// encoderOf names upstream's encoder of a media type and version; "" if it has none.
func encoderOf(mediaType string, version schema.GroupVersion) string {
	mediaType, _, stream := strings.Cut(mediaType, ";")
	info, ok := runtime.SerializerInfoForMediaType(legacyscheme.Codecs.SupportedMediaTypes(), mediaType)
	if !ok {
		return ""
	}
	encoder := runtime.Encoder(info.Serializer)
	if stream && info.StreamSerializer != nil {
		encoder = info.StreamSerializer.Serializer
	}
	return string(legacyscheme.Codecs.EncoderForVersion(encoder, version).Identifier())
}

// Ready records the time before the response is sent.
func (x *Exchange) Ready() {
	if x.Audit == nil && x.spans == nil {
		return
	}
	x.ready = time.Now()
	if x.spans != nil && x.spans.serializing {
		x.Event("About to start writing response", attribute.Int("size", x.Length()))
	}
}

// endResponse records that the response was written, and ends all spans of x.
func (x *Exchange) endResponse(bytes int64, waited time.Duration) {
	if !x.ready.IsZero() {
		if x.Length() != UnknownSize { // nothing was encoded meanwhile
			waited = time.Since(x.ready)
		}
		x.Audit.responded(x.encoding, waited)
	}
	if x.spans == nil {
		return
	}
	if x.spans.serializing {
		outcome := "succeeded"
		if bytes < int64(x.Length()) {
			outcome = "failed"
		}
		x.Event("Write call "+outcome, attribute.Int64("size", bytes))
		x.Leave()
		if x.spans.responding {
			x.Event("Writing http response done")
		}
	}
	x.EndSpans()
}

// Enter begins a child of the last open span, if x is traced. Base then has the new span.
func (x *Exchange) Enter(name string, attributes ...attribute.KeyValue) {
	if x.spans == nil {
		return
	}
	around := x.Base()
	ctx, span := x.spans.tracer.Start(around, name, trace.WithAttributes(attributes...))
	x.spans.open = append(x.spans.open, openSpan{span, around})
	x.base = ctx
}

// Leave ends the span of the last Enter.
func (x *Exchange) Leave() {
	if x.spans == nil || len(x.spans.open) == 0 {
		return
	}
	last := len(x.spans.open) - 1
	x.spans.open[last].End()
	x.base = x.spans.open[last].around
	x.spans.open, x.spans.serializing = x.spans.open[:last], false
}

// EndSpans ends all spans of x. The last one stays in Base, for code that outlives the exchange.
func (x *Exchange) EndSpans() {
	if x.spans == nil {
		return
	}
	inner := x.base
	for len(x.spans.open) > 0 {
		x.Leave()
	}
	x.base = inner
}
