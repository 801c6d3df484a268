package auth_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	authorizationv1 "k8s.io/api/authorization/v1"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"

	"github.com/larder-io/larder/internal/auth"
)

// fakeWebhook is an authorization webhook that allows one user and denies another.
type fakeWebhook struct {
	url, ca string
	calls   atomic.Int32
}

func newFakeWebhook(t *testing.T) *fakeWebhook {
	t.Helper()
	j := &fakeWebhook{}
	j.url, j.ca = serveTLS(t, http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		j.calls.Add(1)
		var review authorizationv1.SubjectAccessReview
		if err := json.NewDecoder(req.Body).Decode(&review); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		switch review.Spec.User {
		case "wendy":
			review.Status = authorizationv1.SubjectAccessReviewStatus{Allowed: true, Reason: "allowed by the webhook"}
		case "mallory":
			review.Status = authorizationv1.SubjectAccessReviewStatus{Denied: true, Reason: "denied by the webhook"}
		}
		_ = json.NewEncoder(w).Encode(&review)
	}))
	return j
}

func pods(name string, groups ...string) authorizer.AttributesRecord {
	return authorizer.AttributesRecord{
		User: &user.DefaultInfo{Name: name, Groups: groups}, Verb: "get",
		Namespace: "default", APIVersion: "v1", Resource: "pods", ResourceRequest: true,
	}
}

// decide returns the decision and the reason of the authorizer.
func decide(t *testing.T, a *auth.Auth, q authorizer.Attributes) (authorizer.Decision, string) {
	t.Helper()
	decision, reason, err := a.Authorizer.Authorize(t.Context(), q)
	if err != nil {
		t.Log(err)
	}
	return decision, reason
}

// TestAuthorizersAreCalledInOrder checks that authorizers are called in order, and that the reason of the deciding one
// is returned.
func TestAuthorizersAreCalledInOrder(t *testing.T) {
	const allow, deny, none = authorizer.DecisionAllow, authorizer.DecisionDeny, authorizer.DecisionNoOpinion
	j := newFakeWebhook(t)
	for _, test := range []struct {
		modes    string
		request  authorizer.AttributesRecord
		decision authorizer.Decision
		reason   string
	}{
		{"AlwaysDeny,RBAC", pods("reader"), allow, `RBAC: allowed by RoleBinding "read/default" of Role "read" to User "reader"`},
		{"AlwaysDeny", pods("root", user.SystemPrivilegedGroup), allow, ""},
		{"AlwaysDeny", pods("reader"), none, "Everything is forbidden."},
		{"ABAC", pods("abby"), allow, ""},
		{"ABAC", pods("reader"), none, "No policy matched."},
		{"ABAC,RBAC", pods("reader"), allow, `RBAC: allowed by RoleBinding "read/default" of Role "read" to User "reader"`},
		{"Webhook", pods("wendy"), allow, "allowed by the webhook"},
		{"Webhook,RBAC", pods("mallory"), deny, "denied by the webhook"},
		{"RBAC,Webhook", pods("mallory"), deny, "denied by the webhook"},
		{"RBAC,Webhook", pods("reader"), allow, `RBAC: allowed by RoleBinding "read/default" of Role "read" to User "reader"`},
		{"Node,RBAC", pods("reader"), allow, `RBAC: allowed by RoleBinding "read/default" of Role "read" to User "reader"`},
		{"Node,RBAC", pods("system:node:n1", user.NodesGroup), none, "no relationship found between node 'n1' and this object"},
	} {
		t.Run(test.modes+" "+test.request.User.GetName(), func(t *testing.T) {
			c := rbacConfig(t, strings.Split(test.modes, ","))
			o := c.Authorization
			if strings.Contains(test.modes, "ABAC") {
				o.PolicyFile = write(t, "abac.jsonl", `{"apiVersion":"abac.authorization.kubernetes.io/v1beta1","kind":"Policy","spec":{"user":"abby","namespace":"*","resource":"pods","apiGroup":"*"}}`)
			}
			if strings.Contains(test.modes, "Webhook") {
				o.WebhookConfigFile, o.WebhookVersion = kubeconfig(t, j.url, j.ca), "v1"
			}
			test.request.Name = "p"
			decision, reason := decide(t, load(t, c), test.request)
			if decision != test.decision || !strings.Contains(reason, test.reason) {
				t.Errorf("decision %v, reason %q; want %v, %q", decision, reason, test.decision, test.reason)
			}
		})
	}
}

// TestWebhookDecisionsAreCached checks that a webhook's decisions are cached for the TTL of the flags; 0 disables the
// cache.
func TestWebhookDecisionsAreCached(t *testing.T) {
	for ttl, want := range map[time.Duration]int32{5 * time.Minute: 1, 0: 3} {
		j := newFakeWebhook(t)
		c := rbacConfig(t, []string{"Webhook", "RBAC"})
		o := c.Authorization
		o.WebhookConfigFile, o.WebhookVersion, o.WebhookCacheAuthorizedTTL = kubeconfig(t, j.url, j.ca), "v1", ttl
		a := load(t, c)
		for range 3 {
			if decision, _, err := a.Authorizer.Authorize(t.Context(), pods("wendy")); decision != authorizer.DecisionAllow {
				t.Fatal(decision, err)
			}
		}
		if n := j.calls.Load(); n != want {
			t.Errorf("TTL %v: %d calls, want %d", ttl, n, want)
		}
	}
}

const authorizationConfig = `apiVersion: apiserver.config.k8s.io/v1
kind: AuthorizationConfiguration
authorizers:
- type: Webhook
  name: webhook
  webhook:
    timeout: 3s
    subjectAccessReviewVersion: v1
    matchConditionSubjectAccessReviewVersion: v1
    failurePolicy: NoOpinion
    authorizedTTL: 1s
    unauthorizedTTL: 1s
    connectionInfo: {type: KubeConfigFile, kubeConfigFile: %s}
    matchConditions:
    - expression: request.resourceAttributes.verb != "list"
- type: RBAC
  name: rbac
`

// TestAuthorizationConfigReload checks that a valid change of the file takes effect, and an invalid one does not.
func TestAuthorizationConfigReload(t *testing.T) {
	j := newFakeWebhook(t)
	c := rbacConfig(t, nil)
	with := fmt.Sprintf(authorizationConfig, kubeconfig(t, j.url, j.ca))
	before, after, _ := strings.Cut(with, "- type: Webhook")
	_, after, _ = strings.Cut(after, "- type: RBAC")
	file := write(t, "authorization.yaml", with)
	c.Authorization.AuthorizationConfigurationFile = file
	a := load(t, c)
	expect := func(request authorizer.Attributes, want authorizer.Decision) {
		t.Helper()
		eventually(t, func() error {
			if got, _, err := a.Authorizer.Authorize(t.Context(), request); got != want {
				return fmt.Errorf("decision %v, error %v; want %v", got, err, want)
			}
			return nil
		})
	}
	list := pods("wendy")
	list.Verb = "list"
	expect(pods("wendy"), authorizer.DecisionAllow)
	expect(list, authorizer.DecisionNoOpinion) // without a call to the webhook
	expect(pods("mallory"), authorizer.DecisionDeny)
	replace(t, file, before+"- type: RBAC"+after)
	expect(pods("mallory"), authorizer.DecisionNoOpinion)
	expect(pods("reader"), authorizer.DecisionAllow)
	// Authorizers that need no objects may be added later.
	replace(t, file, before+"- type: RBAC"+after+"- {type: AlwaysDeny, name: alwaysdeny}\n- {type: AlwaysAllow, name: alwaysallow}\n")
	expect(pods("mallory"), authorizer.DecisionAllow)
	replace(t, file, "nonsense")
	replace(t, file, before+"- {type: Node, name: node}\n- type: RBAC"+after) // needs objects, and was not there at the start
	replace(t, file, with)
	expect(pods("mallory"), authorizer.DecisionDeny)
}

// TestFailedConditionsAreRecognized checks that a match condition that reads a missing field is not taken for a failure
// of the webhook.
func TestFailedConditionsAreRecognized(t *testing.T) {
	j := newFakeWebhook(t)
	for policy, want := range map[string]authorizer.Decision{"NoOpinion": authorizer.DecisionNoOpinion, "Deny": authorizer.DecisionDeny} {
		file := fmt.Sprintf(authorizationConfig, kubeconfig(t, j.url, j.ca))
		file = strings.NewReplacer(`request.resourceAttributes.verb != "list"`, `'"a" in request.extra["tenant"]'`, "failurePolicy: NoOpinion", "failurePolicy: "+policy).Replace(file)
		c := rbacConfig(t, nil)
		c.Authorization.AuthorizationConfigurationFile = write(t, "authorization.yaml", file)
		decision, _, err := load(t, c).Authorizer.Authorize(t.Context(), pods("wendy"))
		if decision != want || err == nil || !auth.FailedConditions(err) {
			t.Errorf("failurePolicy %s: decision %v, error %v", policy, decision, err)
		}
	}
}

// TestRulesOfAll checks that RulesFor returns the rules of all authorizers, and that it reports a node's as incomplete.
func TestRulesOfAll(t *testing.T) {
	a := load(t, rbacConfig(t, []string{"Node", "RBAC"}))
	rules, _, incomplete, err := a.RuleResolver.RulesFor(t.Context(), &user.DefaultInfo{Name: "reader"}, "default")
	if err != nil || incomplete || len(rules) != 1 || rules[0].GetResources()[0] != "pods" {
		t.Errorf("rules %v, incomplete %v, error %v", rules, incomplete, err)
	}
	_, _, incomplete, err = a.RuleResolver.RulesFor(t.Context(), &user.DefaultInfo{Name: "system:node:n1", Groups: []string{user.NodesGroup}}, "default")
	if err == nil || !incomplete {
		t.Errorf("the rules of a node are complete, error %v", err)
	}
}

// TestInvalidAuthorizationConfigs checks that Load returns upstream's error for options that upstream rejects.
func TestInvalidAuthorizationConfigs(t *testing.T) {
	for want, change := range map[string]func(*auth.Config){
		"authorization policy file not passed":          func(c *auth.Config) { c.Authorization.Modes = []string{"ABAC"} },
		"authorization config file not passed":          func(c *auth.Config) { c.Authorization.Modes = []string{"Webhook"} },
		"cannot specify --authorization-policy-file":    func(c *auth.Config) { c.Authorization.PolicyFile = "x" },
		"cannot specify --authorization-webhook-config": func(c *auth.Config) { c.Authorization.WebhookConfigFile = "x" },
		"can not be specified when --authorization-mode": func(c *auth.Config) {
			c.Authorization.AuthorizationConfigurationFile = "x"
			c.Authorization.AreLegacyFlagsSet = func() bool { return true }
		},
		"no such file": func(c *auth.Config) { c.Authorization.AuthorizationConfigurationFile = "missing" },
		"expected name rbac for authorizer RBAC": func(c *auth.Config) {
			c.Authorization.AuthorizationConfigurationFile = write(t, "c", strings.Replace(fmt.Sprintf(authorizationConfig, kubeconfig(t, "https://127.0.0.1", "/dev/null")), "name: rbac", "name: other", 1))
		},
	} {
		c := rbacConfig(t, []string{auth.ModeRBAC})
		change(&c)
		if _, err := auth.Load(t.Context(), c); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got error %v, want %q in it", err, want)
		}
	}
}
