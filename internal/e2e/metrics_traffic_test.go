package e2e_test

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sync/errgroup"
	admissionv1 "k8s.io/api/admission/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// trafficRequest is a request of the traffic whose metrics and log lines are compared.
type trafficRequest struct {
	method, path, body string
	kind               string // Content-Type of the body; "" means JSON
	accept             string
	token              string // "" means the administrator's token, "-" means none
	as                 string // impersonated user
}

const (
	deployments = "/apis/apps/v1/namespaces/metered/deployments"
	metered     = "/api/v1/namespaces/metered/"
	gadget      = "/apis/larder.example.com/v1/namespaces/metered/gadgets"
	crds        = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"

	inProtobuf = "application/vnd.kubernetes.protobuf"
	asRows     = "application/json;as=Table;v=v1;g=meta.k8s.io,application/json"
	asPartial  = "application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io,application/json"
	mergePatch = "application/merge-patch+json"
	applyPatch = "application/apply-patch+yaml"
)

func (t trafficRequest) String() string {
	return strings.TrimSpace(fmt.Sprintf("%s %s %.80s %s %s %s %s", t.method, t.path, t.body, t.kind, t.accept, t.token, t.as))
}

// get returns a GET request of the administrator.
func get(path string) trafficRequest { return trafficRequest{method: http.MethodGet, path: path} }

// setupRequests returns the requests that create objects for the traffic: a namespace, CRDs, admission rules.
func setupRequests(hook *httptest.Server) []trafficRequest {
	ca := base64.StdEncoding.EncodeToString([]byte(certificateOf(hook)))
	configuration := func(kind, path string) string {
		return fmt.Sprintf(`{"kind":%q,"apiVersion":"admissionregistration.k8s.io/v1","metadata":{"name":"metered"},"webhooks":[{"name":"hook.example.com",
			"clientConfig":{"url":%q,"caBundle":%q},"sideEffects":"None","admissionReviewVersions":["v1"],
			"namespaceSelector":{"matchLabels":{"kubernetes.io/metadata.name":"metered"}},
			"rules":[{"apiGroups":[""],"apiVersions":["v1"],"operations":["CREATE"],"resources":["configmaps"]}]}]}`, kind, hook.URL+path, ca)
	}
	post := func(path, body string) trafficRequest {
		return trafficRequest{method: http.MethodPost, path: path, body: body}
	}
	return []trafficRequest{
		post("/api/v1/namespaces", `{"metadata":{"name":"metered"}}`),
		post(metered+"serviceaccounts", `{"metadata":{"name":"default"}}`),
		post(crds, gadgets),
		post("/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations", configuration("ValidatingWebhookConfiguration", "/validate")),
		post("/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations", configuration("MutatingWebhookConfiguration", "/mutate")),
		post("/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies", `{"metadata":{"name":"metered"},"spec":{"failurePolicy":"Fail",
			"matchConstraints":{"resourceRules":[{"apiGroups":[""],"apiVersions":["v1"],"operations":["CREATE"],"resources":["configmaps"]}]},
			"validations":[{"expression":"object.metadata.name != 'ruled-out'"}]}}`),
		post("/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicybindings", `{"metadata":{"name":"metered"},"spec":{"policyName":"metered","validationActions":["Deny"],
			"matchResources":{"namespaceSelector":{"matchLabels":{"kubernetes.io/metadata.name":"metered"}}}}}`),
		post("/apis/apiregistration.k8s.io/v1/apiservices", `{"metadata":{"name":"v1.gone.example.com"},"spec":{"group":"gone.example.com","version":"v1","groupPriorityMinimum":1000,"versionPriority":1,"insecureSkipTLSVerify":true,"service":{"namespace":"metered","name":"gone"}}}`),
	}
}

// writeTraffic is sent to the servers sequentially; readTraffic follows concurrently. After the same requests, servers
// must send the same responses.
func writeTraffic() []trafficRequest {
	const pod = `{"metadata":{"name":"p"},"spec":{"containers":[{"name":"c","image":"i"}]}}`
	const template = `{"metadata":{"labels":{"a":"b"}},"spec":{"containers":[{"name":"c","image":"i"}]}}`
	const deployment = `{"metadata":{"name":"d"},"spec":{"replicas":1,"selector":{"matchLabels":{"a":"b"}},"template":` + template + `}}`
	post := func(path, body string) trafficRequest {
		return trafficRequest{method: http.MethodPost, path: path, body: body}
	}
	return []trafficRequest{
		// Writes of each verb.
		post(metered+"configmaps", `{"metadata":{"name":"c","labels":{"a":"b"}},"data":{"k":"v"}}`),
		post(metered+"configmaps", `{"metadata":{"name":"c"}}`), // conflict
		post(metered+"configmaps", `{"metadata":{"name":"No Name"}}`),
		post(metered+"configmaps", `{"metadata":`),
		post(metered+"configmaps", `{"metadata":{"name":"ruled-out"}}`),
		post(metered+"configmaps", `{"metadata":{"name":"hook-denies"}}`),
		post(metered+"configmaps?dryRun=All", `{"metadata":{"name":"dry"}}`),
		post(metered+"configmaps?dryRun=Some", `{"metadata":{"name":"dry"}}`),
		post(metered+"configmaps?fieldValidation=Strict", `{"metadata":{"name":"strict"},"unknown":1}`),
		post(metered+"configmaps?fieldValidation=Warn", `{"metadata":{"name":"warned"},"unknown":1}`),
		{method: http.MethodPost, path: metered + "configmaps", body: "x", kind: "text/plain"},
		post(metered+"endpoints", `{"metadata":{"name":"e"}}`),
		{method: http.MethodPut, path: metered + "configmaps/c", body: `{"metadata":{"name":"c","labels":{"a":"b"}},"data":{"k":"w"}}`},
		{method: http.MethodPut, path: metered + "configmaps/c", body: `{"metadata":{"name":"c","resourceVersion":"1"}}`},
		{method: http.MethodPut, path: metered + "configmaps/none", body: `{"metadata":{"name":"other"}}`},
		{method: http.MethodPatch, path: metered + "configmaps/c", kind: mergePatch, body: `{"data":{"l":"m"}}`},
		{method: http.MethodPatch, path: metered + "configmaps/c", kind: "application/strategic-merge-patch+json", body: `{"data":{"l":"n"}}`},
		{method: http.MethodPatch, path: metered + "configmaps/c", kind: "application/json-patch+json", body: `[{"op":"remove","path":"/data/l"}]`},
		{method: http.MethodPatch, path: metered + "configmaps/c", kind: "application/json-patch+json", body: `[{"op":"remove","path":"/data/none"}]`},
		{method: http.MethodPatch, path: metered + "configmaps/none", kind: mergePatch, body: `{}`},
		{method: http.MethodPatch, path: metered + "configmaps/applied?fieldManager=m", kind: applyPatch, body: `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"applied"},"data":{"x":"y"}}`},
		{method: http.MethodPatch, path: metered + "configmaps/applied?fieldManager=n", kind: applyPatch, body: `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"applied"},"data":{"x":"z"}}`},
		post(metered+"secrets", `{"metadata":{"name":"s"},"stringData":{"password":"hunter2"}}`),
		post(metered+"services", `{"metadata":{"name":"s"},"spec":{"selector":{"a":"b"},"ports":[{"port":80}]}}`),
		post(metered+"services", `{"metadata":{"name":"n"},"spec":{"type":"NodePort","selector":{"a":"b"},"ports":[{"port":80}]}}`),
		post(metered+"resourcequotas", `{"metadata":{"name":"q"},"spec":{"hard":{"pods":"10"}}}`),
		post(metered+"limitranges", `{"metadata":{"name":"l"},"spec":{"limits":[{"type":"Container","default":{"cpu":"1"}}]}}`),
		post("/api/v1/nodes", `{"metadata":{"name":"metered"}}`),
		post(metered+"events", `{"metadata":{"name":"e"},"involvedObject":{"namespace":"metered","name":"p"},"reason":"x"}`),
		post(deployments, deployment),
		post("/apis/coordination.k8s.io/v1/namespaces/metered/leases", `{"metadata":{"name":"l"},"spec":{"holderIdentity":"me"}}`),
		post("/apis/policy/v1/namespaces/metered/poddisruptionbudgets", `{"metadata":{"name":"p"},"spec":{"maxUnavailable":1,"selector":{}}}`),
		post("/apis/networking.k8s.io/v1/namespaces/metered/ingresses", `{"metadata":{"name":"i"},"spec":{"defaultBackend":{"service":{"name":"s","port":{"number":80}}}}}`),
		post("/apis/batch/v1/namespaces/metered/cronjobs", `{"metadata":{"name":"c"},"spec":{"schedule":"@daily","jobTemplate":{"spec":{"template":{"spec":{"restartPolicy":"Never","containers":[{"name":"c","image":"i"}]}}}}}}`),
		post(gadget, `{"kind":"Gadget","apiVersion":"larder.example.com/v1","metadata":{"name":"g"},"spec":{"size":1,"gone":true}}`),
		post(gadget, `{"kind":"Gadget","apiVersion":"larder.example.com/v1","metadata":{"name":"h"},"spec":{"size":"large"}}`),
		{method: http.MethodPut, path: gadget + "/none", body: `{"kind":"Gadget","apiVersion":"larder.example.com/v1","metadata":{"name":"none"}}`},
		{method: http.MethodPatch, path: gadget + "/g", kind: mergePatch, body: `{"spec":{"color":"blue"}}`},
		{method: http.MethodPatch, path: gadget + "/g/status", kind: mergePatch, body: `{"status":{"x":"y"}}`},

		// Subresources, and requests that upgrade their connections.
		{method: http.MethodPatch, path: deployments + "/d/scale", kind: mergePatch, body: `{"spec":{"replicas":2}}`},
		{method: http.MethodPatch, path: deployments + "/d/status", kind: mergePatch, body: `{"status":{"replicas":1}}`},
		post(metered+"pods", pod),
		post(metered+"pods/p/binding", `{"metadata":{"name":"p"},"target":{"kind":"Node","name":"metered"}}`),
		post(metered+"pods/p/eviction", `{"metadata":{"name":"none"}}`),
		post(metered+"pods/none/eviction", `{"metadata":{"name":"none"}}`),
		get(metered + "pods/p/log"),
		get(metered + "pods/none/log"),
		post(metered+"pods/p/exec?command=true&stdout=1", ""),
		get(metered + "services/s/proxy/"),
		get("/api/v1/nodes/metered/proxy/"),
		{method: http.MethodPatch, path: "/api/v1/nodes/metered/status", kind: mergePatch, body: `{"status":{"phase":"x"}}`},
		post("/apis/authorization.k8s.io/v1/subjectaccessreviews", `{"spec":{"user":"alice","resourceAttributes":{"verb":"get","resource":"pods"}}}`),
		post("/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", `{"spec":{"resourceAttributes":{"verb":"get","resource":"pods"}}}`),
		post("/apis/authentication.k8s.io/v1/tokenreviews", `{"spec":{"token":"nobody's"}}`),
	}
}

// readTraffic reads four resources in every way, and many other paths.
func readTraffic() []trafficRequest {
	var all []trafficRequest
	for list, name := range map[string]string{metered + "configmaps": "c", gadget: "g", deployments: "d", metered + "events": "e"} {
		all = append(all, readsOf(list, name)...)
	}
	all = append(all, unprivilegedTraffic()...)
	return append(all,
		// Deprecated kinds.
		get("/api/v1/componentstatuses"),
		get(metered+"endpoints/e"),
		get(metered+"endpoints"),
		get(metered+"endpoints?watch=1&timeoutSeconds=1"),
		get("/api/v1/watch/namespaces/metered/secrets?timeoutSeconds=1"),
		// All objects of a resource.
		get("/api/v1/secrets"), get("/api/v1/configmaps?limit=1"), get("/api/v1/nodes"), get("/api/v1/nodes/metered"), get("/apis/larder.example.com/v1/gadgets"),
		get("/apis/larder.example.com/v1alpha1/namespaces/metered/gadgets"),
		get("/api/v1/nodes?watch=1&timeoutSeconds=1"),
		// Paths that are no resource.
		get("/"), get("/api"), get("/apis"), get("/api/v1"), get("/apis/apps"), get("/apis/apps/v1"), get("/apis/larder.example.com/v1"),
		get("/version"), get("/openapi/v2"), get("/openapi/v3"), get("/openapi/v3/api/v1"), get("/healthz"), get("/livez"), get("/readyz/ping"), get("/metrics/slis"),
		get("/.well-known/openid-configuration"), get("/openid/v1/jwks"), get("/nothing"), get("/apis/none.example.com/v1/nothing"), get("/api/v1/nothing"), get("/apis/gone.example.com/v1"),
		get("/debug/api_priority_and_fairness/dump_priority_levels"), get("/debug/pprof/cmdline"),
		trafficRequest{method: http.MethodDelete, path: "/version"}, trafficRequest{method: http.MethodPut, path: metered + "configmaps"}, trafficRequest{method: "OPTIONS", path: metered + "configmaps"},
		trafficRequest{method: http.MethodHead, path: metered + "configmaps/c"}, trafficRequest{method: "BREW", path: metered + "configmaps/c"},
	)
}

// unprivilegedTraffic returns requests that the server rejects, or that users with few rights send.
func unprivilegedTraffic() []trafficRequest {
	return []trafficRequest{
		{method: http.MethodGet, path: metered + "configmaps/c", token: "nobody's"},
		{method: http.MethodGet, path: metered + "configmaps", token: "-"},
		{method: http.MethodGet, path: "/version", token: "-"},
		{method: http.MethodGet, path: "/healthz", token: "-"},
		{method: http.MethodGet, path: metered + "configmaps/c", token: "alice-token"},
		{method: http.MethodGet, path: metered + "configmaps?watch=1", token: "alice-token"},
		{method: http.MethodDelete, path: metered + "configmaps/c", token: "alice-token"},
		{method: http.MethodGet, path: metered + "configmaps/c", as: "alice"},
		{method: http.MethodGet, path: metered + "configmaps/c", token: "alice-token", as: "root"},
	}
}

// readsOf returns reads of a resource with every verb and media type.
func readsOf(list, name string) []trafficRequest {
	item := list + "/" + name
	all := []trafficRequest{
		get(item), get(item), get(item), get(item + "?resourceVersion=0"), get(item + "?pretty=true"), get(list + "/none"), get(item + "?resourceVersion=x"),
		get(list), get(list), get(list + "?resourceVersion=0"), get(list + "?limit=1"), get(list + "?limit=x"), get(list + "?labelSelector=a%3Db"), get(list + "?labelSelector=%25"),
		get(list + "?fieldSelector=metadata.name%3D" + name), get(list + "?fieldSelector=none%3Dx"), get(list + "?resourceVersion=1&resourceVersionMatch=Exact"), get(list + "?continue=x"),
		get(list + "?resourceVersion=9999999&timeout=1s"),
	}
	for _, accept := range []string{inProtobuf, asRows, asPartial, "text/html"} {
		all = append(all, trafficRequest{method: http.MethodGet, path: item, accept: accept}, trafficRequest{method: http.MethodGet, path: list, accept: accept})
	}
	watch := list + "?watch=1&timeoutSeconds=1&"
	all = append(all,
		get(watch), get(watch+"resourceVersion=0"), get(watch+"resourceVersion=1"), get(watch+"resourceVersion=x"), get(watch+"labelSelector=a%3Db"),
		get(watch+"sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true"),
		get(watch+"sendInitialEvents=true"),
		get(watch+"fieldSelector=metadata.name%3D"+name),
	)
	for _, accept := range []string{inProtobuf, asRows, "text/html"} {
		all = append(all, trafficRequest{method: http.MethodGet, path: watch, accept: accept})
	}
	return all
}

// cleanupRequests returns the requests that delete the objects of the traffic.
func cleanupRequests() []trafficRequest {
	drop := func(path string) trafficRequest { return trafficRequest{method: http.MethodDelete, path: path} }
	return []trafficRequest{
		drop(metered + "configmaps/c"), drop(metered + "configmaps/none"), drop(metered + "configmaps"), drop(metered + "pods/p?gracePeriodSeconds=0"),
		drop(gadget + "/g"), drop(gadget), drop("/apis/apps/v1/namespaces/metered/deployments/d"), drop(metered + "services/n"), drop(metered + "events"),
		drop(metered + "secrets"), drop("/api/v1/nodes/metered"), drop(metered + "endpoints/e"),
	}
}

// send sends a trafficRequest to m, reads the response to its end, and returns its code and body.
func (m *member) send(v trafficRequest) (int, string) {
	header := http.Header{"User-Agent": {"meter/1.0"}}
	set := func(name, value string) {
		if value != "" {
			header.Set(name, value)
		}
	}
	set("Content-Type", v.kind)
	set("Accept", v.accept)
	set("Impersonate-User", v.as)
	switch v.token {
	case "":
	case "-":
		header["Authorization"] = []string{" "} // sends an empty value
	default:
		set("Authorization", "Bearer "+v.token)
	}
	return m.ask(v.method, v.path, v.body, header)
}

// certificateOf returns the certificate of a test server as PEM.
func certificateOf(s *httptest.Server) string {
	return "-----BEGIN CERTIFICATE-----\n" + base64.StdEncoding.EncodeToString(s.Certificate().Raw) + "\n-----END CERTIFICATE-----\n"
}

// metricsWebhook starts a webhook that denies objects with the name hook-denies.
func metricsWebhook(t *testing.T) *httptest.Server {
	hook := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		var review admissionv1.AdmissionReview
		raw, err := io.ReadAll(req.Body)
		if err == nil {
			err = json.Unmarshal(raw, &review)
		}
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		validates := req.URL.Path == "/validate"
		review.Response = &admissionv1.AdmissionResponse{UID: review.Request.UID, Allowed: !validates || review.Request.Name != "hook-denies"}
		if !review.Response.Allowed {
			review.Response.Result = &metav1.Status{Code: http.StatusForbidden, Message: "denied"}
		}
		review.Request = nil
		w.Header().Set("Content-Type", "application/json")
		if err := json.NewEncoder(w).Encode(review); err != nil {
			t.Error(err)
		}
	}))
	t.Cleanup(hook.Close)
	return hook
}

// setUp sends setupRequests to m, and waits until m serves the CRD, applies the admission rules, and has logged that.
func (m *member) setUp(t *testing.T, hook *httptest.Server) {
	t.Helper()
	for _, v := range setupRequests(hook) {
		if code, body := m.send(v); code != http.StatusCreated {
			t.Fatalf("%s: got %d %s, want 201", v, code, body)
		}
	}
	for what, v := range map[string]struct {
		trafficRequest
		code int
	}{
		"serves custom resources": {get(gadget), http.StatusOK},
		// These create no object until then: the metrics count the objects in lists.
		"applies the policy": {trafficRequest{method: http.MethodPost, path: metered + "configmaps?dryRun=All", body: `{"metadata":{"name":"ruled-out"}}`}, http.StatusUnprocessableEntity},
		"calls the webhook":  {trafficRequest{method: http.MethodPost, path: metered + "configmaps?dryRun=All", body: `{"metadata":{"name":"hook-denies"}}`}, http.StatusForbidden},
	} {
		m.Eventually(t, what, func() error {
			if code, body := m.ask(v.method, v.path, v.body, nil); code != v.code {
				return fmt.Errorf("got %d %s, want %d", code, body, v.code)
			}
			return nil
		})
	}
	m.scrape(t)
	m.Await(t, `/metrics"`) // the test has then read the log lines of all requests so far
}

// round sends the traffic to m and returns the status code of each response, by request.
func (m *member) round(t *testing.T) map[string]int {
	t.Helper()
	codes := make(map[string]int)
	var mu sync.Mutex
	record := func(v trafficRequest) {
		code, _ := m.send(v)
		mu.Lock()
		defer mu.Unlock()
		codes[v.String()] = code
	}
	for _, v := range writeTraffic() {
		record(v)
	}
	concurrently(readTraffic(), record)
	m.useToken(t)
	m.liveWatch(t)
	for _, v := range cleanupRequests() {
		record(v)
	}
	return codes
}

// concurrently calls send for each request, at most 16 at a time.
func concurrently(requests []trafficRequest, send func(trafficRequest)) {
	const most = 16
	var reads errgroup.Group
	reads.SetLimit(most)
	for _, v := range requests {
		reads.Go(func() error {
			send(v)
			return nil
		})
	}
	_ = reads.Wait() // no function returns an error
}

// useToken creates a token of a service account and uses it.
func (m *member) useToken(t *testing.T) {
	t.Helper()
	code, body := m.send(trafficRequest{method: http.MethodPost, path: metered + "serviceaccounts/default/token", body: `{"spec":{}}`})
	var made struct{ Status struct{ Token string } }
	if err := json.Unmarshal([]byte(body), &made); err != nil || code != http.StatusCreated {
		t.Fatalf("creating a token: got %d %s, error %v, want 201", code, body, err)
	}
	for range 3 {
		if code, body := m.send(trafficRequest{method: http.MethodGet, path: metered + "configmaps/c", token: made.Status.Token}); code != http.StatusForbidden {
			t.Errorf("GET with a service account's token: got %d %s, want 403", code, body)
		}
	}
}

// liveWatch opens a watch, creates three objects, and reads the watch to its end.
func (m *member) liveWatch(t *testing.T) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, m.url()+metered+"configmaps?watch=1&timeoutSeconds=8&resourceVersion=0&labelSelector=live", nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer root-token")
	req.Header.Set("User-Agent", "meter/1.0")
	resp, err := m.client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	for i := range 3 {
		body := fmt.Sprintf(`{"metadata":{"name":"live-%d","labels":{"live":"1"}},"data":{"pad":%q}}`, i, strings.Repeat("x", 1<<(10*i)%(3<<10)))
		if code, text := m.send(trafficRequest{method: http.MethodPost, path: metered + "configmaps", body: body}); code != http.StatusCreated {
			t.Fatalf("creating live-%d: got %d %s, want 201", i, code, text)
		}
	}
	if _, err := io.ReadAll(resp.Body); err != nil {
		t.Fatal(err)
	}
}

// metricsArgs returns the flags of servers whose metrics and log lines are compared.
func metricsArgs(t *testing.T) []string {
	t.Helper()
	dir := t.TempDir()
	write := func(name, text string) string {
		file := filepath.Join(dir, name)
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return file
	}
	return []string{
		"--v=3",
		"--audit-policy-file=" + write("policy.yaml", "apiVersion: audit.k8s.io/v1\nkind: Policy\nrules:\n- level: Metadata\n"),
		"--encryption-provider-config=" + write("encryption.yaml", `apiVersion: apiserver.config.k8s.io/v1
kind: EncryptionConfiguration
resources:
- resources: [secrets]
  providers:
  - aescbc: {keys: [{name: k, secret: dmVyeXNlY3JldHZlcnlzZWNyZXR2ZXJ5c2VjcmV0ISE=}]}
  - identity: {}
`),
	}
}
