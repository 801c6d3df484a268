package aggregator

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/utils/ptr"
)

// TestEndpointRouting: a remote server is reached at its service's address, or at one of
// its endpoints, as the configuration says.
func TestEndpointRouting(t *testing.T) {
	service := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "n", Name: "s"}, Spec: corev1.ServiceSpec{
		Type: corev1.ServiceTypeClusterIP, ClusterIP: "10.0.0.7", Ports: []corev1.ServicePort{{Name: "https", Port: 443}},
	}}
	slice := &discoveryv1.EndpointSlice{
		ObjectMeta:  metav1.ObjectMeta{Namespace: "n", Name: "s-1", Labels: map[string]string{discoveryv1.LabelServiceName: "s"}},
		AddressType: discoveryv1.AddressTypeIPv4, Endpoints: []discoveryv1.Endpoint{{Addresses: []string{"192.0.2.7"}}},
		Ports: []discoveryv1.EndpointPort{{Name: ptr.To("https"), Port: ptr.To(int32(6443))}},
	}
	for routing, want := range map[bool]string{false: "https://10.0.0.7:443", true: "https://192.0.2.7:6443"} {
		factory := informers.NewSharedInformerFactory(fake.NewClientset(), 0)
		a := &Aggregator{config: Config{Services: factory.Core().V1().Services(), EndpointRouting: routing}, slices: factory}
		resolver, err := a.newResolver()
		if err != nil {
			t.Fatal(err)
		}
		if err := factory.Core().V1().Services().Informer().GetStore().Add(service); err != nil {
			t.Fatal(err)
		}
		if err := factory.Discovery().V1().EndpointSlices().Informer().GetStore().Add(slice); err != nil {
			t.Fatal(err)
		}
		if got, err := resolver.ResolveEndpoint("n", "s", 443); err != nil || got.String() != want {
			t.Errorf("routing to endpoints %v: %v %v, want %s", routing, got, err, want)
		}
	}
}
