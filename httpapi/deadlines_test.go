package httpapi

import (
	"context"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/warning"

	"github.com/larder-io/larder/httpapi/routes"
)

// TestDeadlineOfPreparation checks that authentication, impersonation and authorization end at the request's
// deadline. For long-running requests they have the timeout of other requests.
func TestDeadlineOfPreparation(t *testing.T) {
	never := func(ctx context.Context) error {
		<-ctx.Done()
		return ctx.Err()
	}
	jane := authenticator.RequestFunc(func(*http.Request) (*authenticator.Response, bool, error) {
		return &authenticator.Response{User: &user.DefaultInfo{Name: "jane"}}, true, nil
	})
	slowAuthenticator := authenticator.RequestFunc(func(req *http.Request) (*authenticator.Response, bool, error) {
		return nil, false, never(req.Context())
	})
	slowAuthorizer := authorizer.AuthorizerFunc(func(ctx context.Context, _ authorizer.Attributes) (authorizer.Decision, string, error) {
		return authorizer.DecisionNoOpinion, "", never(ctx)
	})
	for name, c := range map[string]struct {
		authenticator authenticator.Request
		header        http.Header
	}{
		"authentication": {authenticator: slowAuthenticator},
		"impersonation":  {authenticator: jane, header: http.Header{"Impersonate-User": {"joe"}}},
		"authorization":  {authenticator: jane},
	} {
		for kind, path := range map[string]string{
			"the request's": "/x?timeout=20ms", "the server's": "/x", "watch": "/api/v1/pods?watch=1",
		} {
			t.Run(name+"/"+kind, func(t *testing.T) {
				t.Parallel()
				config := Config{Access: Access{Authenticator: c.authenticator, Authorizer: slowAuthorizer}, Timeouts: Timeouts{RequestTimeout: time.Hour}}
				if kind != "the request's" {
					config.RequestTimeout = 20 * time.Millisecond
				}
				f := newTestServer(t, config, func(routes *routes.Table) { routes.Handle("/x", http.HandlerFunc(echo)) })
				req, err := http.NewRequest(http.MethodGet, "https://"+f.addr+path, nil)
				if err != nil {
					t.Fatal(err)
				}
				for key, value := range c.header {
					req.Header[key] = value
				}
				resp, err := f.client(t).Do(req)
				if err != nil {
					t.Fatal(err)
				}
				defer resp.Body.Close()
				if resp.StatusCode != http.StatusGatewayTimeout {
					t.Errorf("got status %d, want 504", resp.StatusCode)
				}
			})
		}
	}
}

// waitingPlugin is an admission plugin that warns, and then waits for the deadline of the request.
type waitingPlugin struct{ waits *atomic.Bool }

// Handles implements admission.Interface.
func (waitingPlugin) Handles(admission.Operation) bool { return true }

// Validate implements admission.ValidationInterface.
func (p waitingPlugin) Validate(ctx context.Context, _ admission.Attributes, _ admission.ObjectInterfaces) error {
	if !p.waits.Load() {
		return nil
	}
	warning.AddWarning(ctx, "", "waiting")
	<-ctx.Done()
	return ctx.Err()
}

// TestDeadlineOfWrites checks that a write whose admission lasts until the deadline gets the response of
// kube-apiserver's timeout filter, without warnings, and stores nothing.
func TestDeadlineOfWrites(t *testing.T) {
	plugin := waitingPlugin{new(atomic.Bool)}
	p := newPairWith(t, func(c *Config) { c.Admission = plugin })
	p.ours.must(t, post("/api/v1/namespaces", `{"metadata":{"name":"a"}}`))
	stored := p.ours.must(t, post(configmaps, configmap("one", "", "v")))
	plugin.waits.Store(true)
	const one = configmaps + "/one?timeout=30ms"
	for name, c := range map[string]call{
		"create":            post(configmaps+"?timeout=30ms", configmap("two", "", "v")),
		"update":            put(one, configmap("one", "", "w")),
		"patch":             patch("merge-patch+json", one, `{"data":{"k":"w"}}`),
		"apply":             patch("apply-patch+yaml", one+"&fieldManager=m&force=true", `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"one"},"data":{"k":"w"}}`),
		"delete":            del(one),
		"delete collection": del(configmaps + "?timeout=30ms"),
	} {
		a := p.ours.call(t, c)
		if a.code != http.StatusGatewayTimeout || a.header.Get("Content-Type") != "text/plain; charset=utf-8" || a.header.Get("Warning") != "" ||
			!strings.Contains(string(a.body), "request did not complete within the allotted timeout") {
			t.Errorf("%s: got status %d, header %v and body %s, want the timeout filter's 504", name, a.code, a.header, a.body)
		}
	}
	plugin.waits.Store(false)
	if now := p.ours.must(t, get(configmaps+"/one")); string(now.body) != string(stored.body) {
		t.Errorf("stored is %s, want %s", now.body, stored.body)
	}
	if a := p.ours.call(t, get(configmaps+"/two")); a.code != http.StatusNotFound {
		t.Errorf("got status %d for the object of the create that timed out, want 404: %s", a.code, a.body)
	}
}

// TestDeadlineOfReads checks that reads whose deadline passes before etcd responds get the response of
// kube-apiserver's timeout filter. So does a list from the cache that was not converted to YAML in time.
func TestDeadlineOfReads(t *testing.T) {
	p := newPairWith(t, func(*Config) {})
	p.ours.must(t, post("/api/v1/namespaces", `{"metadata":{"name":"a"}}`))
	p.ours.must(t, post(configmaps, configmap("one", "", strings.Repeat("v", 600<<10))))
	for path, accept := range map[string]string{
		"/one?": "", "?": "", "?limit=1&": "", "?labelSelector=a&": "", "?resourceVersion=99999&": "", "?resourceVersion=0&": "application/yaml",
	} {
		a := p.ours.call(t, call{method: "GET", path: configmaps + path + "timeout=1ns", header: map[string]string{"Accept": accept}})
		if a.code != http.StatusGatewayTimeout || !strings.Contains(string(a.body), "request did not complete within the allotted timeout") {
			t.Errorf("%s: got status %d and body %s, want the timeout filter's 504", path, a.code, a.body)
		}
	}
}
