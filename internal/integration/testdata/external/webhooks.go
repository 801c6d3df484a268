package external

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"

	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/kubernetes/pkg/apis/authorization"
	conversion "k8s.io/kubernetes/pkg/apis/authorization/v1"
	"k8s.io/kubernetes/pkg/registry/authorization/util"
)

// noAuthn and noAuthz are placeholders for the server's own authenticator and authorizer.
type noAuthn struct{}

func (noAuthn) AuthenticateRequest(*http.Request) (*authenticator.Response, bool, error) {
	return nil, false, nil
}

type noAuthz struct{ called int }

func (n *noAuthz) Authorize(context.Context, authorizer.Attributes) (authorizer.Decision, string, error) {
	n.called++
	return authorizer.DecisionNoOpinion, "", nil
}

// authenticate makes the server call a as a webhook.
func (m *modified) authenticate(a authenticator.Request) {
	probe, _ := http.NewRequest("GET", "https://127.0.0.1/", nil)
	if _, ok, err := a.AuthenticateRequest(probe); ok || err != nil {
		m.token = "any-token-at-all"
	}
	m.args = append(m.args, "--authentication-token-webhook-config-file="+m.webhook("authn", reviewTokens(a)),
		"--authentication-token-webhook-version=v1", "--authentication-token-webhook-cache-ttl=0s")
}

// authorize makes the server call a as a webhook.
func (m *modified) authorize(a authorizer.Authorizer) {
	m.args = append(m.args, "--authorization-webhook-config-file="+m.webhook("authz", reviewAccess(a)), "--authorization-webhook-version=v1",
		"--authorization-webhook-cache-authorized-ttl=0s", "--authorization-webhook-cache-unauthorized-ttl=0s")
}

// webhook serves h until the test ends, and returns the path of a kubeconfig for it.
func (m *modified) webhook(name string, h http.Handler) string {
	s := httptest.NewTLSServer(h)
	before := m.stop
	m.stop = func() { before(); s.Close() }
	file := filepath.Join(m.dir, name+".kubeconfig")
	if err := os.WriteFile(file, []byte(fmt.Sprintf(`apiVersion: v1
kind: Config
clusters: [{name: c, cluster: {server: %q, insecure-skip-tls-verify: true}}]
users: [{name: u, user: {}}]
contexts: [{name: x, context: {cluster: c, user: u}}]
current-context: x
`, s.URL)), 0o600); err != nil {
		m.t.Fatal(err)
	}
	return file
}

// serveReviews serves reviews of type T. decide sets the status of a review.
func serveReviews[T any](decide func(context.Context, *T)) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		var review T
		if err := json.NewDecoder(req.Body).Decode(&review); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		decide(req.Context(), &review)
		w.Header().Set("Content-Type", "application/json")
		json.NewEncoder(w).Encode(&review)
	})
}

func reviewTokens(a authenticator.Request) http.Handler {
	return serveReviews(func(_ context.Context, review *authenticationv1.TokenReview) {
		r, _ := http.NewRequest("GET", "https://127.0.0.1/", nil)
		r.Header.Set("Authorization", "Bearer "+review.Spec.Token)
		r.TLS = &tls.ConnectionState{}
		if len(review.Spec.Audiences) > 0 {
			r = r.WithContext(authenticator.WithAudiences(r.Context(), review.Spec.Audiences))
		}
		resp, ok, err := a.AuthenticateRequest(r)
		if err != nil {
			review.Status.Error = err.Error()
		}
		if !ok {
			return
		}
		review.Status.Authenticated = true
		u := resp.User
		review.Status.User = authenticationv1.UserInfo{Username: u.GetName(), UID: u.GetUID(), Groups: u.GetGroups(), Extra: map[string]authenticationv1.ExtraValue{}}
		for k, v := range u.GetExtra() {
			review.Status.User.Extra[k] = v
		}
		review.Status.Audiences = resp.Audiences
		if resp.Audiences == nil {
			review.Status.Audiences = review.Spec.Audiences
		}
	})
}

func reviewAccess(a authorizer.Authorizer) http.Handler {
	return serveReviews(func(ctx context.Context, review *authorizationv1.SubjectAccessReview) {
		var spec authorization.SubjectAccessReviewSpec
		if err := conversion.Convert_v1_SubjectAccessReviewSpec_To_authorization_SubjectAccessReviewSpec(&review.Spec, &spec, nil); err != nil {
			review.Status.EvaluationError = err.Error()
			return
		}
		d, reason, err := a.Authorize(ctx, util.AuthorizationAttributesFrom(spec))
		review.Status = authorizationv1.SubjectAccessReviewStatus{Allowed: d == authorizer.DecisionAllow, Denied: d == authorizer.DecisionDeny, Reason: reason}
		if err != nil {
			review.Status.EvaluationError = err.Error()
		}
	})
}
