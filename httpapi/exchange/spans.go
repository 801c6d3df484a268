package exchange

import (
	"context"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/trace"
)

// spans record what is done for a request, each within the one before it.
type spans struct {
	tracer trace.Tracer
	open   []openSpan
}

// openSpan is a span that has not ended, and the context around it.
type openSpan struct {
	trace.Span
	around context.Context
}

// Trace has what is done for x recorded within root from now on.
func (x *Exchange) Trace(tracer trace.Tracer, root trace.Span) {
	x.spans = &spans{tracer: tracer, open: []openSpan{{root, x.Base()}}}
	x.base = trace.ContextWithSpan(x.Base(), root)
}

// Traced reports whether spans are recorded for x.
func (x *Exchange) Traced() bool { return x.spans != nil }

// Enter begins a span within the last one that has not ended, if x is traced. Base knows of it.
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
	x.spans.open = x.spans.open[:last]
}

// LeaveAll ends all spans of x. Base goes on to know of the last one: what outlives the exchange
// is part of it.
func (x *Exchange) LeaveAll() {
	if x.spans == nil {
		return
	}
	inner := x.base
	for len(x.spans.open) > 0 {
		x.Leave()
	}
	x.base = inner
}
