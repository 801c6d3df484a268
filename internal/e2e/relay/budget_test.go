package relay

import (
	"bytes"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
)

// budgetReader returns the token of a user who may read the metrics and the objects that the tests of budgets create.
func budgetReader(t *testing.T, u *upstream) string {
	return u.token(t, "reader", allowed([]string{"get", "list", "watch"}, []string{"configmaps", "services"}),
		rbacv1.PolicyRule{Verbs: []string{"get"}, NonResourceURLs: []string{"/metrics"}})
}

// createLarge creates ten ConfigMaps of together 1 MiB.
func createLarge(t *testing.T, u *upstream) {
	t.Helper()
	for i := range 10 {
		large := configMap(fmt.Sprintf("c%d", i))
		large.Data["large"] = strings.Repeat("x", 100<<10)
		if _, err := u.client(t).CoreV1().ConfigMaps("default").Create(t.Context(), large, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
}

// TestMemoryBudget checks that a resource that does not fit into the budget is not cached, and that its requests are
// forwarded. A resource with watches stays cached.
func TestMemoryBudget(t *testing.T) {
	t.Parallel()
	u := startUpstream(t)
	reader := budgetReader(t, u)
	createLarge(t, u)
	r := u.startRelay(t, "--memory-budget", "500Ki")
	w, err := kubernetes.NewForConfigOrDie(r.as(reader)).CoreV1().Services("default").Watch(t.Context(), metav1.ListOptions{ResourceVersion: "0"})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Stop()
	if e := <-w.ResultChan(); e.Object.(*corev1.Service).Name != "kubernetes" {
		t.Errorf("the first event is %v", e)
	}
	metrics := func() string { return string(get(t, r.as(reader), "/metrics").body) }
	r.Eventually(t, "the relay follows the upstream", func() error { // the first requests are forwarded
		get(t, r.as(reader), "/api/v1/services?resourceVersion=0")
		if text := metrics(); !strings.Contains(text, `larder_relay_objects{group="",resource="services",version="v1"} 1`) {
			return fmt.Errorf("services are not followed: %s", text)
		}
		return nil
	})
	for range 3 {
		got := get(t, r.as(reader), "/api/v1/namespaces/default/configmaps?resourceVersion=0")
		if got.code != http.StatusOK || bytes.Count(got.body, []byte(`"large"`)) != 10 {
			t.Errorf("the forwarded list: status %d, %d bytes", got.code, len(got.body))
		}
	}
	text := metrics()
	if strings.Contains(text, `larder_relay_objects{group="",resource="configmaps"`) || !strings.Contains(text, `larder_relay_objects{group="",resource="services",version="v1"} 1`) ||
		!strings.Contains(text, `larder_relay_requests_total{by="cache"}`) {
		t.Errorf("with a budget for services only, the metrics are %s", text)
	}
	r.Await(t, "no room for a resource")
}

// TestGrownResource checks that the informer of a resource that has outgrown the budget continues without a cache.
func TestGrownResource(t *testing.T) {
	t.Parallel()
	u := startUpstream(t)
	reader := budgetReader(t, u)
	r := u.startRelay(t, "--memory-budget", "500Ki", "--idle", "1s") // caches are measured each quarter of --idle
	i := informer(t, r.as(reader))
	follows := func(want bool) {
		t.Helper()
		r.Eventually(t, fmt.Sprintf("follows ConfigMaps: %v", want), func() error {
			get(t, r.as(reader), "/api/v1/configmaps?resourceVersion=0")
			text := string(get(t, r.as(reader), "/metrics").body)
			if strings.Contains(text, `larder_relay_objects{group="",resource="configmaps"`) != want {
				return errors.New(text)
			}
			return nil
		})
	}
	follows(true)
	createLarge(t, u)
	follows(false)
	awaitCount(t, i, 10)
	if _, err := u.client(t).CoreV1().ConfigMaps("default").Create(t.Context(), configMap("later"), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	awaitCount(t, i, 11)
	follows(false)
}
