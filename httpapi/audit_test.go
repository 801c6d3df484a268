package httpapi

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/util/sets"
	auditapi "k8s.io/apiserver/pkg/apis/audit"
	"k8s.io/apiserver/pkg/audit"
	"k8s.io/apiserver/pkg/audit/policy"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/endpoints/filters"
	"k8s.io/apiserver/pkg/endpoints/filters/impersonation"
	apirequest "k8s.io/apiserver/pkg/endpoints/request"
	genericfilters "k8s.io/apiserver/pkg/server/filters"
	"k8s.io/kubernetes/pkg/api/legacyscheme"

	"github.com/larder-io/larder/httpapi/nethttp"
	"github.com/larder-io/larder/httpapi/routes"
	"github.com/larder-io/larder/internal/proctest"
	"github.com/larder-io/larder/internal/registry/registrytest"
)

// events is an audit sink that keeps its records in a channel.
type events struct {
	all    chan *auditapi.Event
	broken bool
}

func newEvents() *events { return &events{all: make(chan *auditapi.Event, 1000)} }

// ProcessEvents implements audit.Sink.
func (e *events) ProcessEvents(all ...*auditapi.Event) bool {
	for _, one := range all {
		e.all <- one.DeepCopy()
	}
	return !e.broken
}

// next returns the records of the next request, up to a stage in ends, without the values that vary between equal
// requests.
func (e *events) next(t *testing.T, ends ...auditapi.Stage) []any {
	t.Helper()
	var got []any
	for {
		select {
		case one := <-e.all:
			got = append(got, essence(t, one))
			if sets.New(ends...).Has(one.Stage) {
				return got
			}
		case <-time.After(proctest.Patience):
			t.Fatalf("no end after %v", got)
		}
	}
}

var unequal = regexp.MustCompile(`"(uid|creationTimestamp|time|resourceVersion|generateName)":"[^"]*"`)

// withoutLatencies removes the annotations that a request has only if it took half a second.
func withoutLatencies(one *auditapi.Event) {
	maps.DeleteFunc(one.Annotations, func(key, _ string) bool { return strings.HasPrefix(key, "apiserver.latency.k8s.io/") })
	if len(one.Annotations) == 0 {
		one.Annotations = nil
	}
}

// essence returns one record as in a log, without the values that vary between servers.
func essence(t *testing.T, one *auditapi.Event) any {
	t.Helper()
	if one.AuditID == "" || one.RequestReceivedTimestamp.IsZero() || one.StageTimestamp.IsZero() || len(one.SourceIPs) == 0 {
		t.Errorf("incomplete: %+v", one)
	}
	one.AuditID, one.RequestReceivedTimestamp.Time, one.StageTimestamp.Time = "", time.Time{}, time.Time{}
	withoutLatencies(one)
	text, err := json.Marshal(one)
	if err != nil {
		t.Fatal(err)
	}
	var fields any
	if err := json.Unmarshal(unequal.ReplaceAll(text, nil), &fields); err != nil {
		if err := json.Unmarshal(unequal.ReplaceAll(text, []byte(`"-":""`)), &fields); err != nil {
			t.Fatal(err)
		}
	}
	return fields
}

// auditors authenticates users by tokens, and authorizes them.
type auditors struct{}

// AuthenticateRequest implements authenticator.Request.
func (auditors) AuthenticateRequest(req *http.Request) (*authenticator.Response, bool, error) {
	name, ok := strings.CutPrefix(req.Header.Get("Authorization"), "Bearer ")
	switch {
	case !ok:
		return nil, false, nil
	case name == "wrong":
		return nil, false, errors.New("a wrong token")
	}
	audit.AddAuditAnnotation(req.Context(), "authentication.example.org/asked", name)
	who := &user.DefaultInfo{Name: name, UID: "u", Groups: []string{"g", user.AllAuthenticated}, Extra: map[string][]string{"k": {"v"}}}
	return &authenticator.Response{User: who}, true, nil
}

// Authorize implements authorizer.Authorizer.
func (auditors) Authorize(_ context.Context, a authorizer.Attributes) (authorizer.Decision, string, error) {
	switch a.GetUser().GetName() {
	case "mallory":
		return authorizer.DecisionNoOpinion, "who is that", nil
	case "broken":
		return authorizer.DecisionNoOpinion, "", errors.New("cannot say")
	}
	return authorizer.DecisionAllow, "because", nil
}

// auditedPair runs Larder beside upstream's handlers behind upstream's filters, both with the same policy. It returns
// the records of each.
func auditedPair(t *testing.T, rules string) (p *pair, ours, theirs *events) {
	t.Helper()
	evaluator := parsePolicy(t, rules)
	ours, theirs = newEvents(), newEvents()
	p = newPairOf(t, registrytest.New(t, nil), func(c *Config) {
		c.Access = Access{Authenticator: auditors{}, Authorizer: auditors{}, AuditPolicy: evaluator, Audit: ours}
	}, func(h http.Handler) http.Handler { return upstreamChain(h, evaluator, theirs) })
	return p, ours, theirs
}

// upstreamChain puts upstream's filters before h: apiserver pkg/server/config.go,
// DefaultBuildHandlerChain.
func upstreamChain(h http.Handler, policy audit.PolicyRuleEvaluator, sink audit.Sink) http.Handler {
	long := genericfilters.BasicLongRunningRequestCheck(
		sets.NewString("watch", "proxy"), sets.NewString("attach", "exec", "proxy", "log", "portforward"))
	h = filters.WithAuthorization(h, auditors{}, legacyscheme.Codecs)
	h = impersonation.WithConstrainedImpersonation(h, auditors{}, legacyscheme.Codecs)
	h = filters.WithAudit(h, sink, policy, long)
	failed := filters.WithFailedAuthenticationAudit(filters.Unauthorized(legacyscheme.Codecs), sink, policy)
	h = filters.WithAuthentication(h, auditors{}, failed, nil, nil)
	h = filters.WithRequestDeadline(h, sink, policy, long, legacyscheme.Codecs, time.Minute)
	h = filters.WithLatencyTrackers(h)
	h = filters.WithRequestInfo(h, &apirequest.RequestInfoFactory{
		APIPrefixes: sets.NewString("api", "apis"), GrouplessAPIPrefixes: sets.NewString("api"),
	})
	return filters.WithAuditInit(filters.WithRequestReceivedTimestamp(h))
}

const auditRules = `
rules:
- level: None
  resources: [{group: "", resources: [secrets]}]
- level: Metadata
  resources: [{group: "", resources: [namespaces]}]
- level: Request
  omitManagedFields: true
  resources: [{group: "", resources: [serviceaccounts]}]
- level: RequestResponse
  resources: [{group: "", resources: [configmaps]}]
- level: RequestResponse
  omitManagedFields: true
  resources: [{group: apps}]
- level: Metadata
`

const accounts = "/api/v1/namespaces/a/serviceaccounts"

func as(name string, c call) call {
	header := map[string]string{"Authorization": "Bearer " + name}
	for key, value := range c.header {
		header[key] = value
	}
	c.header = header
	return c
}

// under adds a header to c.
func under(c call, name, value string) call {
	c = as("alice", c)
	c.header[name] = value
	return c
}

// auditCalls are requests whose records must be equal, in this order. %s is the side, because both write to one
// store.
func auditCalls() []call {
	list := []call{
		as("alice", post("/api/v1/namespaces", `{"metadata":{"name":"%s"}}`)),
		as("alice", post(configmaps, configmap("%s", "", ""))),
		as("alice", post(configmaps+"?dryRun=All", `{"metadata":{"generateName":"x-"}}`)),
		as("alice", post(configmaps, `{"metadata":{"name":"Bad Name"}}`)),
		as("alice", post(configmaps, `{"metadata":`)),
		as("alice", patch("merge-patch+json", configmaps+"/%s", `{"data":{"l":"x"}}`)),
		as("alice", put(configmaps+"/%s", configmap("%s", "", ""))),
		as("alice", post(accounts, `{"metadata":{"name":"%s"}}`)),
		as("alice", post("/api/v1/namespaces/a/secrets", `{"metadata":{"name":"%s"}}`)),
		as("alice", patch("apply-patch+yaml", "/apis/apps/v1/namespaces/a/deployments/%s?fieldManager=m", `{"apiVersion":"apps/v1","kind":"Deployment",`+deployment[1:])),
	}
	for _, path := range []string{configmaps, accounts, "/api/v1/namespaces"} {
		for _, accept := range []string{"application/json", "application/vnd.kubernetes.protobuf", "application/json;as=Table;v=v1;g=meta.k8s.io", "application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io", "text/html"} {
			list = append(list, under(get(path+"?fieldSelector=metadata.name%%3Dnone"), "Accept", accept), under(get(path+"?limit=x"), "Accept", accept))
		}
		for _, accept := range []string{"application/json", "application/json;as=Table;v=v1;g=meta.k8s.io", "application/json;as=PartialObjectMetadata;v=v1;g=meta.k8s.io"} {
			list = append(list, under(get(path+"/%s"), "Accept", accept), under(get(path+"/none"), "Accept", accept))
		}
		list = append(list, as("alice", get(path+"?watch=1&timeoutSeconds=1&fieldSelector=metadata.name%%3Dnone")), as("alice", get(path+"?watch=1&resourceVersion=x")))
	}
	return append(list,
		as("mallory", get(configmaps+"/%s")), as("mallory", get("/metrics")), as("broken", get(accounts)),
		under(under(get(configmaps+"/%s"), "Impersonate-User", "bob"), "Impersonate-Group", "h"),
		under(under(get(configmaps+"/%s"), "Impersonate-User", "mallory"), "User-Agent", strings.Repeat("agent", 1000)),
		under(get(accounts+"/%s"), "X-Forwarded-For", "192.0.2.1, 198.51.100.2"),
		as("alice", get("/apis/none/v1/things/x?a=b")), as("alice", get("/none")), as("alice", get("/version")),
		as("alice", call{method: "OPTIONS", path: configmaps}),
		as("alice", del(configmaps+"/%s?dryRun=All")), as("alice", del(configmaps+"/none")),
	)
}

func (c call) of(name string) call {
	c.path = strings.ReplaceAll(strings.ReplaceAll(c.path, "%s", name), "%%", "%")
	c.body = strings.ReplaceAll(c.body, "%s", name)
	return c
}

// TestRequestsAreRecordedAsUpstreamDoes checks that the same is recorded of requests as upstream's filters and
// handlers record.
func TestRequestsAreRecordedAsUpstreamDoes(t *testing.T) {
	t.Parallel()
	p, ours, theirs := auditedPair(t, auditRules)
	p.ours.must(t, as("root", post("/api/v1/namespaces", `{"metadata":{"name":"a"}}`)))
	ours.next(t, auditapi.StageResponseComplete)
	for _, c := range auditCalls() {
		end := auditapi.StageResponseComplete
		p.ours.call(t, c.of("one"))
		p.theirs.call(t, c.of("two"))
		if strings.Contains(c.path, "secrets") {
			continue // nothing is recorded, as the next ones show
		}
		got, want := ours.next(t, end), theirs.next(t, end)
		if diff := cmp.Diff(renamed(want), renamed(got)); diff != "" {
			t.Errorf("%s %s %v (-upstream +larder):\n%s", c.method, c.path, c.header, diff)
		}
	}
	refused := []call{
		get(configmaps), as("wrong", get(configmaps+"/one")), {method: "GET", path: configmaps, header: map[string]string{"Authorization": "Basic YTpi"}},
		get(configmaps + "?watch=1"), get("/healthz?access_token=x"), as("alice", get(configmaps+"?timeout=soon")), as("alice", get("/version?timeout=x")),
	}
	for _, c := range refused {
		p.ours.call(t, c)
		p.theirs.call(t, c)
		got, want := ours.next(t, auditapi.StageResponseStarted), theirs.next(t, auditapi.StageResponseStarted)
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s %s %v (-upstream +larder):\n%s", c.method, c.path, c.header, diff)
		}
	}
	if len(ours.all) > 0 || len(theirs.all) > 0 {
		t.Errorf("%d and %d records are left", len(ours.all), len(theirs.all))
	}
}

// TestPatchesAreRecordedAsJSON checks that the events of patches that are not JSON can be written. Upstream's cannot,
// and the other events of their batch are lost with them.
func TestPatchesAreRecordedAsJSON(t *testing.T) {
	t.Parallel()
	p, ours, _ := auditedPair(t, auditRules)
	p.ours.must(t, as("root", post("/api/v1/namespaces", `{"metadata":{"name":"a"}}`)))
	ours.next(t, auditapi.StageResponseComplete)
	for _, test := range []struct {
		call call
		code int
		body string // that the event holds
	}{
		{patch("apply-patch+yaml", configmaps+"/one?fieldManager=m", "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: one}\n"), 201, `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"one"}}`},
		{patch("apply-patch+yaml", configmaps+"/one?fieldManager=m", "{apiVersion: v1, kind: ConfigMap, metadata: {name: one}}"), 200, `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"one"}}`},
		{patch("apply-patch+yaml", configmaps+"/one?fieldManager=m", "a: b: c"), 400, "null"},
		{patch("merge-patch+json", configmaps+"/one", `{"data":`), 400, "null"},
		{patch("merge-patch+json", configmaps+"/one", `{"data": {"l":"x"}}`), 200, `{"data":{"l":"x"}}`},
	} {
		if a := p.ours.call(t, as("alice", test.call)); a.code != test.code {
			t.Errorf("%s: got %d %s, want %d", test.call.body, a.code, a.body, test.code)
		}
		all := ours.next(t, auditapi.StageResponseComplete)
		body, err := json.Marshal(all[len(all)-1].(map[string]any)["RequestObject"])
		if err != nil || string(body) != test.body {
			t.Errorf("%s: recorded %s, want %s (%v)", test.call.body, body, test.body, err)
		}
	}
}

// madeUp matches the name of a side, a name that the server generates, or an age.
var madeUp = regexp.MustCompile(`\b(one|two)\b|\bx-[a-z0-9]{5}\b|^\d+s$`)

// renamed replaces generated values of either side by the same name.
func renamed(fields any) any {
	switch v := fields.(type) {
	case map[string]any:
		for key := range v {
			v[key] = renamed(v[key])
		}
	case []any:
		for i := range v {
			v[i] = renamed(v[i])
		}
	case string:
		return madeUp.ReplaceAllString(v, "it")
	}
	return fields
}

// parsePolicy returns a policy of these rules.
func parsePolicy(t testing.TB, rules string) audit.PolicyRuleEvaluator {
	t.Helper()
	parsed, err := policy.LoadPolicyFromBytes([]byte("apiVersion: audit.k8s.io/v1\nkind: Policy\n" + rules))
	if err != nil {
		t.Fatal(err)
	}
	return policy.NewPolicyRuleEvaluator(parsed)
}

// stages returns the recorded stages up to one of ends, and the last stage's code and message.
func (e *events) stages(t *testing.T, ends ...auditapi.Stage) string {
	t.Helper()
	var out []string
	for _, one := range e.next(t, ends...) {
		fields := one.(map[string]any)
		text := fmt.Sprint(fields["Stage"])
		if status, ok := fields["ResponseStatus"].(map[string]any); ok {
			text += fmt.Sprintf(" %v %v", status["code"], status["message"])
		}
		out = append(out, text)
	}
	return strings.Join(out, ", ")
}

// TestFailuresAreRecordedAsUpstreamDoes checks the records of requests that end otherwise than with the response of a
// handler.
func TestFailuresAreRecordedAsUpstreamDoes(t *testing.T) {
	all := newEvents()
	release := make(chan struct{})
	f := newTestServer(t, Config{Access: Access{AuditPolicy: parsePolicy(t, "rules: [{level: Metadata}]"), Audit: all}}, func(routes *routes.Table) {
		routes.Handle("/panic", http.HandlerFunc(func(http.ResponseWriter, *http.Request) { panic("oh") }))
		routes.Handle("/abort", http.HandlerFunc(func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }))
		routes.Handle("/silent", http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
		routes.Handle("/slow", http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
			<-req.Context().Done()
			<-release
			fmt.Fprint(w, "too late")
		}))
		routes.Handle("/large", http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.Write(make([]byte, nethttp.MaxBuffered+1)) }))
		routes.Handle("/debug/pprof/panic", http.HandlerFunc(func(http.ResponseWriter, *http.Request) { panic("oh") }))
		routes.Handle("/debug/pprof/x", http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusTeapot) }))
	})
	ends := []auditapi.Stage{auditapi.StageResponseComplete, auditapi.StagePanic}
	for _, c := range []struct{ path, want string }{
		{"/panic", "RequestReceived, Panic 500 APIServer panic'd: oh"},
		{"/abort", "RequestReceived, Panic 500 APIServer panic'd: net/http: abort Handler"},
		{"/silent", "RequestReceived, ResponseComplete 200 Connection closed early"},
		{"/large", "RequestReceived, ResponseComplete 200 <nil>"},
		{"/none", "RequestReceived, ResponseComplete 404 <nil>"},
		{"/debug/pprof/panic", "RequestReceived, Panic 500 APIServer panic'd: oh"},
		{"/debug/pprof/x", "RequestReceived, ResponseStarted 418 <nil>, ResponseComplete 418 <nil>"},
	} {
		f.raw(t, "GET "+c.path+" HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n")
		if got := all.stages(t, ends...); got != c.want {
			t.Errorf("%s: got records %q, want %q", c.path, got, c.want)
		}
	}
	response := f.raw(t, "GET /slow?timeout=1ms HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n")
	if !strings.HasPrefix(response, "HTTP/1.1 504 ") || len(all.all) != 1 {
		t.Errorf("got %d records and response %q, want one record and status 504", len(all.all), response)
	}
	close(release)
	if got := all.stages(t, ends...); got != "RequestReceived, ResponseComplete 200 <nil>" {
		t.Errorf("got records %q of a handler that returned late", got)
	}
}

// TestRequestsThatCannotBeRecordedAreNotServed checks that a request is not served if its first stage cannot be
// recorded, and that it is served if the policy omits that stage.
func TestRequestsThatCannotBeRecordedAreNotServed(t *testing.T) {
	all := newEvents()
	all.broken = true
	served := false
	serve := func(omit string) *running {
		config := Config{Access: Access{AuditPolicy: parsePolicy(t, "omitStages: ["+omit+"]\nrules: [{level: Metadata}]"), Audit: all}}
		return newTestServer(t, config, func(routes *routes.Table) {
			routes.Handle("/x", http.HandlerFunc(func(http.ResponseWriter, *http.Request) { served = true }))
		})
	}
	const request = "GET /x HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n"
	response := serve("").raw(t, request)
	if !strings.HasPrefix(response, "HTTP/1.1 500 ") || !strings.HasSuffix(response, "\r\n\r\nInternal Server Error: \"/x\": failed to store audit event\n") {
		t.Errorf("got response %q, want status 500 and upstream's text", response)
	}
	if got := all.stages(t, auditapi.StageRequestReceived); served || len(all.all) > 0 {
		t.Errorf("served %v, %s, then %d more", served, got, len(all.all))
	}
	response = serve("RequestReceived").raw(t, request)
	if got := all.stages(t, auditapi.StageResponseComplete); !served || got != "ResponseComplete 200 Connection closed early" {
		t.Errorf("with the stage omitted: served %v, records %q, response %q", served, got, response)
	}
}
