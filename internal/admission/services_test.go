package admission

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/larder-io/larder/internal/registry/registrytest"
)

// TestServicesAreFoundByAddressOrEndpoint checks that a service resolves to its own cluster IP or, if the server
// routes to endpoints, to one of its own endpoints.
func TestServicesAreFoundByAddressOrEndpoint(t *testing.T) {
	s := registrytest.New(t, nil)
	s.Start(t)
	for name, address := range map[string]string{"one": "192.0.2.7", "other": "192.0.2.8"} {
		service := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: corev1.ServiceSpec{
			Type: corev1.ServiceTypeClusterIP, ClusterIP: corev1.ClusterIPNone, Ports: []corev1.ServicePort{{Name: "https", Port: 443}},
		}}
		if _, err := s.Client.CoreV1().Services("n").Create(t.Context(), service, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		slice := &discoveryv1.EndpointSlice{
			ObjectMeta:  metav1.ObjectMeta{Name: name + "-1", Labels: map[string]string{discoveryv1.LabelServiceName: name}},
			AddressType: discoveryv1.AddressTypeIPv4, Endpoints: []discoveryv1.Endpoint{{Addresses: []string{address}}},
			Ports: []discoveryv1.EndpointPort{{Name: ptr.To("https"), Port: ptr.To(int32(6443))}},
		}
		if _, err := s.Client.DiscoveryV1().EndpointSlices("n").Create(t.Context(), slice, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	// The resolver reads the two caches as they are; a list waits until its cache has seen every write.
	if _, err := s.Client.CoreV1().Services("n").List(t.Context(), metav1.ListOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Client.DiscoveryV1().EndpointSlices("n").List(t.Context(), metav1.ListOptions{}); err != nil {
		t.Fatal(err)
	}
	if got, err := NewServiceResolver(s.Registry, true).ResolveEndpoint("n", "one", 443); err != nil || got.String() != "https://192.0.2.7:6443" {
		t.Errorf("an endpoint: %v %v", got, err)
	}
	if got, err := NewServiceResolver(s.Registry, false).ResolveEndpoint("n", "one", 443); err == nil || err.Error() != `cannot route to service with ClusterIP "None"` {
		t.Errorf("a cluster IP: %v %v", got, err)
	}
}

// TestNamesThatNothingHas checks that a lookup by an impossible name finds nothing, as in an informer's indexer.
func TestNamesThatNothingHas(t *testing.T) {
	s := newStore[corev1.Node](registrytest.New(t, nil).Registry, corev1.SchemeGroupVersion.WithResource("nodes"))
	if _, found, err := s.GetByKey("a/b/c"); found || err != nil {
		t.Errorf("found %v, %v", found, err)
	}
}
