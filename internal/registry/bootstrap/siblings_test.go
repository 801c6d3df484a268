package bootstrap_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	flowcontrolv1 "k8s.io/api/flowcontrol/v1"
	networkingv1 "k8s.io/api/networking/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	networkingclient "k8s.io/client-go/kubernetes/typed/networking/v1"
	"k8s.io/kubernetes/pkg/controlplane/controller/legacytokentracking"
	"k8s.io/kubernetes/pkg/controlplane/reconcilers"
	flowcontrolrest "k8s.io/kubernetes/pkg/registry/flowcontrol/rest"
	rbacrest "k8s.io/kubernetes/pkg/registry/rbac/rest"
	schedulingrest "k8s.io/kubernetes/pkg/registry/scheduling/rest"

	"github.com/larder-io/larder/internal/proctest"
	"github.com/larder-io/larder/internal/registry"
	"github.com/larder-io/larder/internal/registry/bootstrap"
	"github.com/larder-io/larder/internal/registry/builtin"
	"github.com/larder-io/larder/internal/registry/registrytest"
	"github.com/larder-io/larder/kv/kvtest"
)

// stock maintains the endpoints of the kubernetes service like a kube-apiserver, with upstream's reconciler, whenever
// the test calls reconcile.
type stock struct {
	t     *testing.T
	ip    net.IP
	ports []corev1.EndpointPort
	reconcilers.EndpointReconciler
}

func newStock(t *testing.T, s *registrytest.Server, ip net.IP, port int32) *stock {
	t.Helper()
	leases, err := s.Registry.Leases(endpointTTL)
	if err != nil {
		t.Fatal(err)
	}
	return &stock{
		t: t, ip: ip, ports: []corev1.EndpointPort{{Name: "https", Protocol: corev1.ProtocolTCP, Port: port}},
		EndpointReconciler: reconcilers.NewLeaseEndpointReconciler(
			reconcilers.NewEndpointsAdapter(s.Client.CoreV1(), s.Client.DiscoveryV1()), leases),
	}
}

// reconcile does what a kube-apiserver does every ten seconds. It retries if another server has written concurrently.
func (s *stock) reconcile() {
	s.t.Helper()
	proctest.Eventually(s.t, "kube-apiserver has reconciled", func() error {
		return s.ReconcileEndpoints("kubernetes", s.ip, s.ports, false)
	})
}

// stop removes the server from the endpoints, unless another server has written them concurrently.
func (s *stock) stop() {
	s.t.Helper()
	s.StopReconciling()
	if err := s.RemoveEndpoints("kubernetes", s.ip, s.ports); err != nil && !apierrors.IsConflict(err) {
		s.t.Fatal(err)
	}
}

// publishedEndpoints returns the kubernetes service's endpoints, which Endpoints and EndpointSlices must agree on.
func publishedEndpoints(t *testing.T, s *registrytest.Server) []string {
	t.Helper()
	endpoints, err := s.Client.CoreV1().Endpoints("default").Get(t.Context(), "kubernetes", metav1.GetOptions{})
	if err != nil {
		return []string{err.Error()}
	}
	slice, err := s.Client.DiscoveryV1().EndpointSlices("default").Get(t.Context(), "kubernetes", metav1.GetOptions{})
	if err != nil {
		return []string{err.Error()}
	}
	var out, sliced []string
	for _, subset := range endpoints.Subsets {
		for _, address := range subset.Addresses {
			out = append(out, fmt.Sprintf("%s:%d", address.IP, subset.Ports[0].Port))
		}
	}
	for _, e := range slice.Endpoints {
		sliced = append(sliced, fmt.Sprintf("%s:%d", e.Addresses[0], *slice.Ports[0].Port))
	}
	if !slices.Equal(out, sliced) {
		return []string{fmt.Sprintf("%v in Endpoints, %v in EndpointSlices", out, sliced)}
	}
	return out
}

func awaitEndpoints(t *testing.T, s *registrytest.Server, want ...string) {
	t.Helper()
	proctest.Eventually(t, fmt.Sprintf("endpoints are %v", want), func() error {
		if got := publishedEndpoints(t, s); !slices.Equal(got, want) {
			return fmt.Errorf("got %v", got)
		}
		return nil
	})
}

// awaitControllers waits for objects that upstream's controllers write some time after a server is ready.
func awaitControllers(t *testing.T, s *registrytest.Server) {
	t.Helper()
	proctest.Eventually(t, "the server has written everything", func() error {
		cidr, err := s.Client.NetworkingV1().ServiceCIDRs().Get(t.Context(), "kubernetes", metav1.GetOptions{})
		if err == nil && len(cidr.Status.Conditions) == 0 {
			err = errors.New("the ServiceCIDR has no conditions")
		}
		if err == nil {
			_, err = s.Client.CoreV1().ConfigMaps("kube-system").Get(t.Context(), legacytokentracking.ConfigMapName, metav1.GetOptions{})
		}
		return err
	})
}

// countReconciles returns a function that waits until the servers on store have read the leases some more times, and so
// have reconciled.
func countReconciles(t *testing.T, store *kvtest.Memory) func() {
	var seen atomic.Int64
	store.SetHook(func(op, key string) error {
		if op == "list" && strings.HasPrefix(key, "/registry/masterleases") {
			seen.Add(1)
		}
		return nil
	})
	return func() {
		t.Helper()
		until := seen.Load() + 5
		proctest.Eventually(t, "the servers have reconciled", func() error {
			if now := seen.Load(); now < until {
				return fmt.Errorf("got %d reads of the leases, want %d", now, until)
			}
			return nil
		})
	}
}

var (
	here  = net.IPv4(192, 0, 2, 7) // as in start
	there = net.IPv4(192, 0, 2, 8)
)

// TestSiblingAtAnotherPort starts and stops a server beside a kube-apiserver at another port, on the same machine or
// another. The kubernetes service, its endpoints and the leases must not change.
func TestSiblingAtAnotherPort(t *testing.T) {
	for name, ip := range map[string]net.IP{"at the same address": here, "at another address": there} {
		t.Run(name, func(t *testing.T) {
			store := kvtest.NewMemory()
			first := registrytest.New(t, store)
			_, stop := run(t, first, func(c *bootstrap.Config) { c.PublicAddress = nil }) // creates objects like kube-apiserver
			awaitControllers(t, first)
			stop()
			sibling := newStock(t, first, ip, 35443)
			sibling.reconcile()
			before := dump(t, store)

			await := countReconciles(t, store)
			b, end := run(t, registrytest.New(t, store), nil)
			await()
			if got, want := publishedEndpoints(t, first), []string{ip.String() + ":35443"}; !slices.Equal(got, want) {
				t.Errorf("got endpoints %v while the server runs, want %v", got, want)
			}
			b.Stop()
			end()
			if diff := cmp.Diff(before, dump(t, store)); diff != "" {
				t.Errorf("the server left changes:\n%s", diff)
			}
			sibling.reconcile()
			if got, want := publishedEndpoints(t, first), []string{ip.String() + ":35443"}; !slices.Equal(got, want) {
				t.Errorf("got endpoints %v after the server, want %v", got, want)
			}
		})
	}
}

// startSiblingLater makes a kube-apiserver reconcile once a server has published its endpoints.
func startSiblingLater(t *testing.T, ip net.IP, port int32) (s *registrytest.Server, b *bootstrap.Bootstrap, end func(), sibling *stock) {
	t.Helper()
	s = registrytest.New(t, nil)
	b, end = run(t, s, nil)
	awaitEndpoints(t, s, "192.0.2.7:6443")
	sibling = newStock(t, s, ip, port)
	sibling.reconcile()
	return s, b, end, sibling
}

// TestSiblingAtTheSamePort checks that servers at the same port share the endpoints.
func TestSiblingAtTheSamePort(t *testing.T) {
	s, b, _, _ := startSiblingLater(t, there, 6443)
	awaitEndpoints(t, s, "192.0.2.7:6443", "192.0.2.8:6443")
	b.Stop()
	awaitEndpoints(t, s, "192.0.2.8:6443")
}

// TestContendedEndpoints checks that a server that reconciles once is published although another server, which has not
// read its lease, reconciles just before its first write.
func TestContendedEndpoints(t *testing.T) {
	const endpoints, slice = "/registry/services/endpoints/default/kubernetes", "/registry/endpointslices/default/kubernetes"
	const byCount = reconcilers.MasterCountReconcilerType
	for name, test := range map[string]struct {
		by      reconcilers.Type
		anyPort bool
		before  string // the key of the write
		created bool   // the objects exist
	}{
		"creation":               {before: endpoints},
		"update":                 {before: endpoints, created: true},
		"creation of the slice":  {before: slice},
		"update of the slice":    {before: slice, created: true},
		"any port":               {before: endpoints, created: true, anyPort: true},
		"creation, master count": {before: endpoints, by: byCount},
		"update, master count":   {before: endpoints, by: byCount, created: true},
	} {
		t.Run(name, func(t *testing.T) {
			s := registrytest.New(t, nil)
			s.Start(t)
			made := func(ip net.IP) reconcilers.EndpointReconciler {
				r, err := bootstrap.Config{
					Registry: s.Registry, Client: s.Client, PublicAddress: ip, PublicPort: 6443, EndpointTTL: endpointTTL,
					EndpointReconciler: test.by, Instances: 3, AnyPort: test.anyPort,
				}.Reconciler()
				if err != nil {
					t.Fatal(err)
				}
				return r
			}
			ports := []corev1.EndpointPort{{Name: "https", Protocol: corev1.ProtocolTCP, Port: 6443}}
			reconcile := func(ip net.IP, by reconcilers.EndpointReconciler) {
				if err := by.ReconcileEndpoints("kubernetes", ip, ports, false); err != nil {
					t.Errorf("%s: %v", ip, err)
				}
			}
			want := []string{"192.0.2.7:6443", "192.0.2.8:6443"}
			if test.created {
				first := net.IPv4(192, 0, 2, 6)
				reconcile(first, made(first))
				want = append([]string{"192.0.2.6:6443"}, want...)
			}
			mine, other := made(here), made(there)
			leases, err := s.Registry.Leases(endpointTTL)
			if err != nil {
				t.Fatal(err)
			}
			var contended atomic.Bool
			s.Store.SetHook(func(op, key string) error {
				if op == "put" && key == test.before && contended.CompareAndSwap(false, true) {
					_ = leases.RemoveLease(here.String()) // the master-count reconciler has none
					reconcile(there, other)
					return leases.UpdateLease(here.String())
				}
				return nil
			})
			reconcile(here, mine)
			if got := publishedEndpoints(t, s); !slices.Equal(got, want) {
				t.Errorf("got endpoints %v, want %v", got, want)
			}
		})
	}
}

// TestAnyPort checks that with AnyPort a server adds itself beside one at another port, as kube-apiserver does.
func TestAnyPort(t *testing.T) {
	store := kvtest.NewMemory()
	s := registrytest.New(t, store)
	_, stop := run(t, s, func(c *bootstrap.Config) { c.PublicAddress = nil })
	awaitControllers(t, s)
	stop()
	newStock(t, s, there, 35443).reconcile()
	run(t, registrytest.New(t, store), func(c *bootstrap.Config) { c.AnyPort = true })
	proctest.Eventually(t, "both are published", func() error {
		if got := publishedEndpoints(t, s); len(got) != 2 {
			return fmt.Errorf("got endpoints %v", got)
		}
		return nil
	})
}

// TestServersAddThemselvesOnceOthersStop checks that a server that did not add itself to endpoints with another port
// adds itself once the other servers have stopped.
func TestServersAddThemselvesOnceOthersStop(t *testing.T) {
	store := kvtest.NewMemory()
	await := countReconciles(t, store)
	s := registrytest.New(t, store)
	sibling := newStock(t, s, there, 35443)
	start(t, s, nil)
	proctest.Eventually(t, "kube-apiserver is published first", func() error {
		return sibling.ReconcileEndpoints("kubernetes", there, sibling.ports, true)
	})
	await()
	awaitEndpoints(t, s, "192.0.2.8:35443")
	sibling.stop()
	awaitEndpoints(t, s, "192.0.2.7:6443")
}

// TestLaterServersDoNotChangeThePort checks that a kube-apiserver that starts later at the same address does not change
// the published port. When the first server stops, kube-apiserver publishes its own port at the next reconciliation.
func TestLaterServersDoNotChangeThePort(t *testing.T) {
	s, b, end, sibling := startSiblingLater(t, here, 35443)
	awaitEndpoints(t, s, "192.0.2.7:6443")
	b.Stop()
	awaitEndpoints(t, s) // Stop waits only for two intervals
	end()
	proctest.Eventually(t, "kube-apiserver publishes its port", func() error {
		sibling.reconcile()
		if got := publishedEndpoints(t, s); !slices.Equal(got, []string{"192.0.2.7:35443"}) {
			return fmt.Errorf("got endpoints %v", got)
		}
		return nil
	})
}

// TestSiblingsThatStartTogether checks that two servers at one address and two ports that start together agree on one port.
func TestSiblingsThatStartTogether(t *testing.T) {
	store := kvtest.NewMemory()
	await := countReconciles(t, store)
	first, second := registrytest.New(t, store), registrytest.New(t, store)
	a, _ := start(t, first, nil)
	b, _ := start(t, second, func(c *bootstrap.Config) { c.PublicPort = 6444 })
	wait(t, a)
	wait(t, b)
	proctest.Eventually(t, "there are endpoints", func() error {
		if got := publishedEndpoints(t, first); len(got) != 1 || !strings.HasPrefix(got[0], "192.0.2.7:644") {
			return fmt.Errorf("got %v", got)
		}
		return nil
	})
	await()
	settled := publishedEndpoints(t, first)
	for range 5 {
		await()
		if got := publishedEndpoints(t, first); !slices.Equal(got, settled) {
			t.Fatalf("got endpoints %v, before %v", got, settled)
		}
	}
}

// TestAddressesOfSiblings checks that a server becomes ready although another, started at the same time, has allocated
// the service's address, which the server's informer has not received.
func TestAddressesOfSiblings(t *testing.T) {
	first := registrytest.New(t, nil)
	_, stop := run(t, first, nil)
	awaitControllers(t, first)
	stop()
	if err := first.Client.NetworkingV1().IPAddresses().Delete(t.Context(), "10.0.0.1", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	tries := new(atomic.Int64)
	run(t, registrytest.New(t, first.Store), func(c *bootstrap.Config) {
		c.Client = outrun{Interface: c.Client, times: tries}
	})
	if n := tries.Load(); n < 3 {
		t.Errorf("got %d tries to allocate the address, want at least 3", n)
	}
	if _, err := first.Client.NetworkingV1().IPAddresses().Get(t.Context(), "10.0.0.1", metav1.GetOptions{}); err != nil {
		t.Error(err)
	}
}

// TestWarningsOfAddresses checks that while the informer of IP addresses is empty, the server warns only of the Service
// whose address was deleted.
func TestWarningsOfAddresses(t *testing.T) {
	s := registrytest.New(t, nil)
	release := make(chan struct{})
	defer close(release)
	err := s.Informers.Networking().V1().IPAddresses().Informer().SetTransform(func(o any) (any, error) {
		<-release
		return o, nil
	})
	if err != nil {
		t.Fatal(err)
	}
	run(t, s, nil)
	awaitControllers(t, s)
	services, ctx := s.Client.CoreV1().Services("default"), t.Context()
	svc, err := services.Create(ctx, &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: "unallocated"}, Spec: corev1.ServiceSpec{Ports: []corev1.ServicePort{{Port: 80}}},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Client.NetworkingV1().IPAddresses().Delete(ctx, svc.Spec.ClusterIP, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	svc.Labels = map[string]string{"seen": "again"}
	if _, err := services.Update(ctx, svc, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	proctest.Eventually(t, "there is an event for the Service", func() error {
		events, err := s.Client.EventsV1().Events("").List(ctx, metav1.ListOptions{})
		if err != nil || len(events.Items) == 0 {
			return fmt.Errorf("no event: %w", err)
		}
		for _, e := range events.Items {
			if e.Reason != "ClusterIPNotAllocated" || e.Regarding.Name != "unallocated" {
				t.Errorf("got event %s of %s: %s; want only ClusterIPNotAllocated of the Service", e.Reason, e.Regarding.Name, e.Note)
			}
		}
		return nil
	})
}

// outrun is a client whose first tries to allocate an address fail with AlreadyExists.
type outrun struct {
	kubernetes.Interface
	times *atomic.Int64
}

func (o outrun) NetworkingV1() networkingclient.NetworkingV1Interface {
	return outrunNetworking{o.Interface.NetworkingV1(), o.times}
}

type outrunNetworking struct {
	networkingclient.NetworkingV1Interface
	times *atomic.Int64
}

func (o outrunNetworking) IPAddresses() networkingclient.IPAddressInterface {
	return outrunAddresses{o.NetworkingV1Interface.IPAddresses(), o.times}
}

type outrunAddresses struct {
	networkingclient.IPAddressInterface
	times *atomic.Int64
}

func (o outrunAddresses) Create(ctx context.Context, a *networkingv1.IPAddress, options metav1.CreateOptions) (*networkingv1.IPAddress, error) {
	if o.times.Add(1) < 3 {
		return nil, apierrors.NewAlreadyExists(networkingv1.Resource("ipaddresses"), a.Name)
	}
	return o.IPAddressInterface.Create(ctx, a, options)
}

// TestNoReconcilerWritesNothing checks that a server without a reconciler writes neither leases nor endpoints.
func TestNoReconcilerWritesNothing(t *testing.T) {
	s := registrytest.New(t, nil)
	b, end := run(t, s, func(c *bootstrap.Config) { c.EndpointReconciler = reconcilers.NoneEndpointReconcilerType })
	b.Stop()
	end()
	for key := range dump(t, s.Store) {
		if strings.HasPrefix(key, "/registry/masterleases") || strings.HasPrefix(key, "/registry/services/endpoints") || strings.HasPrefix(key, "/registry/endpointslices") {
			t.Errorf("%s was written", key)
		}
	}
}

// TestMasterCountWritesNoLeases checks that the master-count reconciler writes no leases.
func TestMasterCountWritesNoLeases(t *testing.T) {
	s := registrytest.New(t, nil)
	b, end := run(t, s, func(c *bootstrap.Config) { c.EndpointReconciler = reconcilers.MasterCountReconcilerType })
	awaitEndpoints(t, s, "192.0.2.7:6443")
	b.Stop()
	awaitEndpoints(t, s) // Stop waits only for two intervals
	end()
	for key := range dump(t, s.Store) {
		if strings.Contains(key, "masterleases") {
			t.Errorf("%s was written", key)
		}
	}
}

// TestRBACObjectsNeedTheRBACAuthorizer checks that without the RBAC authorizer its objects are not created.
func TestRBACObjectsNeedTheRBACAuthorizer(t *testing.T) {
	s := registrytest.New(t, nil)
	b, _ := run(t, s, func(c *bootstrap.Config) { c.RBAC = false })
	for _, h := range b.Hooks() {
		if strings.Contains(h.Name, "rbac") {
			t.Errorf("got hook %s, want none of RBAC", h.Name)
		}
	}
	for key := range dump(t, s.Store) {
		if strings.Contains(key, "role") {
			t.Errorf("%s was created", key)
		}
	}
}

// TestGroupsThatAreNotServedHaveNoHooks checks that groups that are not served have no hooks, because their objects
// cannot be created.
func TestGroupsThatAreNotServedHaveNoHooks(t *testing.T) {
	s := registrytest.New(t, nil, func(c *registry.Config) {
		c.APIResources = builtin.DefaultAPIResources()
		c.APIResources.DisableVersions(flowcontrolv1.SchemeGroupVersion, rbacv1.SchemeGroupVersion, schedulingv1.SchemeGroupVersion)
	})
	b, _ := run(t, s, nil)
	for _, h := range b.Hooks() {
		if slices.Contains([]string{rbacrest.PostStartHookName, schedulingrest.PostStartHookName, flowcontrolrest.PostStartHookName}, strings.TrimPrefix(h.Name, "poststarthook/")) {
			t.Errorf("got hook %s of a group that is not served", h.Name)
		}
	}
}

// TestFailedCreationsAreRetried checks that the creation of an object is retried until it succeeds, and that the server
// becomes ready without it: the cause of the failure may itself wait for this server.
func TestFailedCreationsAreRetried(t *testing.T) {
	for _, key := range []string{"/registry/namespaces/kube-node-lease", "/registry/services/specs/default/kubernetes"} {
		t.Run(key, func(t *testing.T) {
			t.Parallel()
			s := registrytest.New(t, nil)
			var refused atomic.Int64
			var allowed atomic.Bool
			s.Store.SetHook(func(op, k string) error {
				if op == "put" && k == key && !allowed.Load() {
					refused.Add(1)
					return errors.New("refused for a test")
				}
				return nil
			})
			b, stop := start(t, s, nil)
			wait(t, b)
			if refused.Load() == 0 {
				t.Fatal("got no attempt to create the object")
			}
			if _, found := dump(t, s.Store)[key]; found {
				t.Fatal("the object exists although its creation failed")
			}
			allowed.Store(true)
			proctest.Eventually(t, "the object exists", func() error {
				if _, found := dump(t, s.Store)[key]; !found {
					return fmt.Errorf("got %d refusals", refused.Load())
				}
				return nil
			})
			stop()
		})
	}
}
