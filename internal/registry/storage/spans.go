package storage

import (
	"context"
	"fmt"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/trace"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/audit"
)

// enter begins a span of a write within that of ctx, if that is recorded, under upstream's names
// (apiserver pkg/storage/etcd3/store.go). The caller calls end.
func (s *adapter) enter(ctx context.Context, name, key string, obj runtime.Object) (within context.Context, end func()) {
	around := trace.SpanFromContext(ctx)
	if !around.IsRecording() {
		return ctx, func() {}
	}
	tracer := around.TracerProvider().Tracer("github.com/larder-io/larder/internal/registry/storage")
	within, span := tracer.Start(ctx, name, trace.WithAttributes(
		attribute.String("audit-id", audit.GetAuditIDTruncated(ctx)), attribute.String("key", key), attribute.String("type", fmt.Sprintf("%T", obj)),
		attribute.String("group", s.GroupResource.Group), attribute.String("resource", s.GroupResource.Resource),
	))
	return within, func() { span.End() }
}
