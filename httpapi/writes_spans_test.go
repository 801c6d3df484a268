package httpapi

import (
	"fmt"
	"slices"
	"strings"

	"go.opentelemetry.io/otel/attribute"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"
)

// spanLog keeps the spans of one side.
type spanLog struct {
	recorder *tracetest.SpanRecorder
	provider *sdktrace.TracerProvider
}

func newSpanLog() *spanLog {
	recorder := tracetest.NewSpanRecorder()
	return &spanLog{recorder, sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(recorder))}
}

// take returns the spans of the request with an ID in audit, below the request's own span, and whether that span has
// ended.
func (l *spanLog) take(id string) (spans []string, ended bool) {
	all := l.recorder.Ended()
	root := slices.IndexFunc(all, func(s sdktrace.ReadOnlySpan) bool {
		return s.SpanKind() == trace.SpanKindServer && slices.Contains(s.Attributes(), attribute.String("audit-id", id))
	})
	if root < 0 {
		return nil, false
	}
	below := make(map[trace.SpanID][]sdktrace.ReadOnlySpan)
	for _, s := range all {
		if s.SpanContext().TraceID() == all[root].SpanContext().TraceID() {
			below[s.Parent().SpanID()] = append(below[s.Parent().SpanID()], s)
		}
	}
	var write func(parent trace.SpanID, indent string)
	write = func(parent trace.SpanID, indent string) {
		slices.SortStableFunc(below[parent], func(a, b sdktrace.ReadOnlySpan) int { return a.StartTime().Compare(b.StartTime()) })
		for _, s := range below[parent] {
			spans = append(spans, indent+s.Name()+" "+spanValues(s.Attributes()))
			for _, event := range s.Events() {
				spans = append(spans, indent+"* "+event.Name+" "+spanValues(event.Attributes))
			}
			write(s.SpanContext().SpanID(), indent+"  ")
		}
	}
	write(all[root].SpanContext().SpanID(), "")
	l.recorder.Reset()
	return spans, true
}

// spanValues lists attributes, with those values that are compared.
func spanValues(attributes []attribute.KeyValue) string {
	var all []string
	for _, a := range attributes {
		text := string(a.Key)
		if text == "writer" || text == "size" || text == "encoder" {
			continue // spans of encoding responds, which count their bytes
		}
		if text != "audit-id" && text != "client" && text != "err" && text != "user-agent" {
			text += fmt.Sprintf("=%.100s", a.Value.String())
		}
		all = append(all, text)
	}
	slices.Sort(all)
	return strings.Join(all, " ")
}
