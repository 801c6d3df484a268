package bootstrap_test

import (
	"encoding/json"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	"k8s.io/kubernetes/pkg/registry/core/service/ipallocator"

	"github.com/larder-io/larder/internal/proctest"
	"github.com/larder-io/larder/internal/registry/registrytest"
)

const testAddress = "10.0.0.50"

// TestRepairOfAddresses starts the repair of service addresses after a change that the informer of IP addresses has
// received and the informer of Services has not. It checks which Service has the address before and after the repair.
func TestRepairOfAddresses(t *testing.T) {
	tests := map[string]struct {
		change       func(t *testing.T, c kubernetes.Interface)
		before, want string
	}{
		"deleted": {change: deleteService},
		"replaced": {change: func(t *testing.T, c kubernetes.Interface) {
			deleteService(t, c)
			createService(t, c, "new")
		}, before: "new", want: "new"},
		"lost": {change: func(t *testing.T, c kubernetes.Interface) {
			if err := c.NetworkingV1().IPAddresses().Delete(t.Context(), testAddress, metav1.DeleteOptions{}); err != nil {
				t.Fatal(err)
			}
		}, want: "old"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			first := registrytest.New(t, nil)
			_, stop := run(t, first, nil)
			awaitControllers(t, first)
			stop()
			createService(t, first.Client, "old")

			second := registrytest.New(t, first.Store)
			begin, end := make(chan struct{}), make(chan struct{})
			var waiting, stale atomic.Bool
			waiting.Store(true) // the repair waits for the informer of ServiceCIDRs
			hold(t, second.Informers.Networking().V1().ServiceCIDRs().Informer(), begin, &waiting)
			services := second.Informers.Core().V1().Services().Informer()
			hold(t, services, end, &stale)
			addresses := second.Informers.Networking().V1().IPAddresses().Informer()
			b, _ := start(t, second, nil)
			t.Cleanup(func() { close(end) })
			await(t, addresses, "old")
			proctest.Eventually(t, "the informer has the Service", func() error {
				_, found, err := services.GetStore().GetByKey("default/old")
				if err == nil && !found {
					err = fmt.Errorf("no Service among %v", services.GetStore().ListKeys())
				}
				return err
			})
			stale.Store(true)
			test.change(t, first.Client)
			await(t, addresses, test.before)
			close(begin)
			wait(t, b)

			got, err := first.Client.NetworkingV1().IPAddresses().Get(t.Context(), testAddress, metav1.GetOptions{})
			if apierrors.IsNotFound(err) {
				got, err = nil, nil
			}
			if err != nil {
				t.Fatal(err)
			}
			if user := userOf(got); user != test.want {
				t.Errorf("got the address of Service %q, want %q", user, test.want)
			}
			if test.want == "" {
				createService(t, first.Client, "new")
			}
		})
	}
}

// hold makes an informer wait for released before it stores a change while held is true.
func hold(t *testing.T, informer cache.SharedIndexInformer, released <-chan struct{}, held *atomic.Bool) {
	t.Helper()
	err := informer.SetTransform(func(o any) (any, error) {
		if held.Load() {
			<-released
		}
		return o, nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// await waits until, in the informer of IP addresses, Service user has the address, or none if user is empty.
func await(t *testing.T, addresses cache.SharedIndexInformer, user string) {
	t.Helper()
	proctest.Eventually(t, "the informer has the address", func() error {
		o, _, err := addresses.GetStore().GetByKey(testAddress)
		address, _ := o.(*networkingv1.IPAddress)
		if got := userOf(address); err == nil && got != user {
			err = fmt.Errorf("got the address of Service %q, want %q", got, user)
		}
		return err
	})
}

func userOf(address *networkingv1.IPAddress) string {
	if address == nil {
		return ""
	}
	return address.Spec.ParentRef.Name
}

func createService(t *testing.T, c kubernetes.Interface, name string) {
	t.Helper()
	_, err := c.CoreV1().Services("default").Create(t.Context(), &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec:       corev1.ServiceSpec{ClusterIP: testAddress, Ports: []corev1.ServicePort{{Port: 80}}},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
}

func deleteService(t *testing.T, c kubernetes.Interface) {
	t.Helper()
	if err := c.CoreV1().Services("default").Delete(t.Context(), "old", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
}

// TestRepairKeepsAddressesOfRestoredServices writes an address and its Service to the store, as they were more than a
// minute ago. The repair must not release the address although it sees it before the Service.
func TestRepairKeepsAddressesOfRestoredServices(t *testing.T) {
	for _, name := range []string{"the informer of Services is behind", "the repair is paused"} {
		t.Run(name, func(t *testing.T) {
			s := registrytest.New(t, nil)
			end := make(chan struct{})
			var stale atomic.Bool
			services := s.Informers.Core().V1().Services().Informer()
			hold(t, services, end, &stale)
			b, _ := run(t, s, nil)
			release := sync.OnceFunc(func() { close(end) })
			t.Cleanup(release)
			awaitControllers(t, s)
			addresses := s.Informers.Networking().V1().IPAddresses().Informer()
			service := &corev1.Service{
				TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Service"}, ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "old", UID: "1"},
				Spec: corev1.ServiceSpec{ClusterIP: testAddress, ClusterIPs: []string{testAddress}, Ports: []corev1.ServicePort{{Port: 80}}},
			}
			if name == "the repair is paused" {
				resume := b.PauseRepair()
				store(t, s, "ipaddresses/"+testAddress, oldAddress(testAddress, "old"))
				await(t, addresses, "old")
				store(t, s, "services/specs/default/old", service)
				proctest.Eventually(t, "the informer has the Service", func() error {
					if _, found, err := services.GetStore().GetByKey("default/old"); err != nil || !found {
						return fmt.Errorf("found: %v, error: %v", found, err)
					}
					return nil
				})
				resume()
			} else {
				stale.Store(true)
				store(t, s, "services/specs/default/old", service)
				store(t, s, "ipaddresses/"+testAddress, oldAddress(testAddress, "old"))
			}
			const leaked = "10.0.0.51"
			store(t, s, "ipaddresses/"+leaked, oldAddress(leaked, "none"))
			proctest.Eventually(t, "a leaked address is released", func() error {
				_, err := s.Client.NetworkingV1().IPAddresses().Get(t.Context(), leaked, metav1.GetOptions{})
				if apierrors.IsNotFound(err) {
					return nil
				}
				return fmt.Errorf("the address exists, or an error: %w", err)
			})
			if _, err := s.Client.NetworkingV1().IPAddresses().Get(t.Context(), testAddress, metav1.GetOptions{}); err != nil {
				t.Error(err)
			}
		})
	}
}

// oldAddress returns an address of a Service, older than the repair's grace period.
func oldAddress(ip, service string) *networkingv1.IPAddress {
	return &networkingv1.IPAddress{
		TypeMeta: metav1.TypeMeta{APIVersion: "networking.k8s.io/v1", Kind: "IPAddress"},
		ObjectMeta: metav1.ObjectMeta{
			Name: ip, UID: types.UID(ip), CreationTimestamp: metav1.Unix(1, 0),
			Labels: map[string]string{networkingv1.LabelManagedBy: ipallocator.ControllerName, networkingv1.LabelIPAddressFamily: "IPv4"},
		},
		Spec: networkingv1.IPAddressSpec{ParentRef: &networkingv1.ParentReference{Resource: "services", Namespace: "default", Name: service}},
	}
}

// store writes an object to the store without the server.
func store(t *testing.T, s *registrytest.Server, key string, object any) {
	t.Helper()
	value, err := json.Marshal(object)
	if err != nil {
		t.Fatal(err)
	}
	s.Store.PutAll(map[string][]byte{"/registry/" + key: value})
}
