package e2e_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// checksOfStock are the checks that `/readyz?verbose` of kube-apiserver 1.36.3 lists, in order, without CRDs and
// aggregated APIs.
const checksOfStock = `ping log etcd etcd-readiness informer-sync
poststarthook/start-apiserver-admission-initializer poststarthook/generic-apiserver-start-informers
poststarthook/priority-and-fairness-config-consumer poststarthook/priority-and-fairness-filter
poststarthook/storage-object-count-tracker-hook poststarthook/start-apiextensions-informers
poststarthook/start-apiextensions-controllers poststarthook/crd-informer-synced
poststarthook/start-system-namespaces-controller poststarthook/peer-endpoint-reconciler-controller
poststarthook/start-cluster-authentication-info-controller
poststarthook/start-kube-apiserver-identity-lease-controller poststarthook/start-kube-apiserver-identity-lease-garbage-collector
poststarthook/storage-readiness poststarthook/start-legacy-token-tracking-controller
poststarthook/start-service-ip-repair-controllers poststarthook/rbac/bootstrap-roles
poststarthook/scheduling/bootstrap-system-priority-classes poststarthook/priority-and-fairness-config-producer
poststarthook/bootstrap-controller poststarthook/start-kubernetes-service-cidr-controller
poststarthook/start-kube-aggregator-informers poststarthook/apiservice-status-local-available-controller
poststarthook/apiservice-status-remote-available-controller poststarthook/apiservice-registration-controller
poststarthook/apiservice-discovery-controller poststarthook/kube-apiserver-autoregistration autoregister-completion
poststarthook/apiservice-openapi-controller poststarthook/apiservice-openapiv3-controller shutdown`

// TestHealthChecks checks that the health paths list kube-apiserver's checks, that each check has a path of its own,
// and that some can be excluded.
func TestHealthChecks(t *testing.T) {
	p := serve(t, "--unsafe-no-fsync")
	names := strings.Fields(checksOfStock)
	live := slices.DeleteFunc(slices.Clone(names), func(name string) bool {
		return name == "etcd-readiness" || name == "informer-sync" || name == "shutdown"
	})
	live = slices.Insert(live, 2, "loopback-serving-certificate")
	for path, want := range map[string][]string{"/readyz": names, "/livez": live, "/healthz": live} {
		text := p.want(200, path+"?verbose")
		var got []string
		for line := range strings.Lines(text) {
			if name, ok := strings.CutPrefix(line, "[+]"); ok {
				got = append(got, strings.TrimSuffix(name, " ok\n"))
			}
		}
		if !slices.Equal(got, want) || !strings.HasSuffix(text, path[1:]+" check passed\n") {
			t.Errorf("%s: %s", path, text)
		}
		for _, name := range want {
			if body := p.want(200, path+"/"+name); body != "ok" {
				t.Errorf("%s/%s: %s", path, name, body)
			}
		}
		if text := p.want(200, path+"?verbose&exclude=etcd&exclude=nothing"); !strings.Contains(text, "[+]etcd excluded: ok\n") ||
			!strings.Contains(text, `warn: some health checks cannot be excluded: no matches for "nothing"`) {
			t.Errorf("%s, with etcd excluded: %s", path, text)
		}
	}
	p.want(404, "/livez/nothing")
	var index struct{ Paths []string }
	if err := json.Unmarshal([]byte(p.want(200, "/")), &index); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{"/flagz", "/statusz", "/openapi/v3/", "/healthz/poststarthook/crd-informer-synced", "/livez/etcd", "/readyz/shutdown"} {
		if !slices.Contains(index.Paths, path) {
			t.Errorf("the index does not list %s", path)
		}
	}
}

// TestHealthWhileStopping checks that only readiness, with its shutdown check, reports that a server stops.
func TestHealthWhileStopping(t *testing.T) {
	t.Parallel()
	p := serve(t, "--unsafe-no-fsync", "--shutdown-delay-duration=1h")
	p.signal(syscall.SIGINT)
	p.Await(t, "stopping")
	if text := p.want(500, "/readyz"); strings.Count(text, "[-]") != 1 || !strings.Contains(text, "[-]shutdown failed: reason withheld") {
		t.Error(text)
	}
	p.want(500, "/readyz/shutdown")
	p.want(200, "/livez")
	p.signal(syscall.SIGINT)
}

// TestStatusPages checks that the pages about the process show its flags and state, as text and as JSON, if feature
// gates enable them.
func TestStatusPages(t *testing.T) {
	p := serve(t, "--unsafe-no-fsync", "--livez-grace-period=37s", "--authorization-mode=RBAC", "--token-auth-file", tokens(t), "--contention-profiling")
	structured := func(kind, version string) string {
		return "Accept: application/json;g=config.k8s.io;v=" + version + ";as=" + kind
	}
	var status struct {
		Kind, BinaryVersion, EmulationVersion string
		Paths                                 []string
	}
	if _, body := p.ask("GET", "/statusz", "", structured("Statusz", "v1beta1")); json.Unmarshal([]byte(body), &status) != nil || status.BinaryVersion != "1.36.3" ||
		status.EmulationVersion != "1.36" || strings.Join(status.Paths, " ") != "/flagz /healthz /livez /metrics /readyz /statusz /version" {
		t.Errorf("/statusz: %s", body)
	}
	var flags struct{ Flags map[string]string }
	resp, body := p.ask("GET", "/flagz", "", structured("Flagz", "v1alpha1"))
	if json.Unmarshal([]byte(body), &flags) != nil || flags.Flags["livez-grace-period"] != "37s" || !strings.Contains(resp.Header.Get("Warning"), "deprecated") {
		t.Errorf("/flagz: %v %s", resp.Header, body)
	}
	if text := p.want(200, "/statusz"); !strings.Contains(text, "apiserver statusz") {
		t.Errorf("/flagz as text: %s", text)
	}
	if resp, body := p.ask("GET", "/flagz", "", "Accept: application/json"); resp.StatusCode != http.StatusNotAcceptable {
		t.Errorf("/flagz as plain JSON: status %d %s, want 406", resp.StatusCode, body)
	}
	for _, path := range []string{"/statusz", "/flagz", "/debug/pprof/", "/debug/flags/v", "/debug/api_priority_and_fairness/dump_queues"} {
		if code, err := p.status(path, "alice-token"); code != http.StatusForbidden || err != nil {
			t.Errorf("%s without rights: status %d, error %v", path, code, err)
		}
	}
	p.want(404, "/debug/pprof/cmdline") // the command line may contain secrets
	p.want(200, "/debug/pprof/symbol")
	if text := p.want(200, "/debug/pprof/block?debug=1"); !strings.Contains(text, " @ 0x") {
		t.Errorf("no block profile: %s", text)
	}

	off := serve(t, "--unsafe-no-fsync", "--feature-gates=ComponentStatusz=false,ComponentFlagz=false", "--profiling=false", "--enable-logs-handler",
		"--enable-priority-and-fairness=false", "--debug-socket-path=/dev/null/debug")
	for _, path := range []string{"/statusz", "/flagz", "/debug/pprof/", "/debug/flags/v", "/logs/no-such-log"} {
		off.want(404, path)
	}
	if _, err := os.Stat("/var/log"); err == nil {
		off.want(200, "/logs/")
	}
	off.want(200, "/openapi/v3/logs")
	off.want(200, "/readyz/poststarthook/storage-object-count-tracker-hook")
	if resp, body := off.ask("DELETE", "/logs/", ""); resp.StatusCode != http.StatusMethodNotAllowed || !strings.Contains(body, "MethodNotAllowed") {
		t.Errorf("DELETE /logs/: status %d %s, want 405", resp.StatusCode, body)
	}
}

// TestHealthWhileStarting checks that a server whose resources do not load is ready only after
// --storage-initialization-timeout, and live during its grace period.
func TestHealthWhileStarting(t *testing.T) {
	t.Parallel() // mostly waits
	const forever, hasty = "--storage-initialization-timeout=1h", "--storage-initialization-timeout=3s"
	for _, c := range []struct {
		args []string
		want map[string]int
	}{
		{[]string{hasty}, map[string]int{"/livez": 200, "/readyz": 200, "/readyz/poststarthook/storage-readiness": 200}},
		{[]string{forever, "--livez-grace-period=1h"}, map[string]int{"/livez": 200, "/livez/poststarthook/storage-readiness": 200, "/readyz": 500, "/healthz": 500}},
		{[]string{forever}, map[string]int{"/livez": 500, "/livez/poststarthook/storage-readiness": 500, "/livez/poststarthook/start-apiserver-admission-initializer": 200, "/readyz": 500}},
	} {
		p := hanging(t, c.args...)
		if c.args[0] == hasty {
			p.awaitReady()
		}
		for path, code := range c.want {
			if resp, body := p.ask("GET", path, ""); resp.StatusCode != code {
				t.Errorf("%v %s: %d %s, want %d\n%s", p.args, path, resp.StatusCode, body, code, p.Output())
			}
		}
	}
}

// hanging starts a server whose Secrets cannot be read, because the KMS plugin does not respond. When hanging returns,
// the server responds to requests.
func hanging(t *testing.T, args ...string) *process {
	t.Helper()
	dir := keysDir(t)
	file, keys := filepath.Join(dir, "encryption.yaml"), startKeys(t, dir, "keys")
	keys.timeout = time.Hour
	encryptBy(t, file, keys)
	p := serve(t, "--unsafe-no-fsync", "--encryption-provider-config", file)
	secrets := p.client().CoreV1().Secrets("default")
	for i := range 100 { // the server waits for the key of each, for at most ten seconds
		secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("s%d", i)}}
		if _, err := secrets.Create(t.Context(), secret, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	if err := p.Terminate(t); err != nil {
		t.Fatal(err)
	}
	keys.hangs.Store(true)
	p.args = append(p.args, args...)
	p.start()
	p.Eventually(t, "responds", func() error { _, err := p.status("/livez/ping", ""); return err })
	return p
}

// TestCountMetric checks that the metrics have the number of objects unless a flag disables it.
func TestCountMetric(t *testing.T) {
	const metric = `apiserver_storage_objects{resource="namespaces"}`
	if text := serve(t, "--unsafe-no-fsync").want(200, "/metrics"); !strings.Contains(text, metric) {
		t.Error("by default, the metric is missing")
	}
	if text := serve(t, "--unsafe-no-fsync", "--etcd-count-metric-poll-period=0").want(200, "/metrics"); strings.Contains(text, metric) {
		t.Error("the metric is served although the period is 0")
	}
}
