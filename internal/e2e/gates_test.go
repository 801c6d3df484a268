package e2e_test

import (
	"bytes"
	"maps"
	"net/http"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/larder-io/larder/internal/proctest"
)

// gateEffects reports, for some feature gates, whether a server shows their effect. Larder has its own code for these
// gates.
var gateEffects = map[string]func(*process) bool{
	"StorageVersionHash": func(p *process) bool { return strings.Contains(p.want(200, "/api/v1"), "storageVersionHash") },
	"WatchCacheInitializationPostStartHook": func(p *process) bool {
		return strings.Contains(p.want(200, "/readyz?verbose"), "poststarthook/storage-readiness")
	},
	"SizeBasedListCostEstimate": func(p *process) bool {
		return strings.Contains(p.want(200, "/metrics"), "\napiserver_resource_size_estimate_bytes{")
	},
	"WatchList": func(p *process) bool {
		resp, body := p.ask(http.MethodGet, "/api/v1/namespaces?watch=1&timeoutSeconds=1&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true", "")
		const forbidden = "sendInitialEvents is forbidden for watch unless the WatchList feature gate is enabled"
		if resp.StatusCode != 200 && !strings.Contains(body, forbidden) {
			p.t.Errorf("a watch with initial events: status %d, %s", resp.StatusCode, body)
		}
		return resp.StatusCode == 200
	},
	"APIResponseCompression":    (*process).compresses,
	"ConstrainedImpersonation":  (*process).grantsImpersonation,
	"InPlacePodVerticalScaling": func(p *process) bool { return strings.Contains(p.want(200, "/api/v1"), `"pods/resize"`) },
	"AggregatedDiscoveryRemoveBetaType": func(p *process) bool {
		_, body := p.ask(http.MethodGet, "/apis", "", "Accept: application/json;g=apidiscovery.k8s.io;v=v2beta1;as=APIGroupDiscoveryList,application/json")
		return !strings.Contains(body, "apidiscovery.k8s.io/v2beta1")
	},
	"MultiCIDRServiceAllocator": func(p *process) bool {
		hook := strings.Contains(p.want(200, "/readyz?verbose"), "start-kubernetes-service-cidr-controller")
		if objects := strings.Contains(p.want(200, "/apis/networking.k8s.io/v1/ipaddresses"), `"10.0.0.1"`); objects != hook {
			p.t.Errorf("IPAddress of the kubernetes service: %v, hook for its range: %v", objects, hook)
		}
		return hook
	},
	"DisableAllocatorDualWrite": func(p *process) bool {
		record := valueAt(p.t, p.etcd(), "/registry/ranges/serviceips")
		if len(record) > 0 && !bytes.Contains(record, []byte("10.0.0.0/24\x1a\x01\x01")) {
			p.t.Errorf("in the allocated service addresses, the first is free: %q", record)
		}
		return len(record) == 0
	},
}

// TestGates checks that feature gates of code that Larder replaces have the same effect as in kube-apiserver, on and
// off.
func TestGates(t *testing.T) {
	younger := "AggregatedDiscoveryRemoveBetaType=false,APIResponseCompression=false,InPlacePodVerticalScaling=false,StorageVersionHash=false"
	for name, c := range map[string]struct {
		flags []string
		off   string // the gates without an effect
	}{
		"default": {nil, ""},
		"off": {[]string{"--feature-gates=ConstrainedImpersonation=false,WatchList=false,APIResponseCompression=false,SizeBasedListCostEstimate=false,StorageVersionHash=false,WatchCacheInitializationPostStartHook=false"},
			"ConstrainedImpersonation WatchList APIResponseCompression SizeBasedListCostEstimate StorageVersionHash WatchCacheInitializationPostStartHook"},
		"no beta": {[]string{"--feature-gates=AllBeta=false"},
			"ConstrainedImpersonation WatchList APIResponseCompression SizeBasedListCostEstimate StorageVersionHash WatchCacheInitializationPostStartHook"},
		// With MutatingAdmissionPolicy on, admission waits for policies in a version that 1.33 does not serve, so that
		// neither this server nor kube-apiserver becomes ready.
		"1.33 with alpha": {[]string{"--emulated-version=1.33", "--feature-gates=AllAlpha=true,AllBeta=true,MutatingAdmissionPolicy=false", "--runtime-config=api/all=true"},
			"ConstrainedImpersonation SizeBasedListCostEstimate"},
		"1.33": {[]string{"--emulated-version=1.33"},
			"ConstrainedImpersonation WatchList SizeBasedListCostEstimate WatchCacheInitializationPostStartHook DisableAllocatorDualWrite"},
		"1.33 off": {[]string{"--emulated-version=1.33", "--feature-gates=MultiCIDRServiceAllocator=false,APIServerTracing=false," + younger},
			"ConstrainedImpersonation WatchList SizeBasedListCostEstimate WatchCacheInitializationPostStartHook DisableAllocatorDualWrite MultiCIDRServiceAllocator APIResponseCompression StorageVersionHash AggregatedDiscoveryRemoveBetaType InPlacePodVerticalScaling"},
		"1.34 off": {[]string{"--emulated-version=1.34", "--feature-gates=DisableAllocatorDualWrite=false," + younger},
			"ConstrainedImpersonation WatchCacheInitializationPostStartHook DisableAllocatorDualWrite APIResponseCompression StorageVersionHash AggregatedDiscoveryRemoveBetaType InPlacePodVerticalScaling"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := serve(t, append(c.flags, "--unsafe-no-fsync", "--token-auth-file", tokens(t), "--service-cluster-ip-range=10.0.0.0/24")...)
			off := strings.Fields(c.off)
			for _, gate := range slices.Sorted(maps.Keys(gateEffects)) {
				if got, want := gateEffects[gate](p), !slices.Contains(off, gate); got != want {
					t.Errorf("%s has an effect: %v, want %v", gate, got, want)
				}
			}
		})
	}
}

// compresses reports whether a long list and a large object are compressed for a client that accepts gzip.
func (p *process) compresses() bool {
	p.t.Helper()
	long := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "long"}, Data: map[string]string{"text": strings.Repeat("long ", 40_000)}}
	if _, err := p.client().CoreV1().ConfigMaps("default").Create(p.t.Context(), long, metav1.CreateOptions{}); err != nil {
		p.t.Fatal(err)
	}
	seen := make(map[string]bool)
	for _, path := range []string{"", "/long", "?limit=5", "?pretty=1", "?labelSelector=!x"} {
		resp, _ := p.ask(http.MethodGet, "/api/v1/namespaces/default/configmaps"+path, "", "Accept-Encoding: gzip")
		seen[resp.Header.Get("Content-Encoding")] = true
	}
	if len(seen) > 1 {
		p.t.Errorf("encodings: %v", seen)
	}
	return seen["gzip"]
}

// grantsImpersonation reports whether the verbs of constrained impersonation allow a user to impersonate another.
func (p *process) grantsImpersonation() bool {
	p.t.Helper()
	bindings := p.client().RbacV1()
	for subject, rules := range map[string][]rbacv1.PolicyRule{
		"alice": {
			{Verbs: []string{"impersonate:user-info"}, APIGroups: []string{"authentication.k8s.io"}, Resources: []string{"users"}},
			{Verbs: []string{"impersonate-on:user-info:list", "list"}, APIGroups: []string{""}, Resources: []string{"nodes"}},
		},
		"bob": {{Verbs: []string{"list"}, APIGroups: []string{""}, Resources: []string{"nodes"}}},
	} {
		role := &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: subject}, Rules: rules}
		if _, err := bindings.ClusterRoles().Create(p.t.Context(), role, metav1.CreateOptions{}); err != nil {
			p.t.Fatal(err)
		}
		if _, err := bindings.ClusterRoleBindings().Create(p.t.Context(), &rbacv1.ClusterRoleBinding{
			ObjectMeta: metav1.ObjectMeta{Name: subject}, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: subject},
			Subjects: []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: "User", Name: subject}},
		}, metav1.CreateOptions{}); err != nil {
			p.t.Fatal(err)
		}
	}
	list := func(config *rest.Config, as string) error {
		config.Impersonate.UserName = as
		_, err := kubernetes.NewForConfigOrDie(config).CoreV1().Nodes().List(p.t.Context(), metav1.ListOptions{})
		return err
	}
	alice := rest.AnonymousClientConfig(p.config())
	alice.BearerToken = "alice-token"
	proctest.Eventually(p.t, "alice may list nodes", func() error { return list(alice, "") })
	proctest.Eventually(p.t, "bob may list nodes", func() error { return list(p.config(), "bob") })
	err := list(alice, "bob")
	const forbidden = `users "bob" is forbidden: User "alice" cannot impersonate resource "users" in API group "" at the cluster scope`
	if err != nil && err.Error() != forbidden {
		p.t.Errorf("alice impersonates bob: %v", err)
	}
	return err == nil
}
