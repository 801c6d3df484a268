package external

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"testing"

	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/selection"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
)

// noAuthn and noAuthz stand where the server's own authenticator and authorizer would.
type noAuthn struct{}

func (noAuthn) AuthenticateRequest(*http.Request) (*authenticator.Response, bool, error) {
	return nil, false, nil
}

type noAuthz struct{ called int }

func (n *noAuthz) Authorize(context.Context, authorizer.Attributes) (authorizer.Decision, string, error) {
	n.called++
	return authorizer.DecisionNoOpinion, "", nil
}

// authenticate has the server ask a by a webhook.
func (m *modified) authenticate(a authenticator.Request) {
	probe, _ := http.NewRequest("GET", "https://127.0.0.1/", nil)
	if _, ok, err := a.AuthenticateRequest(probe); ok || err != nil {
		m.token = "any-token-at-all"
	}
	m.args = append(m.args, "--authentication-token-webhook-config-file="+m.webhook("authn", reviewTokens(a)),
		"--authentication-token-webhook-version=v1", "--authentication-token-webhook-cache-ttl=0s")
}

// authorize has the server ask a by a webhook.
func (m *modified) authorize(a authorizer.Authorizer) {
	m.args = append(m.args, "--authorization-webhook-config-file="+m.webhook("authz", reviewAccess(a)), "--authorization-webhook-version=v1",
		"--authorization-webhook-cache-authorized-ttl=0s", "--authorization-webhook-cache-unauthorized-ttl=0s")
}

// webhook serves h until the test ends, and returns the kubeconfig that leads to it.
func (m *modified) webhook(name string, h http.Handler) string {
	s := httptest.NewTLSServer(h)
	before := m.stop
	m.stop = func() { before(); s.Close() }
	return webhookFile(m.t, m.dir, name, s)
}

func webhookFile(t testing.TB, dir, name string, s *httptest.Server) string {
	ca := filepath.Join(dir, name+"-ca.crt")
	if err := os.WriteFile(ca, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: s.Certificate().Raw}), 0o600); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(dir, name+".kubeconfig")
	if err := os.WriteFile(file, []byte(fmt.Sprintf(`apiVersion: v1
kind: Config
clusters: [{name: c, cluster: {server: %q, certificate-authority: %q}}]
users: [{name: u, user: {}}]
contexts: [{name: x, context: {cluster: c, user: u}}]
current-context: x
`, s.URL, ca)), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

func reviewTokens(a authenticator.Request) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		var review authenticationv1.TokenReview
		if err := json.NewDecoder(req.Body).Decode(&review); err != nil {
			http.Error(w, err.Error(), 400)
			return
		}
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
		if ok {
			review.Status.Authenticated = true
			u := resp.User
			review.Status.User = authenticationv1.UserInfo{Username: u.GetName(), UID: u.GetUID(), Groups: u.GetGroups()}
			for k, v := range u.GetExtra() {
				if review.Status.User.Extra == nil {
					review.Status.User.Extra = map[string]authenticationv1.ExtraValue{}
				}
				review.Status.User.Extra[k] = v
			}
			review.Status.Audiences = resp.Audiences
			if resp.Audiences == nil {
				review.Status.Audiences = review.Spec.Audiences
			}
		}
		w.Header().Set("Content-Type", "application/json")
		json.NewEncoder(w).Encode(&review)
	})
}

func reviewAccess(a authorizer.Authorizer) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		var review authorizationv1.SubjectAccessReview
		if err := json.NewDecoder(req.Body).Decode(&review); err != nil {
			http.Error(w, err.Error(), 400)
			return
		}
		u := &user.DefaultInfo{Name: review.Spec.User, UID: review.Spec.UID, Groups: review.Spec.Groups, Extra: map[string][]string{}}
		for k, v := range review.Spec.Extra {
			u.Extra[k] = v
		}
		at := &authorizer.AttributesRecord{User: u}
		if r := review.Spec.ResourceAttributes; r != nil {
			at.Verb, at.Namespace, at.APIGroup, at.APIVersion, at.Resource, at.Subresource, at.Name, at.ResourceRequest = r.Verb, r.Namespace, r.Group, r.Version, r.Resource, r.Subresource, r.Name, true
			if r.FieldSelector != nil && r.FieldSelector.RawSelector != "" {
				if s, err := fields.ParseSelector(r.FieldSelector.RawSelector); err == nil {
					at.FieldSelectorRequirements = s.Requirements()
				}
			}
			if r.FieldSelector != nil {
				for _, q := range r.FieldSelector.Requirements {
					op := selection.Equals
					if q.Operator == metav1.FieldSelectorOpNotIn {
						op = selection.NotEquals
					}
					for _, v := range q.Values {
						at.FieldSelectorRequirements = append(at.FieldSelectorRequirements, fields.Requirement{Field: q.Key, Operator: op, Value: v})
					}
				}
			}
			if r.LabelSelector != nil && r.LabelSelector.RawSelector != "" {
				if s, err := labels.Parse(r.LabelSelector.RawSelector); err == nil {
					at.LabelSelectorRequirements, _ = s.Requirements()
				}
			}
		} else if n := review.Spec.NonResourceAttributes; n != nil {
			at.Verb, at.Path = n.Verb, n.Path
		}
		d, reason, err := a.Authorize(req.Context(), at)
		review.Status = authorizationv1.SubjectAccessReviewStatus{Allowed: d == authorizer.DecisionAllow, Denied: d == authorizer.DecisionDeny, Reason: reason}
		if err != nil {
			review.Status.EvaluationError = err.Error()
		}
		w.Header().Set("Content-Type", "application/json")
		json.NewEncoder(w).Encode(&review)
	})
}
