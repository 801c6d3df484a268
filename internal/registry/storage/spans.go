package storage

import (
	"context"
	"fmt"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/trace"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/audit"
)

// addSpanEvent adds an event to the span of ctx, if that is recorded.
func addSpanEvent(ctx context.Context, name string, attributes ...attribute.KeyValue) {
	if span := trace.SpanFromContext(ctx); span.IsRecording() {
		span.AddEvent(name, trace.WithAttributes(attributes...))
	}
}

// addEndEvent adds an event to the span of ctx for a step that has ended with err.
func addEndEvent(ctx context.Context, step, success string, err error) {
	if err != nil {
		addSpanEvent(ctx, step+" failed", attribute.String("err", err.Error()))
		return
	}
	addSpanEvent(ctx, step+" "+success)
}

// startWriteSpan starts the span of a write, as startSpan does.
func (a *adapter) startWriteSpan(ctx context.Context, name, key string, obj runtime.Object) (within context.Context, end func()) {
	return a.startSpan(ctx, name, attribute.String("key", key), attribute.String("type", fmt.Sprintf("%T", obj)),
		attribute.String("group", a.GroupResource.Group), attribute.String("resource", a.GroupResource.Resource))
}

// startSpan starts a child of the span of ctx, if that is recorded. Spans have upstream's names (apiserver pkg/storage,
// etcd3/store.go and cacher/delegator.go). The caller calls end.
func (a *adapter) startSpan(ctx context.Context, name string, attributes ...attribute.KeyValue) (within context.Context, end func()) {
	parent := trace.SpanFromContext(ctx)
	if !parent.IsRecording() {
		return ctx, func() {}
	}
	tracer := parent.TracerProvider().Tracer("github.com/larder-io/larder/internal/registry/storage")
	within, span := tracer.Start(ctx, name, trace.WithAttributes(append(attributes, attribute.String("audit-id", audit.GetAuditIDTruncated(ctx)))...))
	return within, func() { span.End() }
}
