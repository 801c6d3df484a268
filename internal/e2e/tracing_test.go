package e2e_test

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	collectorv1 "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	tracev1 "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/grpc"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/larder-io/larder/internal/proctest"
)

// collector stores the spans that it receives.
type collector struct {
	collectorv1.UnimplementedTraceServiceServer

	mu    sync.Mutex
	spans []*tracev1.Span // guarded by mu
}

func (c *collector) Export(_ context.Context, req *collectorv1.ExportTraceServiceRequest) (*collectorv1.ExportTraceServiceResponse, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, of := range req.ResourceSpans {
		for _, scope := range of.ScopeSpans {
			c.spans = append(c.spans, scope.Spans...)
		}
	}
	return &collectorv1.ExportTraceServiceResponse{}, nil
}

// of returns the spans of a trace by name.
func (c *collector) of(trace string) map[string]*tracev1.Span {
	c.mu.Lock()
	defer c.mu.Unlock()
	found := make(map[string]*tracev1.Span)
	for _, span := range c.spans {
		if hex.EncodeToString(span.TraceId) == trace {
			found[span.Name] = span
		}
	}
	return found
}

func newCollector(t *testing.T, rate string) (c *collector, config string) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	c = &collector{}
	server, ended := grpc.NewServer(), make(chan error, 1)
	collectorv1.RegisterTraceServiceServer(server, c)
	go func() { ended <- server.Serve(l) }()
	t.Cleanup(func() {
		server.Stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	config = filepath.Join(t.TempDir(), "tracing")
	text := "apiVersion: apiserver.config.k8s.io/v1\nkind: TracingConfiguration\nendpoint: " + l.Addr().String() + "\n" + rate
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return c, config
}

// TestTracing checks that a request is traced from its beginning to etcd's work if an administrator sends it and
// requests a trace. Other requests are not traced.
func TestTracing(t *testing.T) {
	c, config := newCollector(t, "")
	p := serve(t, "--etcd-servers", serveEtcd(t), "--tracing-config-file", config, "--token-auth-file", tokens(t), "--authorization-mode=RBAC")
	trace := func(n int) string { return fmt.Sprintf("%032x", n) }
	parent := func(n int, flags string) string { return "Traceparent: 00-" + trace(n) + "-00000000000000ff-" + flags }
	p.ask("GET", "/api/v1/namespaces/default?x=1", "", parent(1, "01"), "User-Agent: me")
	p.ask("POST", "/api/v1/namespaces/default/configmaps", `{"metadata":{"name":"traced"}}`, parent(2, "01"), "Content-Type: application/json")
	p.ask("GET", "/api/v1/namespaces/default", "", parent(3, "00"))
	p.ask("GET", "/api/v1/nothing", "", parent(4, "01"))
	p.ask("GET", "/api/v1/namespaces/default/pods/nothing/log", "", parent(6, "01"))
	somebody := rest.AnonymousClientConfig(p.config())
	somebody.BearerToken = "alice-token"
	_ = kubernetes.NewForConfigOrDie(somebody).CoreV1().RESTClient().Get().AbsPath("/version").SetHeader("Traceparent", parent(5, "01")[len("Traceparent: "):]).Do(t.Context())
	if err := p.Terminate(t); err != nil { // the exit sends the last spans
		t.Fatal(err)
	}
	attributes := func(span *tracev1.Span) (all string) {
		for _, a := range span.GetAttributes() {
			all += fmt.Sprintf("%s=%v ", a.Key, a.Value)
		}
		return all
	}
	get := c.of(trace(1))["GET /api/v1/namespaces/{:namespace}/namespaces/{:name}"]
	for _, want := range []string{"http.target", "/api/v1/namespaces/default?x=1", "int_value:200", "audit-id", `"me"`} {
		if all := attributes(get); !strings.Contains(all, want) {
			t.Errorf("span of a GET: no %s in %s", want, all)
		}
	}
	if hex.EncodeToString(get.GetParentSpanId()) != "00000000000000ff" || get.GetKind() != tracev1.Span_SPAN_KIND_SERVER {
		t.Errorf("spans of a GET: %v", get)
	}
	created := c.of(trace(2))
	post, commit := created["POST /api/v1/namespaces/{:namespace}/configmaps"], created["etcdserverpb.KV/Txn"]
	if post == nil || commit == nil || created["Create"] == nil {
		t.Errorf("spans of a POST: %v", created)
	}
	for _, n := range []int{3, 5} {
		if spans := c.of(trace(n)); len(spans) != 0 {
			t.Errorf("spans of a request without a trace: %v", spans)
		}
	}
	if all := attributes(c.of(trace(4))["GET /api/v1/nothing"]); !strings.Contains(all, "int_value:404") {
		t.Errorf("span of a missing resource: %s", all)
	}
	if log := c.of(trace(6))["GET /api/v1/namespaces/{:namespace}/pods/{:name}/log"]; log == nil || strings.Contains(attributes(log), "http.response.status_code") {
		t.Errorf("span of a log, whose status is unknown when the span ends: %v", log)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, span := range c.spans {
		if id := hex.EncodeToString(span.TraceId); !strings.HasPrefix(id, strings.Repeat("0", 31)) {
			t.Errorf("no request has the span %s %v", id, span)
		}
	}
}

// TestTracingRate checks that with a sampling rate, requests are traced although their clients do not request it.
func TestTracingRate(t *testing.T) {
	c, config := newCollector(t, "samplingRatePerMillion: 1000000\n")
	p := serve(t, "--unsafe-no-fsync", "--tracing-config-file", config)
	p.ask("GET", "/version", "")
	proctest.Eventually(t, "the request is traced", func() error {
		c.mu.Lock()
		defer c.mu.Unlock()
		for _, span := range c.spans {
			if span.Name == "GET" && strings.Contains(fmt.Sprint(span.Attributes), "/version") {
				return nil
			}
		}
		return errors.New("no span was received")
	})
}
