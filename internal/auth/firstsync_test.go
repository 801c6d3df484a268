package auth

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	authzapi "k8s.io/apiserver/pkg/apis/apiserver"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/kubernetes/pkg/kubeapiserver/options"
)

// starting is an Auth whose informers have not synced.
type starting struct {
	*Auth
	sync func() // lets RBAC's informers sync
	end  func() // stops the server
}

func newStarting(t *testing.T, policy string, modes ...string) *starting {
	t.Helper()
	meta := metav1.ObjectMeta{Namespace: "x", Name: "read"}
	factory := informers.NewSharedInformerFactory(fake.NewClientset(
		&rbacv1.Role{ObjectMeta: meta, Rules: []rbacv1.PolicyRule{{APIGroups: []string{""}, Resources: []string{"secrets"}, Verbs: []string{"get"}}}},
		&rbacv1.RoleBinding{ObjectMeta: meta, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: "read"}, Subjects: []rbacv1.Subject{{Kind: "User", APIGroup: rbacv1.GroupName, Name: "reader"}}},
	), 0)
	o := options.NewBuiltInAuthorizationOptions()
	o.Modes, o.PolicyFile = modes, policy
	ended, stop := make(chan struct{}), make(chan struct{})
	s := &starting{Auth: &Auth{}, sync: func() { factory.Start(stop) }, end: func() { close(ended) }}
	if err := s.loadAuthorizer(t.Context(), Config{Authorization: o, Informers: factory, Ended: ended}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { close(stop); factory.Shutdown() })
	return s
}

// secret is a request for a secret.
func secret(name string, groups ...string) authorizer.AttributesRecord {
	return authorizer.AttributesRecord{User: &user.DefaultInfo{Name: name, Groups: groups}, Verb: "get", Namespace: "x", Name: "s", APIVersion: "v1", Resource: "secrets", ResourceRequest: true}
}

// verdict is the decision of an authorizer, and the time that it took.
type verdict struct {
	decision authorizer.Decision
	err      error
	after    time.Duration
}

// authorize calls the authorizer. The channel receives its verdict.
func (s *starting) authorize(ctx context.Context, a authorizer.Attributes) <-chan verdict {
	verdicts := make(chan verdict, 1)
	began := time.Now()
	go func() {
		decision, _, err := s.Authorizer.Authorize(ctx, a)
		verdicts <- verdict{decision, err, time.Since(began)}
	}()
	return verdicts
}

// expect checks a verdict.
func expect(t *testing.T, what string, verdicts <-chan verdict, decision authorizer.Decision, err error, after time.Duration) {
	t.Helper()
	if v := <-verdicts; v.decision != decision || !errors.Is(v.err, err) || v.after != after {
		t.Errorf("%s: decision %v, error %v after %v; want %v, %v after %v", what, v.decision, v.err, v.after, decision, err, after)
	}
}

// TestDecisionsWaitForRoles checks that until the roles are loaded, a request without a role waits instead of being
// denied. Requests that need no role do not wait.
func TestDecisionsWaitForRoles(t *testing.T) {
	const allow, none = authorizer.DecisionAllow, authorizer.DecisionNoOpinion
	synctest.Test(t, func(t *testing.T) {
		s := newStarting(t, "", ModeRBAC, ModeNode)
		s.SkipNodeSync()
		reader, stranger := s.authorize(t.Context(), secret("reader")), s.authorize(t.Context(), secret("stranger"))
		rules := make(chan int, 1)
		go func() {
			found, _, _, err := s.RuleResolver.RulesFor(t.Context(), &user.DefaultInfo{Name: "reader"}, "x")
			if err != nil {
				t.Error(err)
			}
			rules <- len(found)
		}()
		brief, cancel := context.WithTimeout(t.Context(), 2*time.Second)
		defer cancel()
		expect(t, "a request with a short deadline", s.authorize(brief, secret("reader")), none, ErrNotSynced, 2*time.Second)
		expect(t, "a member of system:masters", s.authorize(t.Context(), secret("root", user.SystemPrivilegedGroup)), allow, nil, 0)
		probe := authorizer.AttributesRecord{User: &user.DefaultInfo{Name: user.Anonymous}, Verb: "get", Path: "/livez/ping"}
		expect(t, "a probe", s.authorize(t.Context(), probe), none, nil, 0)
		if decision, _, err := s.chain.local(t.Context(), secret("reader")); decision != none || !errors.Is(err, ErrNotSynced) {
			t.Errorf("the authorization of an open watch: %v, %v; want ErrNotSynced", decision, err)
		}
		synctest.Wait()
		if len(reader)+len(stranger)+len(rules) > 0 {
			t.Fatal("decided before the roles were loaded")
		}
		time.Sleep(time.Second)
		s.sync()
		expect(t, "a waiting user with a role", reader, allow, nil, 3*time.Second)
		expect(t, "a waiting user without a role", stranger, none, nil, 3*time.Second)
		if n := <-rules; n != 1 {
			t.Errorf("%d rules, want 1", n)
		}
		expect(t, "a later user with a role", s.authorize(t.Context(), secret("reader")), allow, nil, 0)
		expect(t, "a later user without a role", s.authorize(t.Context(), secret("stranger")), none, nil, 0)
	})
}

// TestDecisionsEndWithTheServer checks that when the server stops, waiting requests fail, and later ones do not wait.
func TestDecisionsEndWithTheServer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStarting(t, "", ModeRBAC)
		waiting := s.authorize(t.Context(), secret("reader"))
		time.Sleep(time.Second)
		s.end()
		expect(t, "a waiting request", waiting, authorizer.DecisionNoOpinion, ErrNotSynced, time.Second)
		expect(t, "a later request", s.authorize(t.Context(), secret("reader")), authorizer.DecisionNoOpinion, ErrNotSynced, 0)
		expect(t, "a member of system:masters", s.authorize(t.Context(), secret("root", user.SystemPrivilegedGroup)), authorizer.DecisionAllow, nil, 0)
	})
}

// TestAuthorizersWithoutObjectsDoNotWait checks that authorizers that read no objects decide immediately.
func TestAuthorizersWithoutObjectsDoNotWait(t *testing.T) {
	policy := filepath.Join(t.TempDir(), "policy")
	if err := os.WriteFile(policy, []byte(`{"apiVersion":"abac.authorization.kubernetes.io/v1beta1","kind":"Policy","spec":{"user":"abby","namespace":"*","resource":"*","apiGroup":"*"}}`), 0o600); err != nil {
		t.Fatal(err)
	}
	synctest.Test(t, func(t *testing.T) {
		s := newStarting(t, policy, "ABAC")
		expect(t, "a user in the ABAC policy", s.authorize(t.Context(), secret("abby")), authorizer.DecisionAllow, nil, 0)
		expect(t, "a user who is not in it", s.authorize(t.Context(), secret("reader")), authorizer.DecisionNoOpinion, nil, 0)
		s = newStarting(t, policy, "ABAC", ModeRBAC)
		expect(t, "a user in the ABAC policy, before RBAC", s.authorize(t.Context(), secret("abby")), authorizer.DecisionAllow, nil, 0)
	})
}

// TestWebhooksAreCalledAfterTheSync checks that a webhook after RBAC is not called for requests that RBAC allows once
// the roles are loaded.
func TestWebhooksAreCalledAfterTheSync(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStarting(t, "", ModeRBAC)
		var users []string
		s.chain.permanent[authzapi.TypeWebhook] = link{authorizer: authorizer.AuthorizerFunc(func(_ context.Context, a authorizer.Attributes) (authorizer.Decision, string, error) {
			users = append(users, a.GetUser().GetName())
			return authorizer.DecisionNoOpinion, "", nil
		})}
		with := slices.Concat(s.chain.accepted.Authorizers, []authzapi.AuthorizerConfiguration{{Type: authzapi.TypeWebhook, Name: "w"}})
		links, err := s.chain.link(t.Context(), &authzapi.AuthorizationConfiguration{Authorizers: with})
		if err != nil {
			t.Fatal(err)
		}
		s.chain.current.Store(links)
		reader, stranger := s.authorize(t.Context(), secret("reader")), s.authorize(t.Context(), secret("stranger"))
		time.Sleep(time.Second)
		s.sync()
		if v := <-reader; v.decision != authorizer.DecisionAllow {
			t.Errorf("a user with a role: decision %v, error %v", v.decision, v.err)
		}
		if v := <-stranger; v.decision != authorizer.DecisionNoOpinion || v.err != nil {
			t.Errorf("a user without a role: decision %v, error %v", v.decision, v.err)
		}
		if !slices.Equal(users, []string{"stranger"}) {
			t.Errorf("the webhook was called for %q, want stranger", users)
		}
	})
}

// TestNodesWaitForTheGraph checks that nodes' requests that depend on the graph wait until it is complete or
// SkipNodeSync is called.
func TestNodesWaitForTheGraph(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStarting(t, "", ModeNode)
		lease := authorizer.AttributesRecord{
			User: &user.DefaultInfo{Name: "system:node:n", Groups: []string{user.NodesGroup}}, Verb: "update", Namespace: "kube-node-lease", Name: "n",
			APIGroup: "coordination.k8s.io", APIVersion: "v1", Resource: "leases", ResourceRequest: true,
		}
		expect(t, "a node's request for its Lease", s.authorize(t.Context(), lease), authorizer.DecisionAllow, nil, 0)
		waiting := s.authorize(t.Context(), secret("system:node:n", user.NodesGroup))
		time.Sleep(time.Second)
		s.SkipNodeSync()
		expect(t, "a node's secret", waiting, authorizer.DecisionNoOpinion, nil, time.Second)
		s.SkipNodeSync()
		expect(t, "a later request of a node", s.authorize(t.Context(), secret("system:node:n", user.NodesGroup)), authorizer.DecisionNoOpinion, nil, 0)
	})
}

// TestSyncedDecisionsAllocateNothing checks that after the first sync, the chain allocates nothing.
func TestSyncedDecisionsAllocateNothing(t *testing.T) {
	loaded := make(chan struct{})
	close(loaded)
	c := chain{first: firstSync{loads: []<-chan struct{}{loaded}}}
	c.current.Store(&links{all: authorizer.AuthorizerFunc(
		func(context.Context, authorizer.Attributes) (authorizer.Decision, string, error) {
			return authorizer.DecisionNoOpinion, "", nil
		})})
	var a authorizer.Attributes = secret("reader")
	if n := testing.AllocsPerRun(100, func() { _, _, _ = c.Authorize(t.Context(), a) }); n > 0 {
		t.Errorf("%v allocations, want none", n)
	}
}
