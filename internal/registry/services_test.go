package registry_test

import (
	"fmt"
	"strings"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	netutils "k8s.io/utils/net"

	"github.com/larder-io/larder/internal/proctest"
	"github.com/larder-io/larder/internal/registry"
)

func service(name string, kind corev1.ServiceType, ports ...corev1.ServicePort) *corev1.Service {
	if ports == nil {
		ports = []corev1.ServicePort{{Port: 80}}
	}
	return &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec:       corev1.ServiceSpec{Type: kind, Ports: ports},
	}
}

// TestServicesHaveAddressesOfTheirOwn checks that every service gets its own address, or the one that it requests. An
// address that is taken or out of range is refused. The deletion of a service releases its addresses.
func TestServicesHaveAddressesOfTheirOwn(t *testing.T) {
	s := startServer(t)
	services, ctx := s.Client.CoreV1().Services("default"), t.Context()
	seen := make(map[string]string)
	for i := range 5 {
		svc, err := services.Create(ctx, service(fmt.Sprintf("s%d", i), corev1.ServiceTypeClusterIP), metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if other, taken := seen[svc.Spec.ClusterIP]; taken || svc.Spec.ClusterIP == "" {
			t.Errorf("%s gets %q, which %s has", svc.Name, svc.Spec.ClusterIP, other)
		}
		seen[svc.Spec.ClusterIP] = svc.Name
	}
	want := service("wanted", corev1.ServiceTypeClusterIP)
	// The address is in the band that is allocated last, so that no earlier service has it.
	want.Spec.ClusterIP = "10.0.0.9"
	if _, err := services.Create(ctx, want, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	address, err := s.Client.NetworkingV1().IPAddresses().Get(ctx, "10.0.0.9", metav1.GetOptions{})
	if err != nil || address.Spec.ParentRef.Name != "wanted" {
		t.Errorf("address of the service: %+v, %v", address, err)
	}
	for ip, reason := range map[string]string{"10.0.0.9": "already allocated", "10.1.0.1": "does not match the current range"} {
		refused := service("refused", corev1.ServiceTypeClusterIP)
		refused.Spec.ClusterIP = ip
		if _, err := services.Create(ctx, refused, metav1.CreateOptions{}); !apierrors.IsInvalid(err) || !strings.Contains(err.Error(), reason) {
			t.Errorf("%s: %v, want %q", ip, err, reason)
		}
	}
	if err := services.Delete(ctx, "wanted", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	again := service("again", corev1.ServiceTypeClusterIP)
	again.Spec.ClusterIP = "10.0.0.9"
	// Upstream's repair may receive a service before its address, and create the address again after both are
	// deleted. It then takes a minute to notice that.
	proctest.Eventually(t, "the address of a deleted service is free", func() error {
		_, err := services.Create(ctx, again, metav1.CreateOptions{})
		return err
	})
}

// TestDryRunAllocatesNothing keeps addresses and ports free when a service is only
// tried.
func TestDryRunAllocatesNothing(t *testing.T) {
	s := startServer(t)
	services, ctx := s.Client.CoreV1().Services("default"), t.Context()
	svc := service("tried", corev1.ServiceTypeNodePort, corev1.ServicePort{Port: 80, NodePort: 30080})
	svc.Spec.ClusterIP = "10.0.0.8"
	for range 2 {
		if _, err := services.Create(ctx, svc, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}}); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := services.Create(ctx, svc, metav1.CreateOptions{}); err != nil {
		t.Error(err)
	}
}

// TestNodePortsAreGivenOutOnce fills a small range from many clients at once: each port is
// given out once, the range ends, and ports of deleted services can be had again.
func TestNodePortsAreGivenOutOnce(t *testing.T) {
	const size = 12
	s := startServer(t, func(c *registry.Config) {
		c.Services.NodePortRange = utilnet.PortRange{Base: 31000, Size: size}
	})
	services, ctx := s.Client.CoreV1().Services("default"), t.Context()
	var (
		wait  sync.WaitGroup
		mu    sync.Mutex
		ports = make(map[int32]string) // guarded by mu
	)
	for i := range size {
		wait.Go(func() {
			svc, err := services.Create(ctx, service(fmt.Sprintf("s%d", i), corev1.ServiceTypeNodePort), metav1.CreateOptions{})
			if err != nil {
				t.Error(err)
				return
			}
			mu.Lock()
			defer mu.Unlock()
			port := svc.Spec.Ports[0].NodePort
			if other, taken := ports[port]; taken || port < 31000 || port >= 31000+size {
				t.Errorf("%s gets port %d, which %q has", svc.Name, port, other)
			}
			ports[port] = svc.Name
		})
	}
	wait.Wait()
	if _, err := services.Create(ctx, service("late", corev1.ServiceTypeNodePort), metav1.CreateOptions{}); err == nil {
		t.Error("a full range gives a port")
	}
	if err := services.Delete(ctx, ports[31005], metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	late := service("late", corev1.ServiceTypeNodePort, corev1.ServicePort{Port: 80, NodePort: 31005})
	if _, err := services.Create(ctx, late, metav1.CreateOptions{}); err != nil {
		t.Errorf("port of a deleted service: %v", err)
	}
}

// TestServicesHaveAnAddressOfEachFamily gives a service an address of each family.
func TestServicesHaveAnAddressOfEachFamily(t *testing.T) {
	s := startServer(t, func(c *registry.Config) {
		_, four, _ := netutils.ParseCIDRSloppy("10.8.0.0/24")
		_, six, _ := netutils.ParseCIDRSloppy("fd00:8::/112")
		c.Services.ClusterIPRange, c.Services.SecondaryClusterIPRange = *four, *six
	})
	both := corev1.IPFamilyPolicyRequireDualStack
	svc := service("both", corev1.ServiceTypeClusterIP)
	svc.Spec.IPFamilyPolicy = &both
	created, err := s.Client.CoreV1().Services("default").Create(t.Context(), svc, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	ips := created.Spec.ClusterIPs
	if len(ips) != 2 || !strings.HasPrefix(ips[0], "10.8.0.") || !strings.HasPrefix(ips[1], "fd00:8::") {
		t.Errorf("addresses: %v", ips)
	}
}
