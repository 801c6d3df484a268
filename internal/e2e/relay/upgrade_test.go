package relay

import (
	"fmt"
	"net/http"
	"testing"

	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
)

// TestUpstreamStopsServing restarts the upstream without a version of a built-in resource that the relay caches.
func TestUpstreamStopsServing(t *testing.T) {
	t.Parallel()
	u := startUpstream(t)
	reader := u.token(t, "reader", allowed([]string{"get", "list", "watch"}, []string{"poddisruptionbudgets"}))
	r := u.startRelay(t)
	budgets := kubernetes.NewForConfigOrDie(r.as(reader)).PolicyV1().PodDisruptionBudgets("default")
	one := intstr.FromInt32(1)
	_, err := u.client(t).PolicyV1().PodDisruptionBudgets("default").Create(t.Context(), &policyv1.PodDisruptionBudget{
		ObjectMeta: metav1.ObjectMeta{Name: "b"}, Spec: policyv1.PodDisruptionBudgetSpec{MinAvailable: &one},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	w, err := budgets.Watch(t.Context(), metav1.ListOptions{ResourceVersion: "0"})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Stop()
	direct := &rest.Config{Host: u.config.Host, BearerToken: reader, TLSClientConfig: rest.TLSClientConfig{Insecure: true}}
	const path = "/apis/policy/v1/poddisruptionbudgets?resourceVersion=0"
	expectStatus := func(code int) {
		t.Helper()
		r.Eventually(t, "the relay responds like the upstream", func() error {
			want, got := get(t, direct, path), get(t, r.as(reader), path)
			if want.code != code || got.code != code || anyRevision(got.body) != anyRevision(want.body) {
				return fmt.Errorf("%d %s, want %d %s", got.code, got.body, want.code, want.body)
			}
			return nil
		})
	}
	expectStatus(http.StatusOK)
	u.Kill()
	u.args = []string{"--runtime-config=policy/v1=false"}
	u.start(t)
	expectStatus(http.StatusNotFound)
	awaitEnd(t, w)
	u.Kill()
	u.args = nil
	u.start(t)
	expectStatus(http.StatusOK)
}
