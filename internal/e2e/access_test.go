package e2e_test

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	authenticationv1 "k8s.io/api/authentication/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/larder-io/larder/internal/proctest"
)

// tokens is a token file of two users.
func tokens(t *testing.T) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "tokens.csv")
	if err := os.WriteFile(file, []byte(strings.Join([]string{
		"alice-token,alice,u1,devs", "root-token,root,u2,system:masters",
		"n1-token,system:node:n1,u3,system:nodes", "n2-token,system:node:n2,u4,system:nodes",
	}, "\n")), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

// as returns a client with a bearer token and no other credential.
func (p *process) as(token string) kubernetes.Interface {
	p.t.Helper()
	config := rest.AnonymousClientConfig(p.config())
	config.BearerToken = token
	return kubernetes.NewForConfigOrDie(config)
}

// TestStatusCodesShowWhoIsAuthorized checks the status codes of requests with and without credentials and rights.
func TestStatusCodesShowWhoIsAuthorized(t *testing.T) {
	file := tokens(t)
	for _, mode := range []struct {
		name  string
		args  []string
		codes map[string]int // by token and path
	}{
		{"AlwaysAllow", []string{"--authorization-mode=AlwaysAllow"}, map[string]int{
			"alice-token /api/v1/nodes": 200,
			"guess /api/v1/nodes":       401,
			"guess /readyz":             401,
			" /api/v1/nodes":            401, // RBAC gives anonymous users no right to it
		}},
		{"the default, RBAC", nil, map[string]int{
			"root-token /api/v1/nodes":   200,
			"alice-token /api/v1/nodes":  403,
			"alice-token /apis":          200, // system:discovery
			"alice-token /metrics":       403,
			"guess /api/v1/nodes":        401,
			"guess /readyz":              401,
			" /api/v1/nodes":             403,
			" /readyz":                   200,
			" /livez":                    200,
			" /healthz":                  200,
			" /version":                  200, // system:public-info-viewer
			" /metrics":                  403,
			"alice-token /readyz/ping":   403,
			"root-token /readyz/ping":    200,
			"root-token /readyz?verbose": 200,
		}},
	} {
		t.Run(mode.name, func(t *testing.T) {
			p := serve(t, append(mode.args, "--unsafe-no-fsync", "--token-auth-file", file)...)
			for key, want := range mode.codes {
				token, path, _ := strings.Cut(key, " ")
				got, err := p.status(path, token)
				if err != nil || got != want {
					t.Errorf("token %q, %s: status %d, error %v, want %d", token, path, got, err, want)
				}
			}
		})
	}
}

// TestRBAC checks that a role grants its subject exactly its rules, until the binding is deleted, and that a user
// cannot grant rights that the user lacks.
func TestRBAC(t *testing.T) {
	p := serve(t, "--unsafe-no-fsync", "--authorization-mode=RBAC", "--token-auth-file", tokens(t))
	admin, alice, ctx := p.client(), p.as("alice-token"), t.Context()
	read := func() error {
		_, err := alice.CoreV1().ConfigMaps("default").List(ctx, metav1.ListOptions{})
		return err
	}
	if err := read(); !apierrors.IsForbidden(err) {
		t.Fatalf("a read without a role: %v", err)
	}
	role := &rbacv1.Role{
		ObjectMeta: metav1.ObjectMeta{Name: "reader"},
		Rules:      []rbacv1.PolicyRule{{APIGroups: []string{""}, Resources: []string{"configmaps"}, Verbs: []string{"list"}}},
	}
	if _, err := admin.RbacV1().Roles("default").Create(ctx, role, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	binding := &rbacv1.RoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: "reader"},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: "reader"},
		Subjects:   []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.GroupKind, Name: "devs"}},
	}
	if _, err := admin.RbacV1().RoleBindings("default").Create(ctx, binding, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	proctest.Eventually(t, "the role allows alice to read", read)
	if _, err := alice.CoreV1().ConfigMaps("kube-system").List(ctx, metav1.ListOptions{}); !apierrors.IsForbidden(err) {
		t.Errorf("a read in another namespace: %v", err)
	}
	if err := alice.CoreV1().ConfigMaps("default").Delete(ctx, "x", metav1.DeleteOptions{}); !apierrors.IsForbidden(err) {
		t.Errorf("another verb: %v", err)
	}
	role.Name = "taken"
	role.Rules[0].Verbs = []string{"*"}
	if _, err := alice.RbacV1().Roles("default").Create(ctx, role, metav1.CreateOptions{}); !apierrors.IsForbidden(err) {
		t.Errorf("creating a role: %v", err)
	}
	if err := admin.RbacV1().RoleBindings("default").Delete(ctx, "reader", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	proctest.Eventually(t, "without the binding, alice may not read", func() error {
		if err := read(); !apierrors.IsForbidden(err) {
			return fmt.Errorf("got %v", err)
		}
		return nil
	})
}

// TestIssuedTokenIsAccepted checks that a token that the server has issued authenticates its service account.
func TestIssuedTokenIsAccepted(t *testing.T) {
	p := serve(t, "--unsafe-no-fsync")
	k := newKubectl(t, p.kubeconfig(), "default")
	k.must(t, "", "create", "serviceaccount", "robot")
	token := strings.TrimSpace(k.must(t, "", "create", "token", "robot"))
	review := &authenticationv1.SelfSubjectReview{}
	who, err := p.as(token).AuthenticationV1().SelfSubjectReviews().Create(t.Context(), review, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	user := who.Status.UserInfo
	if user.Username != "system:serviceaccount:default:robot" || !slices.Contains(user.Groups, "system:serviceaccounts:default") {
		t.Errorf("the token authenticates %+v", user)
	}
	if _, err := p.as(token[:len(token)-8]).CoreV1().Nodes().List(t.Context(), metav1.ListOptions{}); !apierrors.IsUnauthorized(err) {
		t.Errorf("a truncated token: %v", err)
	}
}
