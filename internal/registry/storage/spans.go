package storage

import (
	"context"
	"fmt"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/trace"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/audit"
)

// note adds an event to the span of ctx, if that is recorded.
func note(ctx context.Context, name string, attributes ...attribute.KeyValue) {
	if span := trace.SpanFromContext(ctx); span.IsRecording() {
		span.AddEvent(name, trace.WithAttributes(attributes...))
	}
}

// noteEnd is note of a step that has ended with err.
func noteEnd(ctx context.Context, step, success string, err error) {
	if err != nil {
		note(ctx, step+" failed", attribute.String("err", err.Error()))
		return
	}
	note(ctx, step+" "+success)
}

// enterWrite begins the span of a write, as enter does.
func (s *adapter) enterWrite(ctx context.Context, name, key string, obj runtime.Object) (within context.Context, end func()) {
	return s.enter(ctx, name, attribute.String("key", key), attribute.String("type", fmt.Sprintf("%T", obj)),
		attribute.String("group", s.GroupResource.Group), attribute.String("resource", s.GroupResource.Resource))
}

// enter begins a span within the span of ctx, if that is recorded, under upstream's names (apiserver pkg/storage,
// etcd3/store.go and cacher/delegator.go). The caller calls end.
func (s *adapter) enter(ctx context.Context, name string, attributes ...attribute.KeyValue) (within context.Context, end func()) {
	around := trace.SpanFromContext(ctx)
	if !around.IsRecording() {
		return ctx, func() {}
	}
	tracer := around.TracerProvider().Tracer("github.com/larder-io/larder/internal/registry/storage")
	within, span := tracer.Start(ctx, name, trace.WithAttributes(append(attributes, attribute.String("audit-id", audit.GetAuditIDTruncated(ctx)))...))
	return within, func() { span.End() }
}
