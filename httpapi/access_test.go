package httpapi

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	utilerrors "k8s.io/apimachinery/pkg/util/errors"
	auditapi "k8s.io/apiserver/pkg/apis/audit"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/authenticatorfactory"
	"k8s.io/apiserver/pkg/authentication/request/headerrequest"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/warning"

	"github.com/larder-io/larder/httpapi/identity"
	"github.com/larder-io/larder/httpapi/routes"
	"github.com/larder-io/larder/internal/auth"
)

// gathered returns the metrics of the server, as samples and values.
func (f *running) gathered(t *testing.T) string {
	t.Helper()
	r := prometheus.NewRegistry()
	r.MustRegister(f.access)
	families, err := r.Gather()
	if err != nil {
		t.Fatal(err)
	}
	var text []string
	for _, family := range families {
		for _, m := range family.GetMetric() {
			n := m.GetCounter().GetValue() + float64(m.GetHistogram().GetSampleCount())
			if buckets := m.GetHistogram().GetBucket(); m.Histogram != nil && float64(buckets[len(buckets)-1].GetCumulativeCount()) != n {
				t.Errorf("%s: the last of %d buckets has %d of %v", family.GetName(), len(buckets), buckets[len(buckets)-1].GetCumulativeCount(), n)
			}
			text = append(text, fmt.Sprintf("%s{%s} %v", family.GetName(), m.GetLabel()[0].GetValue(), n))
		}
	}
	return strings.Join(text, "\n")
}

// TestAccessIsCounted checks that every authentication is counted, reused or not.
func TestAccessIsCounted(t *testing.T) {
	f := newTestServer(t, Config{
		Access: Access{
			Authenticator: authenticator.RequestFunc(func(req *http.Request) (*authenticator.Response, bool, error) {
				switch name := strings.TrimPrefix(req.Header.Get("Authorization"), "Bearer "); name {
				case "":
					return nil, false, nil
				case "bad":
					return nil, false, errors.New("no such token")
				default:
					return &authenticator.Response{User: &user.DefaultInfo{Name: name}}, true, nil
				}
			}),
			Authorizer: authorizer.AuthorizerFunc(func(_ context.Context, a authorizer.Attributes) (authorizer.Decision, string, error) {
				switch a.GetPath() {
				case "/denied":
					return authorizer.DecisionDeny, "", nil
				case "/unknown":
					return authorizer.DecisionNoOpinion, "", nil
				case "/broken":
					return authorizer.DecisionNoOpinion, "", errors.New("broken")
				}
				return authorizer.DecisionAllow, "", nil
			}),
		},
	}, func(routes *routes.Table) {
		routes.Handle("/x", http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	})
	client := f.client(t)
	get := func(token, path string) {
		t.Helper()
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "https://"+f.addr+path, nil)
		if err != nil {
			t.Fatal(err)
		}
		if token != "" {
			req.Header.Set("Authorization", "Bearer "+token)
		}
		resp, err := client.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := io.Copy(io.Discard, resp.Body); err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
	}
	for range 5 {
		get("admin", "/x")
	}
	get("a@b.c", "/denied")
	get("system:serviceaccount:kube-system:default", "/unknown")
	get("somebody", "/broken")
	get("bad", "/x")
	get("", "/x")
	want := `apiserver_request_filter_duration_seconds{audit} 8
apiserver_request_filter_duration_seconds{authentication} 10
apiserver_request_filter_duration_seconds{authorization} 5
apiserver_request_filter_duration_seconds{constrainedimpersonation} 8
apiserver_request_filter_duration_seconds{priorityandfairness} 8
authenticated_user_requests{admin} 5
authenticated_user_requests{email_id} 1
authenticated_user_requests{other} 1
authenticated_user_requests{system:serviceaccount:kube-system:default} 1
authentication_attempts{error} 1
authentication_attempts{failure} 1
authentication_attempts{success} 8
authentication_duration_seconds{error} 1
authentication_duration_seconds{failure} 1
authentication_duration_seconds{success} 8
authentication_token_cache_request_duration_seconds{hit} 4
authentication_token_cache_request_total{hit} 4
authorization_attempts_total{allowed} 5
authorization_attempts_total{denied} 1
authorization_attempts_total{error} 1
authorization_attempts_total{no-opinion} 1
authorization_duration_seconds{allowed} 5
authorization_duration_seconds{denied} 1
authorization_duration_seconds{error} 1
authorization_duration_seconds{no-opinion} 1`
	if got := f.gathered(t); got != want {
		t.Errorf("counted\n%s\nwant\n%s", got, want)
	}
	f.access.Reset()
	if got := f.gathered(t); got != "" {
		t.Errorf("after a reset there is\n%s", got)
	}
}

// TestFailedLookupsOfCredentialsGet429 checks that the client gets 429 if an object that its credential depends on
// cannot be read, because a 401 would be final. The request is audited as unauthenticated.
func TestFailedLookupsOfCredentialsGet429(t *testing.T) {
	recorded := newEvents()
	f := newTestServer(t, Config{Access: Access{
		AuditPolicy: parsePolicy(t, "rules: [{level: Metadata}]"), Audit: recorded,
		Authenticator: authenticator.RequestFunc(func(*http.Request) (*authenticator.Response, bool, error) {
			return nil, false, utilerrors.NewAggregate([]error{errors.New("no such token"), fmt.Errorf("token: %w", auth.ErrLookup)})
		}),
	}}, func(*routes.Table) {})
	resp, err := f.client(t).Get("https://" + f.addr + "/x")
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	if resp.StatusCode != http.StatusTooManyRequests || resp.Header.Get("Retry-After") != "1" {
		t.Errorf("got %s with header %v, want 429 with Retry-After 1", resp.Status, resp.Header)
	}
	if len(recorded.next(t, auditapi.StageResponseStarted)) == 0 {
		t.Error("no audit event was recorded")
	}
}

// TestCachedIdentitiesAreNotUsedWhereWrong checks that a connection's cached authentication is used for the next
// request only if nothing that it depends on differs.
func TestCachedIdentitiesAreNotUsedWhereWrong(t *testing.T) {
	var authentications atomic.Int32
	var generation atomic.Uint64
	var warns atomic.Bool
	config := func(byPath bool) Config {
		return Config{
			Access: Access{
				Generation:      generation.Load,
				AnonymousByPath: byPath,
				RequestHeader: &authenticatorfactory.RequestHeaderConfig{
					UsernameHeaders: headerrequest.StaticStringSlice{"X-Who"}, UIDHeaders: headerrequest.StaticStringSlice{}, GroupHeaders: headerrequest.StaticStringSlice{},
					ExtraHeaderPrefixes: headerrequest.StaticStringSlice{"X-Who-Extra-"},
				},
				Authenticator: authenticator.RequestFunc(func(req *http.Request) (*authenticator.Response, bool, error) {
					authentications.Add(1)
					name := user.Anonymous
					if token := req.Header.Get("Authorization"); token != "" {
						name = token
					}
					if who := req.Header.Get("X-Who"); who != "" {
						name = who
					}
					if warns.Load() {
						warning.AddWarning(req.Context(), "", "mind the token")
					}
					return &authenticator.Response{User: &user.DefaultInfo{Name: name}}, true, nil
				}),
			},
		}
	}
	echo := func(routes *routes.Table) {
		routes.Handle("/x", http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
			for name := range req.Header {
				if strings.HasPrefix(name, "X-Who") || name == "Authorization" {
					t.Errorf("the handler receives the header field %s, want it removed", name)
				}
			}
		}))
	}
	f, byPath := newTestServer(t, config(false), echo), newTestServer(t, config(true), echo)
	client := f.client(t)
	strict := byPath.client(t)
	get := func(c *http.Client, f *running, header, value string) *http.Response {
		t.Helper()
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "https://"+f.addr+"/x", nil)
		if err != nil {
			t.Fatal(err)
		}
		if header != "" {
			req.Header.Set(header, value)
		}
		resp, err := c.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		return resp
	}
	// Each pair of requests is repeated until both were within the lifetime of a cached identity.
	checkCached := func(what string, want bool, first, second func()) {
		t.Helper()
		for {
			began := time.Now()
			first()
			before := authentications.Load()
			second()
			cached := authentications.Load() == before
			if cached == want {
				return
			}
			if time.Since(began) < identity.CacheTTL/2 {
				t.Errorf("%s: cached %v, want %v", what, cached, want)
				return
			}
		}
	}
	plain := func() { get(client, f, "", "") }
	checkCached("the same request", true, plain, plain)
	checkCached("another generation", false, plain, func() { generation.Add(1); plain() })
	checkCached("a token", false, plain, func() { get(client, f, "Authorization", "t") })
	checkCached("a front proxy's header", false, plain, func() { get(client, f, "X-Who", "fred") })
	checkCached("a front proxy's other header", false, plain, func() { get(client, f, "X-Who-Extra-Scope", "all") })
	proxied := func() { get(client, f, "X-Who", "fred") }
	checkCached("a user that a front proxy asserts", false, proxied, proxied)
	anonymous := func() { get(strict, byPath, "", "") }
	checkCached("no credential, and anonymous access differs by path", false, anonymous, anonymous)
	token := func() { get(strict, byPath, "Authorization", "t") }
	checkCached("a token, and anonymous access differs by path", true, token, token)
	warns.Store(true)
	warned := func() {
		if resp := get(client, f, "Authorization", "w"); resp.Header.Get("Warning") != `299 - "mind the token"` {
			t.Errorf("got warnings %q, want the authenticator's", resp.Header.Values("Warning"))
		}
	}
	checkCached("a token with a warning", false, warned, warned)
}
