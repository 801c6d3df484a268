package relay

import (
	"bytes"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"testing"

	authenticationv1 "k8s.io/api/authentication/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/larder-io/larder/internal/proctest/testcert"
)

// certified returns the configuration of a client of r with a certificate.
func (r *relay) certified(t *testing.T, authority *testcert.Authority, name string, groups ...string) *rest.Config {
	t.Helper()
	config := r.as("")
	config.CertFile, config.KeyFile = testcert.Write(t, t.TempDir(), name, authority.Sign(t, name, groups, nil))
	return config
}

// TestClientCertificates checks that a certificate of a CA that only the relay trusts names the user for the upstream,
// too.
func TestClientCertificates(t *testing.T) {
	t.Parallel()
	u := startUpstream(t)
	ctx, rbac := t.Context(), u.client(t).RbacV1()
	role := &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: "readers"}, Rules: []rbacv1.PolicyRule{allowed([]string{"*"}, []string{"configmaps"})}}
	if _, err := rbac.ClusterRoles().Create(ctx, role, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	binding := &rbacv1.ClusterRoleBinding{
		ObjectMeta: role.ObjectMeta, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: role.Name},
		Subjects: []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: "Group", Name: "readers"}},
	}
	if _, err := rbac.ClusterRoleBindings().Create(ctx, binding, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	authority, file := testcert.New(t, "clients"), filepath.Join(t.TempDir(), "ca.crt")
	if err := os.WriteFile(file, []byte(authority.PEM()), 0o600); err != nil {
		t.Fatal(err)
	}
	u.apply(t, "relay-impersonates.yaml")
	r := u.startRelay(t, "--client-ca-file", file)
	ann := r.certified(t, authority, "ann", "readers")
	client := kubernetes.NewForConfigOrDie(ann)
	r.Eventually(t, "the upstream applies the role", func() error {
		_, err := client.CoreV1().ConfigMaps("default").Create(ctx, configMap("c"), metav1.CreateOptions{})
		return ignoreExists(err)
	})
	const fromCache = "?resourceVersion=0"
	for _, query := range []string{fromCache, ""} {
		if got := get(t, ann, "/api/v1/configmaps"+query); got.code != http.StatusOK {
			t.Errorf("configmaps%s: %d %s", query, got.code, got.body)
		}
		if got := get(t, ann, "/api/v1/services"+query); got.code != http.StatusForbidden || !bytes.Contains(got.body, []byte(`User \"ann\"`)) {
			t.Errorf("services%s: %d %s", query, got.code, got.body)
		}
		if got := get(t, ann, "/api/v1/configmaps"+query, "Impersonate-User", "admin", "Impersonate-Group", "system:masters"); got.code != http.StatusForbidden {
			t.Errorf("configmaps%s as another user: %d %s", query, got.code, got.body)
		}
		if got := get(t, r.certified(t, authority, "bob"), "/api/v1/configmaps"+query); got.code != http.StatusForbidden || !bytes.Contains(got.body, []byte(`User \"bob\"`)) {
			t.Errorf("configmaps%s with bob's certificate: %d %s", query, got.code, got.body)
		}
		if got := get(t, r.certified(t, testcert.New(t, "strangers"), "ann", "readers", "system:masters"), "/api/v1/configmaps"+query); got.code != http.StatusUnauthorized {
			t.Errorf("configmaps%s with a certificate of an unknown CA: %d %s", query, got.code, got.body)
		}
	}
	review, err := client.AuthenticationV1().SelfSubjectReviews().Create(ctx, &authenticationv1.SelfSubjectReview{}, metav1.CreateOptions{})
	if err != nil || review.Status.UserInfo.Username != "ann" || !slices.Contains(review.Status.UserInfo.Groups, "readers") || slices.Contains(review.Status.UserInfo.Groups, "system:masters") {
		t.Errorf("for the upstream, ann is %+v: %v", review, err)
	}
	w, err := client.CoreV1().ConfigMaps("default").Watch(ctx, metav1.ListOptions{ResourceVersion: "0"})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Stop()
	if err := rbac.ClusterRoleBindings().Delete(ctx, binding.Name, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	awaitEnd(t, w)
}
