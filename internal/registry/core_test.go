package registry_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"slices"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/kubernetes/pkg/serviceaccount"

	"github.com/larder-io/larder/internal/registry"
	"github.com/larder-io/larder/internal/registry/registrytest"
)

// TestOnlyEventsExpire stores events of both groups with a lease, and nothing else.
func TestOnlyEventsExpire(t *testing.T) {
	s := registrytest.New(t, nil, func(c *registry.Config) { c.EventTTL = 5 * time.Minute })
	s.Start(t)
	for gvr, stub := range map[schema.GroupVersionResource]string{
		{Version: "v1", Resource: "events"}: `{"metadata": {"name": "a"}, "involvedObject": {"namespace": "` + tableNamespace + `"}}`,
		{Group: "events.k8s.io", Version: "v1", Resource: "events"}: `{"metadata": {"name": "b"}, "regarding": {"namespace": "` + tableNamespace +
			`"}, "eventTime": "2026-01-01T00:00:00.000000Z", "reportingController": "c", "reportingInstance": "i", "action": "x", "reason": "y", "type": "Normal"}`,
		{Version: "v1", Resource: "configmaps"}: `{"metadata": {"name": "c"}}`,
	} {
		created := create(t, s, gvr, stub)
		item, found, _, err := s.Store.Get(t.Context(), "/registry/"+gvr.Resource+"/"+tableNamespace+"/"+created.GetName())
		if err != nil || !found {
			t.Fatalf("%s: found %v, %v", gvr, found, err)
		}
		if expires := item.Lease != 0; expires != (gvr.Resource == "events") {
			t.Errorf("%s expires: %v", gvr, expires)
		}
	}
}

// TestTokensAreBound checks that tokens are issued only for existing objects, and only with an issuer.
func TestTokensAreBound(t *testing.T) {
	accounts := schema.GroupVersionResource{Version: "v1", Resource: "serviceaccounts"}
	if e := registrytest.New(t, nil).Registry.Endpoint(accounts, "token"); e != nil {
		t.Error("serviceaccounts/token is served without an issuer")
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	issuer, err := serviceaccount.JWTTokenGenerator("https://issuer.test", key)
	if err != nil {
		t.Fatal(err)
	}
	s := registrytest.New(t, nil, func(c *registry.Config) {
		c.ServiceAccountIssuer = issuer
		c.APIAudiences = []string{"https://api.test"}
	})
	s.Start(t)
	create(t, s, accounts, `{"metadata": {"name": "robot"}}`)
	pod := create(t, s, schema.GroupVersionResource{Version: "v1", Resource: "pods"},
		`{"metadata": {"name": "p"}, "spec": {"serviceAccountName": "robot", "containers": [{"name": "c", "image": "i"}]}}`)

	request := func(pod string) (*authenticationv1.TokenRequest, error) {
		return s.Client.CoreV1().ServiceAccounts(tableNamespace).CreateToken(t.Context(), "robot", &authenticationv1.TokenRequest{
			Spec: authenticationv1.TokenRequestSpec{
				BoundObjectRef: &authenticationv1.BoundObjectReference{Kind: "Pod", APIVersion: "v1", Name: pod},
			},
		}, metav1.CreateOptions{})
	}
	token, err := request(pod.GetName())
	if err != nil {
		t.Fatal(err)
	}
	if token.Status.Token == "" || !slices.Equal(token.Spec.Audiences, []string{"https://api.test"}) {
		t.Errorf("token %q for %v", token.Status.Token, token.Spec.Audiences)
	}
	if _, err := request("nobody"); !apierrors.IsNotFound(err) {
		t.Errorf("token bound to a pod that does not exist: %v", err)
	}
}

// TestComponentStatusShowsTheStoresHealth shows the store's health as upstream shows etcd's.
func TestComponentStatusShowsTheStoresHealth(t *testing.T) {
	s := registrytest.New(t, nil)
	s.Start(t)
	status, err := s.Client.CoreV1().ComponentStatuses().Get(t.Context(), "etcd-0", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if c := status.Conditions[0]; c.Type != corev1.ComponentHealthy || c.Status != corev1.ConditionTrue {
		t.Errorf("condition %+v", c)
	}
}

// TestProgressCountsWhatWasMirrored checks the counts once everything has loaded.
func TestProgressCountsWhatWasMirrored(t *testing.T) {
	first := registrytest.New(t, nil)
	if p := first.Registry.Progress(); p.Ready != 0 || p.Resources == 0 {
		t.Errorf("before it runs: %+v", p)
	}
	first.Start(t)
	for _, name := range []string{"a", "b", "c"} {
		create(t, first, schema.GroupVersionResource{Version: "v1", Resource: "configmaps"}, `{"metadata": {"name": "`+name+`"}}`)
	}
	second := registrytest.New(t, first.Store)
	second.Start(t)
	if p := second.Registry.Progress(); p.Ready != p.Resources || p.Objects != 3 {
		t.Errorf("after loading: %+v", p)
	}
}
