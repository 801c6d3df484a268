package e2e_test

import (
	"encoding/hex"
	"encoding/json"
	"encoding/pem"
	"flag"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	tracev1 "go.opentelemetry.io/proto/otlp/trace/v1"
	admissionv1 "k8s.io/api/admission/v1"
	hooksv1 "k8s.io/api/admissionregistration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/larder-io/larder/internal/proctest"
)

// tree formats the spans of a trace as a tree, in the order in which they began, with the names of their attributes and
// events.
func (c *collector) tree(trace string) string {
	c.mu.Lock()
	defer c.mu.Unlock()
	below := make(map[string][]*tracev1.Span)
	for _, span := range c.spans {
		if hex.EncodeToString(span.TraceId) == trace {
			parent := hex.EncodeToString(span.ParentSpanId)
			below[parent] = append(below[parent], span)
		}
	}
	var out strings.Builder
	var write func(parent, indent string)
	write = func(parent, indent string) {
		slices.SortFunc(below[parent], func(a, b *tracev1.Span) int { return int(int64(a.StartTimeUnixNano) - int64(b.StartTimeUnixNano)) })
		for _, s := range below[parent] {
			var attributes []string
			for _, a := range s.Attributes {
				if slices.Contains(valued, a.Key) {
					a.Key += "=" + a.Value.GetStringValue()
				}
				attributes = append(attributes, a.Key)
			}
			slices.Sort(attributes)
			kind := "(" + strings.ToLower(strings.TrimPrefix(s.Kind.String(), "SPAN_KIND_")) + ")"
			out.WriteString(" " + indent + strings.Join(append([]string{s.Name, kind}, attributes...), " ") + "\n")
			for _, e := range s.Events {
				out.WriteString(" " + indent + "  * " + e.Name + "\n")
			}
			write(hex.EncodeToString(s.SpanId), indent+"  ")
		}
	}
	write(tracedBy, "")
	return out.String()
}

// valued are attributes whose values are also compared.
var valued = []string{"encoder", "key", "mediaType", "method", "protocol", "resource", "scope", "type", "verb"}

// tracedBy is the client's span that is the parent of all requests.
const tracedBy = "00000000000000ff"

// spansFile has the spans of the requests of TestSpansMatchKubeAPIServer. Only kube-apiserver has lines that begin with
// -, only Larder those with +.
var spansFile = filepath.Join("testdata", "spans.txt")

// spansOf returns the lines of spansFile without marks, except lines that only the other program has.
func spansOf(t *testing.T, other string) []string {
	t.Helper()
	whole, err := os.ReadFile(spansFile)
	if err != nil {
		t.Fatal(err)
	}
	var lines []string
	for line := range strings.Lines(string(whole)) {
		if !strings.HasPrefix(line, other) {
			lines = append(lines, line[1:])
		}
	}
	return lines
}

// rewriteSpans writes spansFile with as few marks as possible.
func rewriteSpans(t *testing.T, stock, larder []string) {
	t.Helper()
	common := make([][]int, len(stock)+1) // the number of common lines of two suffixes
	common[len(stock)] = make([]int, len(larder)+1)
	for i := len(stock) - 1; i >= 0; i-- {
		common[i] = make([]int, len(larder)+1)
		for j := len(larder) - 1; j >= 0; j-- {
			common[i][j] = max(common[i+1][j], common[i][j+1])
			if stock[i] == larder[j] {
				common[i][j] = common[i+1][j+1] + 1
			}
		}
	}
	var out strings.Builder
	i, j := 0, 0
	for i < len(stock) || j < len(larder) {
		switch {
		case i < len(stock) && j < len(larder) && stock[i] == larder[j]:
			out.WriteString(" " + stock[i])
			i, j = i+1, j+1
		case j == len(larder) || i < len(stock) && common[i+1][j] >= common[i][j+1]:
			out.WriteString("-" + stock[i])
			i++
		default:
			out.WriteString("+" + larder[j])
			j++
		}
	}
	if err := os.WriteFile(spansFile, []byte(out.String()), 0o644); err != nil {
		t.Fatal(err)
	}
}

// webhooks allow every request, and record its trace.
type webhooks struct {
	*httptest.Server

	mu     sync.Mutex
	traces map[string]int // guarded by mu: number of calls, by trace and by baggage
}

func newWebhooks(t *testing.T) *webhooks {
	t.Helper()
	w := &webhooks{traces: make(map[string]int)}
	w.Server = httptest.NewTLSServer(http.HandlerFunc(w.allow))
	t.Cleanup(w.Close)
	return w
}

func (w *webhooks) allow(to http.ResponseWriter, req *http.Request) {
	if parts := strings.Split(req.Header.Get("Traceparent"), "-"); len(parts) == 4 {
		w.mu.Lock()
		w.traces[parts[1]]++
		w.traces[req.Header.Get("Baggage")]++
		w.mu.Unlock()
	}
	body, _ := io.ReadAll(req.Body)
	var review admissionv1.AdmissionReview
	if json.Unmarshal(body, &review) != nil || review.Request == nil {
		to.WriteHeader(http.StatusBadRequest)
		return
	}
	review.Response = &admissionv1.AdmissionResponse{UID: review.Request.UID, Allowed: true}
	to.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(to).Encode(review)
}

// calls returns the number of calls with a trace.
func (w *webhooks) calls(trace string) int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.traces[trace]
}

// install makes m call the webhooks for secrets.
func (w *webhooks) install(m *member) {
	m.t.Helper()
	none, fail, versions := hooksv1.SideEffectClassNone, hooksv1.Fail, []string{"v1"}
	where := hooksv1.WebhookClientConfig{URL: &w.URL, CABundle: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: w.Certificate().Raw})}
	rules := []hooksv1.RuleWithOperations{{Operations: []hooksv1.OperationType{"*"}, Rule: hooksv1.Rule{APIGroups: []string{""}, APIVersions: versions, Resources: []string{"secrets"}}}}
	client := kubernetes.NewForConfigOrDie(m.config()).AdmissionregistrationV1()
	_, err := client.MutatingWebhookConfigurations().Create(m.t.Context(), &hooksv1.MutatingWebhookConfiguration{ObjectMeta: metav1.ObjectMeta{Name: "m"}, Webhooks: []hooksv1.MutatingWebhook{{
		Name: "mutates.example.com", ClientConfig: where, Rules: rules, SideEffects: &none, FailurePolicy: &fail, AdmissionReviewVersions: versions,
	}}}, metav1.CreateOptions{})
	if err != nil {
		m.t.Fatal(err)
	}
	_, err = client.ValidatingWebhookConfigurations().Create(m.t.Context(), &hooksv1.ValidatingWebhookConfiguration{ObjectMeta: metav1.ObjectMeta{Name: "v"}, Webhooks: []hooksv1.ValidatingWebhook{{
		Name: "validates.example.com", ClientConfig: where, Rules: rules, SideEffects: &none, FailurePolicy: &fail, AdmissionReviewVersions: versions,
	}}}, metav1.CreateOptions{})
	if err != nil {
		m.t.Fatal(err)
	}
	m.Eventually(m.t, "calls the webhooks", func() error {
		const trace = "000000000000000000000000000000aa"
		_, text := m.ask(http.MethodPost, "/api/v1/namespaces/default/secrets?dryRun=All", `{"metadata":{"name":"x"}}`, http.Header{"Traceparent": {"00-" + trace + "-" + tracedBy + "-00"}, "Baggage": {"who=me"}})
		if w.calls(trace) < 2 || w.calls("who=me") < 2 {
			return fmt.Errorf("%d calls, %d with the baggage: %s", w.calls(trace), w.calls("who=me"), text)
		}
		return nil
	})
}

// traced returns the requests of TestSpansMatchKubeAPIServer, with their header fields.
func traced() [][]string {
	const maps, secrets = "/api/v1/namespaces/default/configmaps", "/api/v1/namespaces/default/secrets"
	return [][]string{
		{"POST", maps, `{"metadata":{"name":"c"}}`},
		{"GET", maps + "/c", ""},
		{"GET", maps + "/c?resourceVersion=0", ""},
		{"GET", maps + "?resourceVersion=0", ""},
		{"GET", maps, ""},
		{"GET", maps + "?limit=1", ""},
		{"GET", "/api/v1/namespaces/default/events", ""},
		{"GET", maps, "", "Accept", asTable},
		{"GET", maps + "?watch=1&timeoutSeconds=1", ""},
		{"GET", maps + "?watch=1&timeoutSeconds=1&resourceVersion=0", ""},
		{"GET", maps + "?watch=1&timeoutSeconds=1&sendInitialEvents=true&allowWatchBookmarks=true&resourceVersionMatch=NotOlderThan", ""},
		{"PUT", maps + "/c", `{"metadata":{"name":"c"},"data":{"a":"b"}}`},
		{"PATCH", maps + "/c", `{"data":{"c":"d"}}`, "Content-Type", "application/merge-patch+json"},
		{"POST", secrets, `{"metadata":{"name":"c"}}`},
		{"DELETE", maps + "/c", ""},
		{"GET", maps + "/c", ""},
		{"GET", maps, "", "Impersonate-User", "alice"},
		{"GET", "/version", ""},
		{"GET", "/apis", ""},
		{"GET", "/nothing", ""},
	}
}

// spans sends all requests to a server and returns its spans.
func spans(t *testing.T, stock bool) []string {
	t.Helper()
	c, config := newCollector(t, "")
	hooks := newWebhooks(t)
	m := newPlane(t, "--tracing-config-file="+config).member(stock, "", proctest.Port(t)).start()
	hooks.install(m)
	all := traced()
	trace := func(n int) string { return fmt.Sprintf("%032x", n+1) }
	codes := make([]int, len(all))
	for n, r := range all {
		header := http.Header{"Traceparent": {"00-" + trace(n) + "-" + tracedBy + "-01"}, "User-Agent": {"me"}}
		for i := 3; i < len(r); i += 2 {
			header.Set(r[i], r[i+1])
		}
		codes[n], _ = m.ask(r[0], r[1], r[2], header)
		if r[0] != http.MethodGet {
			// A write before the cache has the previous one is tried twice, with either server.
			resource, _, _ := strings.Cut(strings.TrimPrefix(r[1], "/api/v1/namespaces/default/"), "/")
			m.ask(http.MethodGet, "/api/v1/namespaces/default/"+resource, "", nil)
		}
		if calls := hooks.calls(trace(n)); (calls == 2) != strings.Contains(r[1], "secrets") {
			t.Errorf("%s: %d calls of webhooks have the trace", r[1], calls)
		}
	}
	if err := m.Terminate(t); err != nil { // the exit sends the last spans
		t.Fatal(err)
	}
	var lines []string
	for n, r := range all {
		lines = append(lines, fmt.Sprintf("%s: %d\n", strings.Join(append(r[:2:2], r[3:]...), " "), codes[n]))
		lines = slices.AppendSeq(lines, strings.Lines(c.tree(trace(n))))
	}
	return lines
}

// withoutRanges returns the lines that are no spans of etcd's reads.
func withoutRanges(lines []string) (rest []string) {
	within := false
	for _, line := range lines {
		if within = strings.Contains(line, "etcdserverpb.KV/Range") || within && strings.TrimSpace(line) == "* message"; !within {
			rest = append(rest, line)
		}
	}
	return rest
}

// TestSpansMatchKubeAPIServer checks that the spans of requests equal kube-apiserver's, with the differences that
// spansFile marks. With
// -stock, it also compares kube-apiserver's spans with spansFile.
func TestSpansMatchKubeAPIServer(t *testing.T) {
	t.Parallel()
	larder := spans(t, false)
	// Larder's own requests may share a read of etcd's revision with one of these requests. The read is then recorded
	// there.
	for tries := 0; tries < 5 && len(larder) < len(spansOf(t, "-")) && cmp.Equal(withoutRanges(larder), withoutRanges(spansOf(t, "-"))); tries++ {
		larder = spans(t, false)
	}
	var stock []string
	if *stockBinary != "" {
		stock = spans(t, true)
	}
	if rewrite := flag.Lookup("rewrite"); rewrite.Value.String() == "true" && stock != nil {
		rewriteSpans(t, stock, larder)
	}
	if diff := cmp.Diff(spansOf(t, "-"), larder); diff != "" {
		t.Errorf("-want +got\n%s", diff)
	}
	if diff := cmp.Diff(spansOf(t, "+"), stock); stock != nil && diff != "" {
		t.Errorf("kube-apiserver: -want +got\n%s", diff)
	}
}

// TestTraceparentReachesWebhooks checks that webhooks get the trace of a request, even if the server records no traces.
func TestTraceparentReachesWebhooks(t *testing.T) {
	t.Parallel()
	hooks := newWebhooks(t)
	hooks.install(newPlane(t).member(*stockBinary != "", "", proctest.Port(t)).start())
}
