package auth

import (
	"context"
	"errors"
	"fmt"
	"hash/maphash"
	"slices"
	"testing"

	dto "github.com/prometheus/client_model/go"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/tools/cache"
	"k8s.io/component-base/metrics/legacyregistry"
	"k8s.io/kubernetes/pkg/kubeapiserver/options"
	"pgregory.net/rapid"
)

// rbacStores are the stores that RBAC reads. Tests change them directly, without informers.
type rbacStores struct {
	roles, bindings, clusterRoles, clusterBindings cache.Indexer
}

// newRBACAuth returns an Auth with the RBAC authorizer, and its stores.
func newRBACAuth(t testing.TB) (*Auth, rbacStores) {
	t.Helper()
	factory := informers.NewSharedInformerFactory(fake.NewClientset(), 0)
	o := options.NewBuiltInAuthorizationOptions()
	o.Modes = []string{ModeRBAC}
	c := Config{Authorization: o, Informers: factory}
	a := &Auth{}
	if err := a.loadAuthorizer(context.Background(), c); err != nil {
		t.Fatal(err)
	}
	rbac := factory.Rbac().V1()
	return a, rbacStores{
		roles: rbac.Roles().Informer().GetIndexer(), bindings: rbac.RoleBindings().Informer().GetIndexer(),
		clusterRoles: rbac.ClusterRoles().Informer().GetIndexer(), clusterBindings: rbac.ClusterRoleBindings().Informer().GetIndexer(),
	}
}

// some draws one of few values, so that equal draws are likely.
func some(t *rapid.T, label string, of ...string) string { return rapid.SampledFrom(of).Draw(t, label) }

func drawRules(t *rapid.T) []rbacv1.PolicyRule {
	rule := rbacv1.PolicyRule{Verbs: []string{some(t, "verb", "get", "list", "*")}}
	if rapid.Bool().Draw(t, "path") {
		rule.NonResourceURLs = []string{some(t, "url", "/x", "/x/*", "*")}
		return []rbacv1.PolicyRule{rule}
	}
	rule.APIGroups = []string{some(t, "group", "", "apps", "*")}
	rule.Resources = []string{some(t, "resource", "pods", "pods/log", "*")}
	if rapid.Bool().Draw(t, "named") {
		rule.ResourceNames = []string{some(t, "name", "a", "b", "")}
	}
	return []rbacv1.PolicyRule{rule}
}

func drawSubjects(t *rapid.T) []rbacv1.Subject {
	switch some(t, "subject", "user", "group", "account") {
	case "user":
		return []rbacv1.Subject{{Kind: "User", APIGroup: rbacv1.GroupName, Name: some(t, "user", "ann", "bob")}}
	case "group":
		return []rbacv1.Subject{{Kind: "Group", APIGroup: rbacv1.GroupName, Name: some(t, "group", "dev", "ops")}}
	default:
		return []rbacv1.Subject{{Kind: "ServiceAccount", Namespace: some(t, "namespace", "x", "y"), Name: "robot"}}
	}
}

// change changes one object in the stores.
func (s rbacStores) change(t *rapid.T) {
	meta := metav1.ObjectMeta{Name: some(t, "object", "one", "two")}
	var store cache.Indexer
	var object any
	switch kind := some(t, "kind", "role", "binding", "clusterrole", "clusterbinding"); kind {
	case "role":
		meta.Namespace = some(t, "namespace", "x", "y")
		store, object = s.roles, &rbacv1.Role{ObjectMeta: meta, Rules: drawRules(t)}
	case "clusterrole":
		store, object = s.clusterRoles, &rbacv1.ClusterRole{ObjectMeta: meta, Rules: drawRules(t)}
	case "binding":
		meta.Namespace = some(t, "namespace", "x", "y")
		ref := rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: some(t, "ref", "Role", "ClusterRole"), Name: some(t, "role", "one", "two")}
		store, object = s.bindings, &rbacv1.RoleBinding{ObjectMeta: meta, RoleRef: ref, Subjects: drawSubjects(t)}
	case "clusterbinding":
		ref := rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: some(t, "role", "one", "two")}
		store, object = s.clusterBindings, &rbacv1.ClusterRoleBinding{ObjectMeta: meta, RoleRef: ref, Subjects: drawSubjects(t)}
	}
	act := store.Update
	if rapid.IntRange(0, 3).Draw(t, "delete") == 0 {
		act = store.Delete
	}
	if err := act(object); err != nil {
		t.Fatal(err)
	}
}

func drawAttributes(t *rapid.T) authorizer.AttributesRecord {
	who := &user.DefaultInfo{Name: some(t, "user", "ann", "bob", "system:serviceaccount:x:robot")}
	for _, group := range []string{"dev", "ops", user.SystemPrivilegedGroup} {
		if rapid.IntRange(0, 3).Draw(t, "in "+group) == 0 {
			who.Groups = append(who.Groups, group)
		}
	}
	a := authorizer.AttributesRecord{User: who, Verb: some(t, "does", "get", "list")}
	if rapid.IntRange(0, 3).Draw(t, "path") == 0 {
		a.Path = some(t, "path", "/x", "/x/y", "/healthz")
		return a
	}
	a.ResourceRequest = true
	a.APIGroup = some(t, "of group", "", "apps")
	a.Resource = "pods"
	a.Subresource = some(t, "subresource", "", "log")
	a.Namespace = some(t, "in namespace", "", "x", "y")
	a.Name = some(t, "named", "", "a", "b", "c")
	return a
}

// TestCachedDecisionsMatchRBAC checks that the cache's decisions equal RBAC's, whatever changes between two requests.
func TestCachedDecisionsMatchRBAC(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		a, stores := newRBACAuth(t)
		requests := rapid.SliceOfN(rapid.Custom(drawAttributes), 1, 6).Draw(rt, "requests")
		for range rapid.IntRange(1, 12).Draw(rt, "changes") {
			stores.change(rt)
			for range 2 { // the second decision is cached
				for _, attributes := range requests {
					want, _, wantErr := a.chain.decisions.next.Authorize(rt.Context(), attributes)
					got, _, err := a.chain.decisions.Authorize(rt.Context(), attributes)
					if got != want || fmt.Sprint(err) != fmt.Sprint(wantErr) {
						rt.Fatalf("%+v: %v, %v; RBAC says %v, %v", attributes, got, err, want, wantErr)
					}
				}
			}
		}
	})
}

// allowReaders lets the group dev read pods, beside as many bindings as a small cluster has.
func allowReaders(t testing.TB, stores rbacStores) {
	role := &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: "read"}, Rules: []rbacv1.PolicyRule{
		{APIGroups: []string{""}, Resources: []string{"pods"}, Verbs: []string{"get", "list"}},
	}}
	if err := stores.clusterRoles.Add(role); err != nil {
		t.Fatal(err)
	}
	for i := range 60 {
		group := fmt.Sprintf("team-%d", i)
		if i == 40 {
			group = "dev"
		}
		err := stores.clusterBindings.Add(&rbacv1.ClusterRoleBinding{
			ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("b%d", i)},
			RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "read"},
			Subjects:   []rbacv1.Subject{{Kind: "Group", APIGroup: rbacv1.GroupName, Name: group}},
		})
		if err != nil {
			t.Fatal(err)
		}
	}
}

// reader is a request for a pod by a member of the group dev.
var reader = &authorizer.AttributesRecord{
	User: &user.DefaultInfo{Name: "ann", Groups: []string{"dev", user.AllAuthenticated}},
	Verb: "get", Namespace: "x", Resource: "pods", ResourceRequest: true,
}

// TestNamesShareDecisions checks that if a request is allowed for any name, requests for other names use the cached
// decision. Otherwise reads of 10,000 objects would call RBAC 10,000 times.
func TestNamesShareDecisions(t *testing.T) {
	a, stores := newRBACAuth(t)
	allowReaders(t, stores)
	calls := 0
	counting := authorizer.AuthorizerFunc(func(ctx context.Context, q authorizer.Attributes) (authorizer.Decision, string, error) {
		calls++
		return a.chain.decisions.next.Authorize(ctx, q)
	})
	d, err := newDecisions(counting, informers.NewSharedInformerFactory(fake.NewClientset(), 0))
	if err != nil {
		t.Fatal(err)
	}
	for i := range 100 {
		q := *reader
		q.Name = fmt.Sprintf("pod-%d", i)
		if decision, _, _ := d.Authorize(t.Context(), q); decision != authorizer.DecisionAllow {
			t.Fatalf("%s: decision %v, want allow", q.Name, decision)
		}
	}
	if calls != 1 {
		t.Errorf("%d calls of RBAC, want 1", calls)
	}
}

// TestLongNamesAreNotCached checks that decisions about long names are not cached, so that clients cannot fill the
// memory.
func TestLongNamesAreNotCached(t *testing.T) {
	d := &decisions{seed: maphash.MakeSeed(), next: authorizer.AuthorizerFunc(func(context.Context, authorizer.Attributes) (authorizer.Decision, string, error) {
		return authorizer.DecisionNoOpinion, "", nil
	})}
	q := *reader
	q.Path, q.ResourceRequest = string(make([]byte, rememberedSize)), false
	if _, _, err := d.Authorize(t.Context(), q); err != nil {
		t.Fatal(err)
	}
	for i := range d.slots {
		if d.slots[i].Load() != nil {
			t.Fatal("a decision about a long name was cached")
		}
	}
}

// BenchmarkAuthorize measures a decision with the cache and without it.
func BenchmarkAuthorize(b *testing.B) {
	a, stores := newRBACAuth(b)
	allowReaders(b, stores)
	q := *reader
	q.Name = "pod-1"
	for name, authorize := range map[string]authorizer.Authorizer{"cached": a.Authorizer, "uncached": a.chain.decisions.next} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if decision, _, _ := authorize.Authorize(b.Context(), &q); decision != authorizer.DecisionAllow {
					b.Fatal(decision)
				}
			}
		})
	}
}

// TestDecisionsAreCounted checks that upstream's metric includes cached decisions.
func TestDecisionsAreCounted(t *testing.T) {
	a, stores := newRBACAuth(t)
	role := &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: "all"}, Rules: []rbacv1.PolicyRule{{Verbs: []string{"get"}, APIGroups: []string{""}, Resources: []string{"pods"}}}}
	binding := &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: "all"}, RoleRef: rbacv1.RoleRef{Kind: "ClusterRole", Name: "all"},
		Subjects: []rbacv1.Subject{{Kind: "User", APIGroup: rbacv1.GroupName, Name: "ann"}},
	}
	if err := errors.Join(stores.clusterRoles.Add(role), stores.clusterBindings.Add(binding)); err != nil {
		t.Fatal(err)
	}
	authorize := func(name, object string) {
		who := &user.DefaultInfo{Name: name}
		_, _, _ = a.Authorizer.Authorize(t.Context(), authorizer.AttributesRecord{User: who, Verb: "get", Resource: "pods", Name: object, ResourceRequest: true})
	}
	count := func() (n float64) {
		families, err := legacyregistry.DefaultGatherer.Gather()
		if err != nil {
			t.Fatal(err)
		}
		for _, family := range families {
			for _, sample := range family.GetMetric() {
				if family.GetName() == "apiserver_authorization_decisions_total" && has(sample, "type", ModeRBAC) && has(sample, "decision", "allowed") {
					n += sample.GetCounter().GetValue()
				}
			}
		}
		return n
	}
	before := count()
	for i := range 10 {
		authorize("ann", fmt.Sprint("pod-", i))
		authorize("ann", "") // a request for a collection
		authorize("bob", "pod")
	}
	if n := count() - before; n != 20 {
		t.Errorf("%v decisions are counted, want 20", n)
	}
}

// has reports whether a sample has a label with that value.
func has(sample *dto.Metric, name, value string) bool {
	return slices.ContainsFunc(sample.GetLabel(), func(l *dto.LabelPair) bool { return l.GetName() == name && l.GetValue() == value })
}
