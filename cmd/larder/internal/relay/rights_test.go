package relay

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"

	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/larder-io/larder/httpapi/relay"
	"github.com/larder-io/larder/internal/auth"
	"github.com/larder-io/larder/internal/proctest/testcert"
	"github.com/larder-io/larder/kv/kvtest"
)

const relaysToken = "token-of-the-relay"

// reviewer is the part of a kube-apiserver that reviews. It knows the token of ann, who has all rights in the
// namespace hers.
type reviewer struct {
	*httptest.Server
	dir     string
	away    atomic.Bool            // responds with 500
	refuses atomic.Bool            // refuses everything
	page    atomic.Bool            // a proxy in front of it sends a login page
	gateway atomic.Pointer[string] // the response of a proxy in front of it
}

func newReviewer(t *testing.T) *reviewer {
	t.Helper()
	r := &reviewer{dir: t.TempDir()}
	r.Server = httptest.NewTLSServer(http.StripPrefix("/base", http.HandlerFunc(r.serveReview)))
	t.Cleanup(r.Close)
	ca := (&testcert.Authority{Cert: r.Certificate()}).PEM()
	for name, text := range map[string]string{"ca.crt": ca, "token": relaysToken} {
		if err := os.WriteFile(filepath.Join(r.dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return r
}

func (r *reviewer) serveReview(w http.ResponseWriter, req *http.Request) {
	if r.away.Load() {
		http.Error(w, "etcd is away", http.StatusInternalServerError)
		return
	}
	if req.URL.Path == "/login" {
		w.Header().Set("Content-Type", "text/html")
		fmt.Fprint(w, "<html>who are you?")
		return
	}
	if text := r.gateway.Load(); text != nil {
		w.Header().Set("Content-Type", "application/json")
		w.Header().Set("Content-Length", strconv.Itoa(max(len(*text), 200))) // more than it sends, if that has no spaces after it
		fmt.Fprint(w, *text)
		return
	}
	if r.page.Load() {
		http.Redirect(w, req, "/base/login", http.StatusFound)
		return
	}
	if req.Header.Get("Authorization") != "Bearer "+relaysToken {
		http.Error(w, "who are you?", http.StatusUnauthorized)
		return
	}
	var review any
	switch req.URL.Path {
	case tokenReviews:
		tokens := new(authenticationv1.TokenReview)
		review = tokens
		_ = json.NewDecoder(req.Body).Decode(tokens)
		if tokens.Spec.Token == "anns" && !r.refuses.Load() {
			tokens.Status.Authenticated = true
			tokens.Status.User = authenticationv1.UserInfo{Username: "ann", UID: "7", Groups: []string{"dev"}}
		} else {
			tokens.Status.Error = "[invalid bearer token, it has expired]"
		}
	case accessReviews:
		access := new(authorizationv1.SubjectAccessReview)
		review = access
		_ = json.NewDecoder(req.Body).Decode(access)
		access.Status.Allowed = access.Spec.User == "ann" && access.Spec.ResourceAttributes.Namespace == "hers" && !r.refuses.Load()
	case "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews":
		access := new(authorizationv1.SelfSubjectAccessReview)
		review = access
		_ = json.NewDecoder(req.Body).Decode(access)
		access.Status.Allowed = access.Spec.ResourceAttributes.Verb == "create" || access.Spec.ResourceAttributes.Resource == "users"
	default:
		http.NotFound(w, req)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(http.StatusCreated)
	_ = json.NewEncoder(w).Encode(review)
}

// kubeconfig writes a kubeconfig with paths relative to it, and returns its file.
func (r *reviewer) kubeconfig(t *testing.T, change func(*clientcmdapi.Config)) string {
	t.Helper()
	config := clientcmdapi.Config{
		Clusters:  map[string]*clientcmdapi.Cluster{"pod": {Server: r.URL + "/base/", CertificateAuthority: "ca.crt"}},
		AuthInfos: map[string]*clientcmdapi.AuthInfo{"pod": {TokenFile: "token"}},
		Contexts:  map[string]*clientcmdapi.Context{"pod": {Cluster: "pod", AuthInfo: "pod"}, "other": {Cluster: "none", AuthInfo: "none"}}, CurrentContext: "pod",
	}
	change(&config)
	file := filepath.Join(r.dir, "kubeconfig")
	if err := clientcmd.WriteToFile(config, file); err != nil {
		t.Fatal(err)
	}
	return file
}

// upstream loads the kubeconfig of r.
func (r *reviewer) upstream(t *testing.T) *rest.Config {
	t.Helper()
	upstream, err := loadUpstream(r.kubeconfig(t, func(*clientcmdapi.Config) {}))
	if err != nil {
		t.Fatal(err)
	}
	return upstream
}

// rights loads and runs the rights of a relay of that upstream.
func rights(t *testing.T, upstream *rest.Config, clientCA string) *auth.Auth {
	t.Helper()
	client, err := clientFor(upstream)
	if err != nil {
		t.Fatal(err)
	}
	base, _, err := rest.DefaultServerUrlFor(upstream)
	if err != nil {
		t.Fatal(err)
	}
	a, err := loadRights(t.Context(), client, base, clientCA)
	if err != nil {
		t.Fatal(err)
	}
	kvtest.RunUntilEnd(t, a.Run)
	return a
}

// bearer returns a request with a token, "" for none.
func bearer(t *testing.T, token string) *http.Request {
	req := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/", nil)
	req.TLS = nil
	if token != "" {
		req.Header.Set("Authorization", "Bearer "+token)
	}
	return req
}

func pods(u user.Info, namespace string) authorizer.AttributesRecord {
	return authorizer.AttributesRecord{User: u, Verb: "list", APIVersion: "v1", Resource: "pods", Namespace: namespace, ResourceRequest: true}
}

// TestRightsAreTheUpstreams checks that the upstream reviews tokens and requests, with the credential of its
// kubeconfig or of a pod.
func TestRightsAreTheUpstreams(t *testing.T) {
	r := newReviewer(t)
	pod := &rest.Config{Host: r.URL + "/base", BearerTokenFile: filepath.Join(r.dir, "token"), TLSClientConfig: rest.TLSClientConfig{CAFile: filepath.Join(r.dir, "ca.crt")}}
	authority := testcert.New(t, "clients")
	ca := filepath.Join(r.dir, "clients.crt")
	if err := os.WriteFile(ca, []byte(authority.PEM()), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, upstream := range map[string]*rest.Config{"kubeconfig": r.upstream(t), "pod": pod} {
		a := rights(t, upstream, ca)
		resp, ok, err := a.Authenticator.AuthenticateRequest(bearer(t, "anns"))
		if err != nil || !ok || resp.User.GetName() != "ann" || resp.User.GetUID() != "7" || !slices.Contains(resp.User.GetGroups(), "dev") {
			t.Fatalf("%s: response %v, authenticated %t, error %v; want ann", name, resp, ok, err)
		}
		if resp, ok, err := a.Authenticator.AuthenticateRequest(bearer(t, "bad")); ok || err == nil || auth.IsUnreachable(err) {
			t.Errorf("%s: a bad token: %v, %v, %v", name, resp, ok, err)
		}
		if resp, ok, err := a.Authenticator.AuthenticateRequest(bearer(t, "")); !ok || err != nil {
			t.Errorf("%s: anonymous: %v, %v, %v", name, resp, ok, err)
		}
		for namespace, want := range map[string]authorizer.Decision{"hers": authorizer.DecisionAllow, "his": authorizer.DecisionNoOpinion} {
			if decision, _, err := a.Authorizer.Authorize(t.Context(), pods(resp.User, namespace)); decision != want || err != nil {
				t.Errorf("%s in %s: decision %v, error %v; want %v", name, namespace, decision, err, want)
			}
		}
		if a.ClientCA == nil {
			t.Error("no client CA")
		}
	}
}

// TestWatchesOfRefusedTokensEnd checks that a refusal with a reason ends a watch, and that an upstream that does not
// respond does not. The upstream must review every token, whatever issuer the token names.
func TestWatchesOfRefusedTokensEnd(t *testing.T) {
	r := newReviewer(t)
	legacy := "e30." + base64.RawURLEncoding.EncodeToString([]byte(`{"iss":"kubernetes/serviceaccount"}`)) + ".eA"
	for _, token := range []string{"anns", legacy} {
		revocation := rights(t, r.upstream(t), "").Revocation()
		if !revocation.Dependencies(bearer(t, token)).Remote {
			t.Errorf("%s: the credential does not depend on the upstream", token)
		}
		again := revocation.Authenticator
		r.away.Store(true)
		if _, ok, err := again.AuthenticateRequest(bearer(t, token)); ok || err == nil {
			t.Errorf("%s: the upstream is away: %v, %v", token, ok, err)
		}
		r.away.Store(false)
		r.refuses.Store(true)
		if _, ok, err := again.AuthenticateRequest(bearer(t, token)); ok || err != nil {
			t.Errorf("%s: the upstream refuses: %v, %v", token, ok, err)
		}
		r.refuses.Store(false)
	}
}

// TestPagesDecideNothing checks that a web page from a server in front of the upstream does not count as a refusal.
func TestPagesDecideNothing(t *testing.T) {
	r := newReviewer(t)
	a := rights(t, r.upstream(t), "")
	r.page.Store(true)
	decidesNothing(t, "page", a)
	r.page.Store(false)
	status := `"status":{"authenticated":false,"allowed":false}}`
	for name, text := range map[string]string{
		"no kind": `{"error":"maintenance"}`, "another kind": `{"apiVersion":"v1","kind":"Pod",` + status,
		"another version": `{"apiVersion":"authentication.k8s.io/v2","kind":"TokenReview",` + status, "empty": "", "list": "[]",
		"large": `{"apiVersion":"authentication.k8s.io/v1","kind":"TokenReview","status":{"authenticated":true,"user":{"username":"ann","groups":["` + strings.Repeat(`","`, 500_000) + `"]}}}`,
	} {
		text = fmt.Sprintf("%-200s", text)
		r.gateway.Store(&text)
		decidesNothing(t, name, a)
	}
	cut := `{"apiVersion":"authentication.k8s.io/v1","kind":"TokenReview","status":{"authenticated":`
	r.gateway.Store(&cut)
	decidesNothing(t, "cut", a)
}

// decidesNothing checks that the upstream's response does not count as a decision.
func decidesNothing(t *testing.T, what string, a *auth.Auth) {
	t.Helper()
	for name, authenticates := range map[string]authenticator.Request{"request": a.Authenticator, "watch": a.Revocation().Authenticator} {
		if _, ok, err := authenticates.AuthenticateRequest(bearer(t, "anns")); ok || !auth.IsUnreachable(err) {
			t.Errorf("%s, %s: authenticated %t, error %v; want an unreachable upstream", what, name, ok, err)
		}
	}
	if decision, _, err := a.Authorizer.Authorize(t.Context(), pods(&user.DefaultInfo{Name: "ann"}, "hers")); decision != authorizer.DecisionNoOpinion || !auth.IsUnreachable(err) {
		t.Errorf("%s: decision %v, error %v; want an unreachable upstream", what, decision, err)
	}
}

// TestRedirectsAreNotFollowed checks that the server that a redirect names does not get the relay's credential.
func TestRedirectsAreNotFollowed(t *testing.T) {
	elsewhere := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, req *http.Request) {
		t.Errorf("%s %s is sent elsewhere with %q", req.Method, req.URL, req.Header["Authorization"])
	}))
	defer elsewhere.Close()
	for _, code := range []int{http.StatusMovedPermanently, http.StatusTemporaryRedirect} {
		u := httptest.NewServer(http.RedirectHandler(elsewhere.URL, code))
		defer u.Close()
		config := &rest.Config{Host: u.URL, BearerToken: relaysToken}
		decidesNothing(t, http.StatusText(code), rights(t, config, ""))
		client, err := clientFor(config)
		if err != nil {
			t.Fatal(err)
		}
		if resp, err := client.Get(u.URL + "/version"); err == nil {
			t.Errorf("%s to /version", resp.Status)
		}
		client.CloseIdleConnections()
	}
}

// TestBadUpstreamsAreRefused checks that errors in kubeconfigs are found before a relay starts.
func TestBadUpstreamsAreRefused(t *testing.T) {
	r := newReviewer(t)
	for want, change := range map[string]func(*clientcmdapi.Config){
		"impersonates":     func(c *clientcmdapi.Config) { c.AuthInfos["pod"].Impersonate = "root" },
		"current-context":  func(c *clientcmdapi.Config) { c.CurrentContext = "" },
		"cannot locate cl": func(c *clientcmdapi.Config) { c.CurrentContext = "other" },
	} {
		upstream, err := loadUpstream(r.kubeconfig(t, change))
		if err == nil {
			_, err = relay.NewProxy(relay.ProxyConfig{Upstream: upstream})
		}
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v, want %q in it", err, want)
		}
	}
	if _, err := loadUpstream(filepath.Join(r.dir, "missing")); err == nil {
		t.Error("a missing kubeconfig is accepted")
	}
}

// TestMissingPermissions checks that a relay names the permissions that it lacks.
func TestMissingPermissions(t *testing.T) {
	r := newReviewer(t)
	config := r.upstream(t)
	config.ContentType = "application/json" // that a reviewer reads
	client := kubernetes.NewForConfigOrDie(config).AuthorizationV1()
	usual := []string{`list "customresourcedefinitions"`, `watch "customresourcedefinitions"`}
	impersonation := []string{`impersonate "groups"`, `impersonate "uids"`, `impersonate "userextras/` + user.CredentialIDKey + `"`}
	for certificates, want := range map[bool][]string{false: usual, true: slices.Concat(usual, impersonation)} {
		lines, err := missingPermissions(t.Context(), client, certificates)
		if err != nil || len(lines) != len(want) {
			t.Fatalf("lines %q, error %v; want %d lines", lines, err, len(want))
		}
		for i, name := range want {
			if !strings.Contains(lines[i], name) {
				t.Errorf("%q, want %q", lines[i], name)
			}
		}
	}
	r.away.Store(true)
	if lines, err := missingPermissions(t.Context(), client, true); err == nil {
		t.Errorf("the upstream is down: %q", lines)
	}
}
