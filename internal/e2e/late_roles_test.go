package e2e_test

import (
	"fmt"
	"net/http"
	"path/filepath"
	"testing"
	"time"

	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/larder-io/larder/internal/proctest"
)

// TestSlowRolesDenyNoRequest restarts a server whose roles take long to load. Meanwhile, no request that the roles
// allow is denied.
func TestSlowRolesDenyNoRequest(t *testing.T) {
	t.Parallel() // mostly waits for the KMS plugin
	dir := keysDir(t)
	file, keys := filepath.Join(dir, "encryption.yaml"), startKeys(t, dir, "keys")
	keys.timeout = time.Hour // the roles cannot be read before the plugin responds
	encryptResources(t, file, "rolebindings.rbac.authorization.k8s.io", keys)
	p := serve(t, "--unsafe-no-fsync", "--authorization-mode=Node,RBAC", "--token-auth-file", tokens(t), "--encryption-provider-config", file)
	meta := metav1.ObjectMeta{Name: "reader"}
	role := &rbacv1.Role{ObjectMeta: meta, Rules: []rbacv1.PolicyRule{{APIGroups: []string{""}, Resources: []string{"configmaps"}, Verbs: []string{"list"}}}}
	if _, err := p.client().RbacV1().Roles("default").Create(t.Context(), role, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	binding := &rbacv1.RoleBinding{
		ObjectMeta: meta, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: "reader"},
		Subjects: []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.GroupKind, Name: "devs"}},
	}
	if _, err := p.client().RbacV1().RoleBindings("default").Create(t.Context(), binding, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := p.Terminate(t); err != nil {
		t.Fatal(err)
	}

	const configMaps = "/api/v1/namespaces/default/configmaps"
	keys.hangs.Store(true)
	p.start()
	expect := func(path, token string, want int) {
		t.Helper()
		if got, err := p.status(path, token); err != nil || got != want {
			t.Errorf("token %q, %s: status %d, error %v, want %d", token, path, got, err, want)
		}
	}
	proctest.Eventually(t, "a member of system:masters is served", func() error {
		code, err := p.status(configMaps, "root-token")
		if err == nil && code != http.StatusOK {
			err = fmt.Errorf("%d", code)
		}
		return err
	})
	expect(configMaps+"?timeout=1s", "alice-token", http.StatusTooManyRequests)
	expect("/livez", "", http.StatusForbidden) // anonymous probes do not wait for roles
	late := make(chan int, 1)
	go func() {
		code, _ := p.status(configMaps, "alice-token")
		late <- code
	}()
	keys.hangs.Store(false)
	if code := <-late; code != http.StatusOK {
		t.Errorf("a user with a role: status %d", code)
	}
	p.awaitReady()
	expect("/api/v1/nodes", "alice-token", http.StatusForbidden)
}
