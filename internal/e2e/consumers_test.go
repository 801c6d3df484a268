package e2e_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/larder-io/larder/internal/proctest"
)

// writeFile writes a file for a flag and returns its path.
func writeFile(t *testing.T, text string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

// TestEgressConsumers checks that connections to other servers use the proxies in --egress-selector-config-file. These
// servers do not exist: the test checks only that the proxy receives a CONNECT request.
func TestEgressConsumers(t *testing.T) {
	t.Parallel()
	nobody := map[string]string{anyName: "127.0.0.1:1"}
	control, controlTunnel := newTunnel(t, nobody)
	cluster, clusterTunnel := newTunnel(t, nobody)
	config := "apiVersion: apiserver.k8s.io/v1beta1\nkind: EgressSelectorConfiguration\negressSelections:\n"
	for name, socket := range map[string]string{"controlplane": control, "cluster": cluster} {
		config += fmt.Sprintf("- name: %s\n  connection: {proxyProtocol: HTTPConnect, transport: {uds: {udsName: %s}}}\n", name, socket)
	}
	issuer := func(name, egress string) string {
		return fmt.Sprintf("- issuer: {url: https://%s.invalid, audiences: [a], egressSelectorType: %s}\n  claimMappings: {username: {claim: sub, prefix: \"\"}}\n", name, egress)
	}
	p := serve(t, "--unsafe-no-fsync", "--egress-selector-config-file="+writeFile(t, config),
		"--authentication-config="+writeFile(t, "apiVersion: apiserver.config.k8s.io/v1\nkind: AuthenticationConfiguration\njwt:\n"+issuer("issuer", "controlplane")+issuer("inside", "cluster")),
		"--authentication-token-webhook-config-file="+writeFile(t, kubeconfigOf("https://authn.invalid")),
		"--authorization-mode=RBAC,Webhook", "--authorization-webhook-config-file="+writeFile(t, kubeconfigOf("https://authz.invalid")),
		"--audit-policy-file="+writeFile(t, "apiVersion: audit.k8s.io/v1\nkind: Policy\nrules: [{level: Metadata}]\n"),
		"--audit-webhook-config-file="+writeFile(t, kubeconfigOf("https://audit.invalid")), "--audit-webhook-batch-max-wait=1s",
		"--tracing-config-file="+writeFile(t, "apiVersion: apiserver.config.k8s.io/v1\nkind: TracingConfiguration\nendpoint: 192.0.2.30:4317\nsamplingRatePerMillion: 1000000\n"))
	client := p.client()
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n"}, Status: corev1.NodeStatus{Addresses: []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: "192.0.2.20"}}}}
	if _, err := client.CoreV1().Nodes().Create(t.Context(), node, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if resp, text := p.ask(http.MethodPost, "/api/v1/namespaces/default/serviceaccounts", `{"metadata":{"name":"default"}}`, "Content-Type: application/json"); resp.StatusCode != http.StatusCreated {
		t.Errorf("create a service account: %d %s", resp.StatusCode, text)
	}
	for path, body := range map[string]string{
		"/api/v1/namespaces/default/services":                          `{"metadata":{"name":"s"},"spec":{"ports":[{"port":81}]}}`,
		"/api/v1/namespaces/default/pods":                              `{"metadata":{"name":"p"},"spec":{"nodeName":"n","containers":[{"name":"c","image":"i"}]}}`,
		"/apis/authentication.k8s.io/v1/tokenreviews":                  `{"spec":{"token":"nobody's"}}`,
		"/apis/authorization.k8s.io/v1/subjectaccessreviews":           `{"spec":{"user":"u","nonResourceAttributes":{"path":"/x","verb":"get"}}}`,
		"/apis/authentication.k8s.io/v1/selfsubjectreviews?dryRun=All": `{}`,
	} {
		if resp, text := p.ask(http.MethodPost, path, body, "Content-Type: application/json"); resp.StatusCode >= 300 {
			t.Errorf("%s: %d %s", path, resp.StatusCode, text)
		}
	}
	if resp, text := p.ask(http.MethodPatch, "/api/v1/namespaces/default/pods/p/status", `{"status":{"podIP":"192.0.2.21","podIPs":[{"ip":"192.0.2.21"}]}}`, "Content-Type: application/merge-patch+json"); resp.StatusCode != http.StatusOK {
		t.Errorf("patch the pod's status: %d %s", resp.StatusCode, text)
	}
	if resp, text := p.ask(http.MethodPost, "/api/v1/namespaces/default/endpoints", `{"metadata":{"name":"s"},"subsets":[{"addresses":[{"ip":"192.0.2.21","targetRef":{"kind":"Pod","namespace":"default","name":"p"}}],"ports":[{"port":81}]}]}`, "Content-Type: application/json"); resp.StatusCode != http.StatusCreated {
		t.Errorf("create endpoints: %d %s", resp.StatusCode, text)
	}
	for _, path := range []string{"/api/v1/nodes/n/proxy/x", "/api/v1/namespaces/default/pods/p/log", "/api/v1/namespaces/default/pods/p/proxy/", "/api/v1/namespaces/default/services/s/proxy/"} {
		p.ask(http.MethodGet, path, "")
	}
	for name, tunnel := range map[string]*tunnel{
		"issuer.invalid:443": controlTunnel, "inside.invalid:443": clusterTunnel, "authn.invalid:443": controlTunnel, "authz.invalid:443": controlTunnel,
		"audit.invalid:443": controlTunnel, "192.0.2.30:4317": controlTunnel,
		"192.0.2.20:10250": clusterTunnel, "192.0.2.21:80": clusterTunnel, "192.0.2.21:81": clusterTunnel,
	} {
		proctest.Eventually(t, "a proxy receives a CONNECT request for "+name, func() error {
			tunnel.mu.Lock()
			defer tunnel.mu.Unlock()
			if tunnel.connects[name] == 0 {
				return fmt.Errorf("got CONNECT requests for %v", tunnel.connects)
			}
			return nil
		})
	}
}

// TestEtcdPrefixes checks that all keys begin with --etcd-prefix, which is normalized as in kube-apiserver: with a
// slash at its start and none at its end. It also checks that an empty --storage-media-type means JSON.
func TestEtcdPrefixes(t *testing.T) {
	t.Parallel()
	for prefix, root := range map[string]string{"plain": "/plain", "ends/": "/ends", "/a//b": "/a/b", "": "", "/": ""} {
		p := newProcess(t, "--unsafe-no-fsync", "--etcd-prefix="+prefix, "--storage-media-type=", "--checkpoints", "--advertise-address=192.0.2.1", "--encryption-provider-config="+encrypting(t))
		p.start()
		p.awaitReady()
		p.want(http.StatusOK, "/readyz/etcd-readiness")
		definition := `{"metadata":{"name":"boxes.example.com"},"spec":{"group":"example.com","scope":"Cluster","names":{"plural":"boxes","kind":"Box"},` +
			`"versions":[{"name":"v1","served":true,"storage":true,"schema":{"openAPIV3Schema":{"type":"object"}}}]}}`
		if resp, text := p.ask(http.MethodPost, "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", definition, "Content-Type: application/json"); resp.StatusCode != http.StatusCreated {
			t.Fatal(text)
		}
		proctest.Eventually(t, "a custom resource is created", func() error {
			if resp, text := p.ask(http.MethodPost, "/apis/example.com/v1/boxes", `{"apiVersion":"example.com/v1","kind":"Box","metadata":{"name":"a"}}`, "Content-Type: application/json"); resp.StatusCode != http.StatusCreated {
				return fmt.Errorf("%d %s", resp.StatusCode, text)
			}
			return nil
		})
		put(t, p.client(), "default", "kept")
		if out := larder(t, "checkpoint", "one", "--kubeconfig", p.kubeconfig()); strings.Contains(out, "!") {
			t.Errorf("prefix %q: checkpoint: %s", prefix, out)
		}
		put(t, p.client(), "default", "lost")
		if out := larder(t, "reset", "one", "--kubeconfig", p.kubeconfig()); strings.Contains(out, "!") {
			t.Errorf("prefix %q: reset: %s", prefix, out)
		}
		p.want(http.StatusOK, "/api/v1/namespaces/default/configmaps/kept")
		p.want(http.StatusNotFound, "/api/v1/namespaces/default/configmaps/lost")
		for _, key := range []string{"/namespaces/default", "/configmaps/default/kept", "/example.com/boxes/a", "/apiextensions.k8s.io/customresourcedefinitions/boxes.example.com", "/ranges/servicenodeports", "/masterleases/192.0.2.1"} {
			proctest.Eventually(t, fmt.Sprintf("prefix %q: etcd has %s", prefix, root+key), func() error { // some are written after the server is ready
				if len(valueAt(t, p.etcd(), root+key)) == 0 {
					return errors.New("it has not")
				}
				return nil
			})
		}
		if value := valueAt(t, p.etcd(), root+"/namespaces/default"); !json.Valid(value) {
			t.Errorf("prefix %q: the object is stored as %.40q", prefix, value)
		}
		if metrics := p.want(http.StatusOK, "/metrics"); !strings.Contains(metrics, `apiserver_resource_objects{group="example.com",resource="boxes"} 1`) {
			t.Errorf("prefix %q: the metrics do not count the custom resource", prefix)
		}
	}
}

// encrypting returns the path of an encryption configuration for secrets. The encryption binds a value to its key.
func encrypting(t *testing.T) string {
	t.Helper()
	return writeFile(t, "apiVersion: apiserver.config.k8s.io/v1\nkind: EncryptionConfiguration\nresources:\n- resources: [configmaps]\n  providers: [{aescbc: {keys: [{name: k, secret: MDEyMzQ1Njc4OWFiY2RlZg==}]}}, {identity: {}}]\n")
}

// TestOwnName checks that under the name kube-apiserver, the server's own requests have kube-apiserver's user agent and
// field manager.
func TestOwnName(t *testing.T) {
	t.Parallel()
	p := newPlane(t)
	for _, stock := range []bool{false, true} {
		if stock && *stockBinary == "" {
			continue
		}
		log := filepath.Join(t.TempDir(), "audit")
		prefix := fmt.Sprintf("/own-%v", stock)
		m := p.member(stock, "", proctest.Port(t), "--etcd-prefix="+prefix, "--audit-log-path="+log, "--audit-log-mode=blocking", "--endpoint-reconciler-type=lease", "--advertise-address=192.0.2.1",
			"--audit-policy-file="+writeFile(t, "apiVersion: audit.k8s.io/v1\nkind: Policy\nrules: [{level: Metadata}]\n")).start()
		managers := make(map[string]int)
		for _, path := range []string{
			"/api/v1/namespaces", "/api/v1/services", "/api/v1/configmaps", "/apis/coordination.k8s.io/v1/leases", "/apis/rbac.authorization.k8s.io/v1/clusterroles",
			"/apis/rbac.authorization.k8s.io/v1/rolebindings", "/apis/scheduling.k8s.io/v1/priorityclasses", "/apis/flowcontrol.apiserver.k8s.io/v1/flowschemas",
			"/apis/apiregistration.k8s.io/v1/apiservices", "/apis/networking.k8s.io/v1/servicecidrs", "/apis/networking.k8s.io/v1/ipaddresses",
		} {
			var list struct {
				Items []struct{ Metadata metav1.ObjectMeta }
			}
			code, text := m.ask(http.MethodGet, path, "", nil)
			if err := json.Unmarshal([]byte(text), &list); err != nil {
				t.Errorf("%s: %d %v, %d items", path, code, err, len(list.Items))
			}
			for _, item := range list.Items {
				for _, entry := range item.Metadata.ManagedFields {
					managers[entry.Manager]++
				}
			}
		}
		delete(managers, "kubernetes-service-cidr-controller")
		maps.DeleteFunc(managers, func(name string, _ int) bool { return strings.HasPrefix(name, "api-priority-and-fairness-config-") })
		if managers["kube-apiserver"] == 0 || len(managers) != 1 {
			t.Errorf("stock %v: field managers %v", stock, managers)
		}
		text, err := os.ReadFile(log)
		if err != nil {
			t.Fatal(err)
		}
		agents := make(map[string]int)
		for line := range bytes.Lines(text) {
			var event struct {
				UserAgent string
				User      struct{ Username string }
			}
			if err := json.Unmarshal(line, &event); err == nil && event.User.Username == "system:apiserver" {
				agents[event.UserAgent]++
			}
		}
		for agent := range agents {
			want := regexp.MustCompile(`^kube-apiserver/v1\.36\.3 \(\w+/\w+\) kubernetes/\w+$`)
			if stock { // its version is set by linker flags only
				want = regexp.MustCompile(`^kube-apiserver/v\S+ \(\w+/\w+\) kubernetes/\S+$`)
			}
			if !want.MatchString(agent) {
				t.Errorf("stock %v: user agent %q", stock, agent)
			}
		}
		if len(agents) != 1 {
			t.Errorf("stock %v: user agents %v", stock, agents)
		}
	}
}

// established returns when a CRD was created and when it was established.
func established(t *testing.T, p *process, name string) (created, done time.Time) {
	t.Helper()
	group, _, _ := strings.Cut(name, ".")
	body := fmt.Sprintf(`{"metadata":{"name":%q},"spec":{"group":"example.com","scope":"Cluster","names":{"plural":%q,"kind":"K%s"},"versions":[{"name":"v1","served":true,"storage":true,"schema":{"openAPIV3Schema":{"type":"object"}}}]}}`, name, group, group)
	if resp, text := p.ask(http.MethodPost, "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", body, "Content-Type: application/json"); resp.StatusCode != http.StatusCreated {
		t.Fatal(text)
	}
	proctest.Eventually(t, "the CRD is established", func() error {
		var definition struct {
			Metadata metav1.ObjectMeta
			Status   struct{ Conditions []metav1.Condition }
		}
		if err := json.Unmarshal([]byte(p.want(http.StatusOK, "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/"+name)), &definition); err != nil {
			return err
		}
		at := slices.IndexFunc(definition.Status.Conditions, func(c metav1.Condition) bool { return c.Type == "Established" && c.Status == "True" })
		if at < 0 {
			return fmt.Errorf("%v", definition.Status.Conditions)
		}
		created, done = definition.Metadata.CreationTimestamp.Time, definition.Status.Conditions[at].LastTransitionTime.Time
		return nil
	})
	return created, done
}

// TestServerCountTakesEffect checks that with several servers, a CRD is established only after all have had five
// seconds to see it. The second server's endpoints are added to the first's.
func TestServerCountTakesEffect(t *testing.T) {
	t.Parallel()
	p := serve(t, "--unsafe-no-fsync", "--apiserver-count=2", "--endpoint-reconciler-type=master-count", "--advertise-address=192.0.2.8")
	if created, done := established(t, p, "boxes.example.com"); done.Sub(created) < 4*time.Second { // both have whole seconds
		t.Errorf("created at %v, established at %v, want 5 s later", created, done)
	}
	p.Kill()
	p.args = append(p.args, "--advertise-address=192.0.2.9")
	p.start()
	p.awaitReady()
	proctest.Eventually(t, "the address of the second server is published", func() error {
		endpoints := p.want(http.StatusOK, "/api/v1/namespaces/default/endpoints/kubernetes")
		if !strings.Contains(endpoints, "192.0.2.9") {
			return errors.New(endpoints)
		}
		if !strings.Contains(endpoints, "192.0.2.8") {
			t.Errorf("the address of the first server is lost: %s", endpoints)
		}
		return nil
	})
}

// TestCRDsCanBeDisabled checks that --runtime-config disables CRDs and nothing else.
func TestCRDsCanBeDisabled(t *testing.T) {
	t.Parallel()
	p := serve(t, "--unsafe-no-fsync", "--runtime-config=apiextensions.k8s.io/v1=false")
	p.want(http.StatusNotFound, "/apis/apiextensions.k8s.io/v1/customresourcedefinitions")
	p.want(http.StatusNotFound, "/apis/example.com/v1/boxes")
	if groups := p.want(http.StatusOK, "/apis"); strings.Contains(groups, "apiextensions.k8s.io") {
		t.Error("discovery has the group of CRDs")
	}
	put(t, p.client(), "default", "works")
	proctest.Eventually(t, "API versions have APIServices", func() error {
		resp, text := p.ask(http.MethodGet, "/apis/apiregistration.k8s.io/v1/apiservices/v1.apps", "")
		if resp.StatusCode != http.StatusOK {
			return fmt.Errorf("%d %s", resp.StatusCode, text)
		}
		return nil
	})
}
