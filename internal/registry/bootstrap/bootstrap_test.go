package bootstrap_test

import (
	"context"
	"net"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	"k8s.io/kubernetes/plugin/pkg/auth/authorizer/rbac/bootstrappolicy"

	"github.com/larder-io/larder/internal/proctest"
	"github.com/larder-io/larder/internal/registry/bootstrap"
	"github.com/larder-io/larder/internal/registry/registrytest"
	"github.com/larder-io/larder/kv"
	"github.com/larder-io/larder/kv/kvtest"
)

// endpointTTL is longer than any test, so that no lease expires.
const endpointTTL = time.Hour

// run starts a server's bootstrap and waits until it is ready. Run ends with the test, or when stop is called.
func run(t *testing.T, s *registrytest.Server, change func(*bootstrap.Config)) (b *bootstrap.Bootstrap, stop func()) {
	t.Helper()
	b, stop = start(t, s, change)
	wait(t, b)
	return b, stop
}

func wait(t *testing.T, b *bootstrap.Bootstrap) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), proctest.Patience)
	defer cancel()
	if err := b.WaitReady(ctx); err != nil {
		t.Fatal(err)
	}
}

func start(t *testing.T, s *registrytest.Server, change func(*bootstrap.Config)) (b *bootstrap.Bootstrap, stop func()) {
	t.Helper()
	config := bootstrap.Config{
		Registry: s.Registry, Client: s.Client, Informers: s.Informers,
		PublicAddress: net.IPv4(192, 0, 2, 7), PublicPort: 6443,
		EndpointInterval: 10 * time.Millisecond, EndpointTTL: endpointTTL, RBAC: true,
		Grace: time.Second, RetryInterval: 10 * time.Millisecond,
	}
	if change != nil {
		change(&config)
	}
	b, err := bootstrap.New(config)
	if err != nil {
		t.Fatal(err)
	}
	s.Start(t)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- b.Run(ctx) }()
	stopped := false
	stop = func() {
		if stopped {
			return
		}
		stopped = true
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}
	t.Cleanup(stop)
	return b, stop
}

// TestObjectsExistWhenReady checks that the objects of a new cluster exist once all hooks are ready.
func TestObjectsExistWhenReady(t *testing.T) {
	s := registrytest.New(t, nil)
	b, _ := run(t, s, nil)
	for _, h := range b.Hooks() {
		if err := h.Check(); err != nil {
			t.Errorf("%s: %v", h.Name, err)
		}
	}
	ctx := t.Context()
	check := func(what string, list runtime.Object, err error, want ...string) {
		t.Helper()
		if err != nil {
			t.Fatalf("%s: %v", what, err)
		}
		got := names(t, list)
		for _, name := range want {
			if !slices.Contains(got, name) {
				t.Errorf("got %s %v, want %s among them", what, got, name)
			}
		}
	}
	all := metav1.ListOptions{}
	namespaces, err := s.Client.CoreV1().Namespaces().List(ctx, all)
	check("namespace", namespaces, err, "default", "kube-system", "kube-public", "kube-node-lease")
	cidrs, err := s.Client.NetworkingV1().ServiceCIDRs().List(ctx, all)
	check("ServiceCIDR", cidrs, err, "kubernetes")
	services, err := s.Client.CoreV1().Services("default").List(ctx, all)
	check("service", services, err, "kubernetes")
	addresses, err := s.Client.NetworkingV1().IPAddresses().List(ctx, all)
	check("address", addresses, err, "10.0.0.1")
	classes, err := s.Client.SchedulingV1().PriorityClasses().List(ctx, all)
	check("priority class", classes, err, "system-node-critical", "system-cluster-critical")
	schemas, err := s.Client.FlowcontrolV1().FlowSchemas().List(ctx, all)
	check("flow schema", schemas, err, "exempt", "catch-all", "system-nodes", "global-default")
	levels, err := s.Client.FlowcontrolV1().PriorityLevelConfigurations().List(ctx, all)
	check("priority level", levels, err, "exempt", "catch-all", "workload-high")
	var roles []string
	for _, role := range append(bootstrappolicy.ClusterRoles(), bootstrappolicy.ControllerRoles()...) {
		roles = append(roles, role.Name)
	}
	clusterRoles, err := s.Client.RbacV1().ClusterRoles().List(ctx, all)
	check("cluster role", clusterRoles, err, roles...)
	bindings, err := s.Client.RbacV1().ClusterRoleBindings().List(ctx, all)
	check("cluster role binding", bindings, err, "cluster-admin", "system:controller:node-controller")
	systemRoles, err := s.Client.RbacV1().Roles("kube-system").List(ctx, all)
	check("role", systemRoles, err, "extension-apiserver-authentication-reader")
	if svc := services.Items[0]; svc.Spec.ClusterIP != "10.0.0.1" || svc.Spec.Ports[0].Port != 443 || svc.Spec.Ports[0].TargetPort.IntVal != 6443 {
		t.Errorf("got kubernetes service %+v, want 10.0.0.1:443 with target port 6443", svc.Spec)
	}
	if _, found, _, err := s.Store.Get(ctx, "/registry/ranges/servicenodeports"); !found || err != nil {
		t.Errorf("record of node ports: got found %v and error %v", found, err)
	}
}

// TestSecondBootstrapChangesNothing checks that a second server on the same store writes no key.
func TestSecondBootstrapChangesNothing(t *testing.T) {
	store := kvtest.NewMemory()
	quiet := func(c *bootstrap.Config) { c.PublicAddress = nil }
	first := registrytest.New(t, store)
	_, stop := run(t, first, quiet)
	awaitControllers(t, first)
	stop()
	before := dump(t, store)
	run(t, registrytest.New(t, store), quiet)
	if diff := cmp.Diff(before, dump(t, store)); diff != "" {
		t.Errorf("the second bootstrap changed revisions:\n%s", diff)
	}
}

// TestTwoServersBootstrapOneStore checks that two servers that start on one empty store at the same time become ready.
func TestTwoServersBootstrapOneStore(t *testing.T) {
	store := kvtest.NewMemory()
	first, _ := start(t, registrytest.New(t, store), func(c *bootstrap.Config) { c.PublicAddress = net.IPv4(192, 0, 2, 1) })
	second, _ := start(t, registrytest.New(t, store), func(c *bootstrap.Config) { c.PublicAddress = net.IPv4(192, 0, 2, 2) })
	wait(t, first)
	wait(t, second)
}

// TestMissingRulesAreRestored deletes a default binding and the rules of default roles. A later server must restore
// them, except in a role that is annotated not to be updated.
func TestMissingRulesAreRestored(t *testing.T) {
	store := kvtest.NewMemory()
	first := registrytest.New(t, store)
	_, stop := run(t, first, nil)
	stop()
	ctx := t.Context()
	rbac := first.Client.RbacV1()
	if err := rbac.ClusterRoleBindings().Delete(ctx, "system:node", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	removeRules(t, first.Client, "system:discovery", false)
	removeRules(t, first.Client, "system:basic-user", true)

	run(t, registrytest.New(t, store), nil)
	if _, err := rbac.ClusterRoleBindings().Get(ctx, "system:node", metav1.GetOptions{}); err != nil {
		t.Errorf("deleted binding: %v", err)
	}
	for name, restored := range map[string]bool{"system:discovery": true, "system:basic-user": false} {
		role, err := rbac.ClusterRoles().Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if got := len(role.Rules) > 0; got != restored {
			t.Errorf("%s: got rules restored %v, want %v", name, got, restored)
		}
	}
}

// removeRules removes all rules of a role and, if protected, annotates it not to be updated.
func removeRules(t *testing.T, client kubernetes.Interface, name string, protected bool) {
	t.Helper()
	roles := client.RbacV1().ClusterRoles()
	role, err := roles.Get(t.Context(), name, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	role.Rules = nil
	if protected {
		role.Annotations["rbac.authorization.kubernetes.io/autoupdate"] = "false"
	}
	if _, err := roles.Update(t.Context(), role, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
}

// TestEndpointsFollowReadiness checks that a server publishes its address when it is ready and removes it when it
// stops.
func TestEndpointsFollowReadiness(t *testing.T) {
	s := registrytest.New(t, nil)
	watcher, ctx := s.Client.CoreV1().Endpoints("default"), t.Context()
	b, _ := run(t, s, nil)
	events, err := watcher.Watch(ctx, metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer events.Stop()
	await := func(want ...string) {
		t.Helper()
		for event := range events.ResultChan() {
			if got := endpointIPs(event.Object); slices.Equal(got, want) {
				return
			}
		}
		t.Fatalf("the watch ended before the addresses were %v", want)
	}
	await("192.0.2.7")
	if _, found, _, err := s.Store.Get(ctx, "/registry/masterleases/192.0.2.7"); !found || err != nil {
		t.Errorf("lease of the running server: got found %v and error %v, want it", found, err)
	}
	b.Stop()
	await()
	if _, found, _, err := s.Store.Get(ctx, "/registry/masterleases/192.0.2.7"); found || err != nil {
		t.Errorf("lease of the stopped server: got found %v and error %v, want none", found, err)
	}
}

// dump returns every key with the revision of its last change, except keys of events, which upstream's loops may
// record late.
func dump(t *testing.T, store *kvtest.Memory) map[string]int64 {
	t.Helper()
	page, err := store.Range(t.Context(), kv.RangeOptions{Prefix: "/"})
	if err != nil {
		t.Fatal(err)
	}
	out := make(map[string]int64, len(page.Items))
	for _, item := range page.Items {
		if !strings.HasPrefix(item.Key, "/registry/events/") {
			out[item.Key] = item.Revision
		}
	}
	return out
}
