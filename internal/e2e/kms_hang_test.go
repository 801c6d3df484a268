package e2e_test

import (
	"fmt"
	"net/http"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/larder-io/larder/internal/proctest"
)

// TestHangingKMSPluginDelaysOnlyItsSecrets starts a server whose KMS plugin for Secrets hangs. The server must be
// ready, serve everything else and apply roles. It must serve Secrets once the KMS plugin responds.
func TestHangingKMSPluginDelaysOnlyItsSecrets(t *testing.T) {
	t.Parallel() // mostly waits for the KMS plugin
	dir := keysDir(t)
	file, keys := filepath.Join(dir, "encryption.yaml"), startKeys(t, dir, "keys")
	encryptBy(t, file, keys)
	p := serve(t, "--unsafe-no-fsync", "--encryption-provider-config", file)
	client := p.client()
	const n = 100
	for i := range n {
		secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("s%d", i)}, StringData: map[string]string{"k": "v"}}
		if _, err := client.CoreV1().Secrets("default").Create(t.Context(), secret, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	// The test creates its own role, because only a controller manager fills in kube-apiserver's aggregated roles.
	role := &rbacv1.Role{
		ObjectMeta: metav1.ObjectMeta{Name: "reader"},
		Rules:      []rbacv1.PolicyRule{{APIGroups: []string{""}, Resources: []string{"pods"}, Verbs: []string{"list"}}},
	}
	if _, err := client.RbacV1().Roles("default").Create(t.Context(), role, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	binding := &rbacv1.RoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: "reader"}, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: "reader"},
		Subjects: []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind, Name: "reader"}},
	}
	if _, err := client.RbacV1().RoleBindings("default").Create(t.Context(), binding, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := p.Terminate(t); err != nil {
		t.Fatal(err)
	}

	keys.hangs.Store(true)
	p.start()
	p.awaitReady()
	client = p.client()
	if err := client.CoreV1().RESTClient().Get().AbsPath("/readyz").Do(t.Context()).Error(); err != nil {
		t.Errorf("/readyz: %v", err)
	}
	as := rest.CopyConfig(p.config())
	as.Impersonate.UserName = "reader"
	if _, err := kubernetes.NewForConfigOrDie(as).CoreV1().Pods("default").List(t.Context(), metav1.ListOptions{}); err != nil {
		t.Errorf("a list of pods by a user with a role: %v", err)
	}
	if _, err := client.CoreV1().ConfigMaps("default").Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "c"}}, metav1.CreateOptions{}); err != nil {
		t.Errorf("creating a ConfigMap: %v", err)
	}
	if list, err := client.CoreV1().Secrets("default").List(t.Context(), metav1.ListOptions{ResourceVersion: "0"}); err == nil {
		t.Errorf("a list of %d secrets while they cannot be decrypted", len(list.Items))
	}
	keys.hangs.Store(false)
	proctest.Eventually(t, "secrets are served", func() error {
		list, err := client.CoreV1().Secrets("default").List(t.Context(), metav1.ListOptions{})
		if err == nil && len(list.Items) != n {
			return fmt.Errorf("%d secrets", len(list.Items))
		}
		return err
	})
}

// TestHangingKMSPluginOfTheServersOwn starts a server whose KMS plugin for CRDs, APIServices, services and IP addresses
// hangs. The server must be ready without them and keep trying. Once the KMS plugin responds, it must create and serve
// everything.
func TestHangingKMSPluginOfTheServersOwn(t *testing.T) {
	t.Parallel() // mostly waits for the KMS plugin
	dir := keysDir(t)
	file, keys := filepath.Join(dir, "encryption.yaml"), startKeys(t, dir, "keys")
	encryptResources(t, file, "services,servicecidrs.networking.k8s.io,ipaddresses.networking.k8s.io,"+
		"customresourcedefinitions.apiextensions.k8s.io,apiservices.apiregistration.k8s.io", keys)
	p := serve(t, "--unsafe-no-fsync", "--encryption-provider-config", file)
	definition := `{"apiVersion":"apiextensions.k8s.io/v1","kind":"CustomResourceDefinition","metadata":{"name":"things.example.com"},` +
		`"spec":{"group":"example.com","scope":"Cluster","names":{"plural":"things","kind":"Thing"},` +
		`"versions":[{"name":"v1","served":true,"storage":true,"schema":{"openAPIV3Schema":{"type":"object"}}}]}}`
	send := func(method, path, body string) error { // without retries
		resp, text := p.fetch(method, path, strings.NewReader(body), http.Header{"Content-Type": {"application/json"}})
		if resp.StatusCode >= http.StatusBadRequest {
			return fmt.Errorf("%d %s", resp.StatusCode, text)
		}
		return nil
	}
	if err := send("POST", "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", definition); err != nil {
		t.Fatal(err)
	}
	things := func() error { return send("GET", "/apis/example.com/v1/things", "") }
	proctest.Eventually(t, "things are served", things)
	service := func(name, query string) error {
		return send("POST", "/api/v1/namespaces/default/services"+query, fmt.Sprintf(`{"metadata":{"name":%q},"spec":{"ports":[{"port":80}]}}`, name))
	}
	if err := service("before", ""); err != nil {
		t.Fatal(err)
	}
	if err := p.Terminate(t); err != nil {
		t.Fatal(err)
	}

	keys.hangs.Store(true)
	p.start()
	p.awaitReady()
	if resp, body := p.fetch("GET", "/readyz?verbose", nil, nil); resp.StatusCode != http.StatusOK {
		t.Errorf("/readyz: %d %s", resp.StatusCode, body)
	}
	if _, err := p.client().CoreV1().ConfigMaps("default").Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "c"}}, metav1.CreateOptions{}); err != nil {
		t.Errorf("creating a ConfigMap: %v", err)
	}
	if err := things(); err == nil || !strings.HasPrefix(err.Error(), "503 ") {
		t.Errorf("a list of things while their CRD cannot be decrypted: %v", err)
	}
	if err := service("meanwhile", "?timeout=2s"); err == nil {
		t.Error("a service got an address while the allocated ones are unknown")
	}
	keys.hangs.Store(false)
	proctest.Eventually(t, "things are served again", things)
	tries := 0
	proctest.Eventually(t, "services are created", func() error {
		tries++ // a write that timed out may have been committed
		return service(fmt.Sprint("after-", tries), "?timeout=10s")
	})
}
