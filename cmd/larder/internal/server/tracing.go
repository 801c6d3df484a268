package server

import (
	"context"
	"errors"
	"fmt"
	"time"

	"go.opentelemetry.io/contrib/instrumentation/google.golang.org/grpc/otelgrpc"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracegrpc"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/sdk/resource"
	"go.opentelemetry.io/otel/trace"
	"google.golang.org/grpc"
	"google.golang.org/grpc/stats"
	"k8s.io/apiserver/pkg/features"
	"k8s.io/apiserver/pkg/server/egressselector"
	"k8s.io/apiserver/pkg/server/options"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	"k8s.io/component-base/tracing"
	tracingapi "k8s.io/component-base/tracing/api/v1"
	"k8s.io/klog/v2"
)

// traces holds the tracer providers that --tracing-config-file configures.
type traces struct {
	requests tracing.TracerProvider // samples every span
	store    tracing.TracerProvider // for etcd and webhooks: samples spans whose parents are sampled
	chance   float64
}

// everyMillionth is the sampling rate per million of a provider that samples everything.
const everyMillionth = int32(1_000_000)

// flushTimeout limits the time for sending the last spans when the server ends.
const flushTimeout = 5 * time.Second

// startTracing connects to the span collector, if one is configured. The HTTP server decides whether to sample a
// request before it creates a span.
func (s *Server) startTracing(ctx context.Context) error {
	file := s.config.Traces.ConfigFile
	if file == "" || !utilfeature.DefaultFeatureGate.Enabled(features.APIServerTracing) {
		return nil
	}
	config, err := options.ReadTracingConfiguration(file)
	if err != nil {
		return fmt.Errorf("server: failed to read tracing config: %w", err)
	}
	if err := tracingapi.ValidateTracingConfiguration(config, utilfeature.DefaultFeatureGate, nil).ToAggregate(); err != nil {
		return fmt.Errorf("server: failed to validate tracing configuration: %w", err)
	}
	s.traces = &traces{}
	if rate := config.SamplingRatePerMillion; rate != nil {
		s.traces.chance = float64(*rate) / float64(everyMillionth)
	}
	all, children, always := *config, *config, everyMillionth
	all.SamplingRatePerMillion, children.SamplingRatePerMillion = &always, nil
	if s.traces.requests, err = s.newSpans(&all); err != nil {
		return err
	}
	s.layers.Start(ctx, "tracing of requests", flushAtEnd(s.traces.requests))
	if s.traces.store, err = s.newSpans(&children); err != nil {
		return err
	}
	s.layers.Start(ctx, "tracing of the store", flushAtEnd(s.traces.store))
	return nil
}

// newSpans returns a tracer provider. It names the process as kube-apiserver does.
func (s *Server) newSpans(config *tracingapi.TracingConfiguration) (tracing.TracerProvider, error) {
	var how []otlptracegrpc.Option
	if dial := s.egress.tcpDialer(egressselector.ControlPlane); dial != nil {
		how = append(how, otlptracegrpc.WithDialOption(grpc.WithContextDialer(dial)))
	}
	who := resource.WithAttributes(attribute.String("service.name", "apiserver"), attribute.String("service.instance.id", serverID()))
	provider, err := tracing.NewProvider(context.Background(), config, how, []resource.Option{who})
	if err != nil {
		return nil, fmt.Errorf("server: tracing: %w", err)
	}
	return provider, nil
}

// flushAtEnd returns a layer that sends the remaining spans when ctx ends. It logs an error of the collector.
func flushAtEnd(provider tracing.TracerProvider) func(context.Context) error {
	return func(ctx context.Context) error {
		<-ctx.Done()
		bounded, cancel := context.WithTimeout(context.WithoutCancel(ctx), flushTimeout)
		defer cancel()
		if err := provider.Shutdown(bounded); err != nil && !errors.Is(err, context.Canceled) {
			klog.ErrorS(err, "Spans are lost")
		}
		return nil
	}
}

// storeStats returns a handler that records calls to etcd as spans, nil without tracing.
func (t *traces) storeStats() stats.Handler {
	if t == nil {
		return nil
	}
	return messages{otelgrpc.NewClientHandler(otelgrpc.WithTracerProvider(t.store), otelgrpc.WithPropagators(propagation.TraceContext{}))}
}

// messages adds the messages of a call to its span, like kube-apiserver's version of otelgrpc. Later versions do not.
type messages struct{ stats.Handler }

// HandleRPC implements stats.Handler.
func (m messages) HandleRPC(ctx context.Context, s stats.RPCStats) {
	switch s := s.(type) {
	case *stats.OutPayload:
		addMessage(ctx, "SENT", s.CompressedLength, s.Length)
	case *stats.InPayload:
		addMessage(ctx, "RECEIVED", s.CompressedLength, s.Length)
	}
	m.Handler.HandleRPC(ctx, s)
}

func addMessage(ctx context.Context, kind string, compressed, uncompressed int) {
	trace.SpanFromContext(ctx).AddEvent("message", trace.WithAttributes(attribute.String("rpc.message.type", kind), attribute.Int("rpc.message.id", 1),
		attribute.Int("rpc.message.compressed_size", compressed), attribute.Int("rpc.message.uncompressed_size", uncompressed)))
}

// outgoing returns the tracer provider for calls to webhooks, nil without tracing.
func (t *traces) outgoing() trace.TracerProvider {
	if t == nil {
		return nil
	}
	return t.store
}
