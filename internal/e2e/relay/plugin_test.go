package relay

import (
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"testing"
	"time"

	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/larder-io/larder/internal/proctest/testcert"
)

// plugin is a credential plugin, which hangs while the file hangs exists. Each of the relay's requests runs it.
type plugin struct{ hangs, hanging string }

// newPlugin makes a kubeconfig use a plugin instead of its token.
func newPlugin(t *testing.T, kubeconfig string) *plugin {
	t.Helper()
	config, err := clientcmd.LoadFromFile(kubeconfig)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	p := &plugin{filepath.Join(dir, "hangs"), filepath.Join(dir, "hanging")}
	script := fmt.Sprintf(`#!/bin/sh
exec 2>/dev/null # it may outlive the relay
if [ -e "%[1]s" ]; then touch "%[2]s"; fi
while [ -e "%[1]s" ]; do sleep 0.1; done
echo '{"apiVersion":"client.authentication.k8s.io/v1","kind":"ExecCredential","status":{"token":%[3]q,"expirationTimestamp":%[4]q}}'
`, p.hangs, p.hanging, config.AuthInfos["relay"].Token, time.Now().Format(time.RFC3339))
	file := filepath.Join(dir, "plugin")
	if err := os.WriteFile(file, []byte(script), 0o700); err != nil {
		t.Fatal(err)
	}
	config.AuthInfos["relay"] = &clientcmdapi.AuthInfo{Exec: &clientcmdapi.ExecConfig{
		Command: file, APIVersion: "client.authentication.k8s.io/v1", InteractiveMode: clientcmdapi.NeverExecInteractiveMode,
	}}
	if err := clientcmd.WriteToFile(*config, kubeconfig); err != nil {
		t.Fatal(err)
	}
	return p
}

// hang makes the plugin hang, and waits until the relay waits for it.
func (p *plugin) hang(t *testing.T, r *relay) {
	t.Helper()
	if err := os.Remove(p.hanging); err != nil && !errors.Is(err, fs.ErrNotExist) {
		t.Fatal(err)
	}
	if err := os.WriteFile(p.hangs, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	r.Eventually(t, "runs the plugin", func() error {
		_, err := os.Stat(p.hanging)
		return err
	})
}

// TestCredentialPluginHangs checks that while its credential plugin hangs, a relay behaves as without its upstream.
// Requests with the client's own token are still forwarded.
func TestCredentialPluginHangs(t *testing.T) {
	t.Parallel()
	u := startUpstream(t)
	rule := allowed([]string{"get", "list", "watch"}, []string{"configmaps"})
	reader, other := u.token(t, "reader", rule), u.token(t, "other", rule)
	binding := &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: "bob"}, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "reader"},
		Subjects: []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: "User", Name: "bob"}},
	}
	if _, err := u.client(t).RbacV1().ClusterRoleBindings().Create(t.Context(), binding, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	u.awaitRight(t, "bob", rule)
	authority := testcert.New(t, "clients")
	ca := filepath.Join(t.TempDir(), "ca.crt")
	if err := os.WriteFile(ca, []byte(authority.PEM()), 0o600); err != nil {
		t.Fatal(err)
	}
	kubeconfig := u.kubeconfig(t)
	p := newPlugin(t, kubeconfig)
	r := startRelay(t, "--upstream", kubeconfig, "--client-ca-file", ca)
	i, cached := informer(t, r.as(reader)), "/api/v1/configmaps?resourceVersion=0"
	maps := u.client(t).CoreV1().ConfigMaps("default")
	if _, err := maps.Create(t.Context(), configMap("before"), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	awaitCount(t, i, 1)
	bob := r.certified(t, authority, "bob")
	for _, config := range []*rest.Config{r.as(reader), bob} {
		if got := get(t, config, cached); got.code != http.StatusOK { // so that the relay has cached the right to list
			t.Fatalf("%d %s", got.code, got.body)
		}
	}
	hang := func() {
		t.Helper()
		p.hang(t, r)
		r.Eventually(t, "responses from the cache have its age", func() error {
			for _, config := range []*rest.Config{bob, r.as(reader)} { // for bob, the relay needs only an access review
				if got := get(t, config, cached); got.code != http.StatusOK || got.header.Get("Larder-Upstream-Age") == "" {
					return fmt.Errorf("%d %v %s", got.code, got.header, got.body)
				}
			}
			return nil
		})
	}
	hang()
	if got := get(t, r.as(reader), "/api/v1/configmaps"); got.code != http.StatusOK {
		t.Errorf("a consistent list with the client's token: %d %s", got.code, got.body)
	}
	if got := get(t, r.as(other), cached); got.code != http.StatusServiceUnavailable {
		t.Errorf("a token that the relay has not cached: %d %s", got.code, got.body)
	}
	if got := get(t, bob, "/api/v1/configmaps"); got.code != http.StatusServiceUnavailable || got.header.Get("Retry-After") == "" {
		t.Errorf("a request with the relay's credential: %d %v %s", got.code, got.header, got.body)
	}
	if _, err := maps.Create(t.Context(), configMap("during"), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(p.hangs); err != nil {
		t.Fatal(err)
	}
	awaitCount(t, i, 2)
	r.Eventually(t, "reviews tokens again", func() error {
		if got := get(t, r.as(other), cached); got.code != http.StatusOK {
			return fmt.Errorf("%d %s", got.code, got.body)
		}
		return nil
	})
	hang()
	if err := r.Terminate(t); err != nil {
		t.Errorf("%v\n%s", err, r.Output())
	}
}
