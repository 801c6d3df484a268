package e2e_test

import (
	"crypto/sha256"
	"flag"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	dto "github.com/prometheus/client_model/go"

	"github.com/larder-io/larder/internal/proctest"
)

// stockRegisters is the test binary of bench/buildapiserver/registered. docs/monitoring/metrics.md has its build command.
var stockRegisters = flag.String("stock-registered", "", "kube-apiserver that prints the metrics that it has registered")

// registeredFile has the names of metrics that kube-apiserver registers, for runs without -stock-registered.
var registeredFile = filepath.Join("testdata", "registered.json")

// notRegistered are metrics of kube-apiserver that Larder does not have, with the reasons.
var notRegistered = map[string]string{}

// elsewhere are metrics that are in no registry of the process and have no samples after the traffic, with the tests
// that check them.
var elsewhere = map[string]string{
	"aggregator_unavailable_apiservice_total": "httpapi/aggregator.TestConditionsOfUnavailableServers",
}

// registeringArgs returns flags that configure as many parts of a server as possible, because parts create their
// metrics when they are configured.
func registeringArgs(t *testing.T) []string {
	t.Helper()
	dir := t.TempDir()
	write := func(name, text string) string {
		file := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(file), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return file
	}
	configuration := func(kind string) string {
		return fmt.Sprintf("- name: %s\n  configuration: {apiVersion: apiserver.config.k8s.io/v1, kind: WebhookAdmissionConfiguration, staticManifestsDir: %q}\n",
			kind, filepath.Dir(write(kind+"/none.yaml", "")))
	}
	return append(metricsArgs(t),
		"--authorization-mode=", "--authorization-config="+write("authorization.yaml", `apiVersion: apiserver.config.k8s.io/v1
kind: AuthorizationConfiguration
authorizers: [{type: Node, name: node}, {type: RBAC, name: rbac}]
`),
		"--authentication-config="+write("authentication.yaml", "apiVersion: apiserver.config.k8s.io/v1\nkind: AuthenticationConfiguration\n"),
		"--encryption-provider-config-automatic-reload=true",
		"--feature-gates=ManifestBasedAdmissionControlConfig=true,ShardedListAndWatch=true",
		"--admission-control-config-file="+write("admission.yaml", "apiVersion: apiserver.config.k8s.io/v1\nkind: AdmissionConfiguration\nplugins:\n"+
			configuration("ValidatingAdmissionWebhook")+configuration("MutatingAdmissionWebhook")),
	)
}

// registered returns the names of the metrics that a server has registered, with or without samples, and the metrics
// that it serves after the traffic.
func registered(t *testing.T, stock bool) (names []string, served map[string]*dto.MetricFamily) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "registered")
	p := newPlane(t, registeringArgs(t)...)
	p.args = slices.DeleteFunc(p.args, func(arg string) bool { return strings.HasPrefix(arg, "--authorization-mode=") })
	p.stock = *stockRegisters
	if !stock {
		p.larder = filepath.Join(t.TempDir(), "larder.test")
		if out, err := exec.Command("go", "test", "-c", "-vet=off", "-ldflags=-w", "-o", p.larder, program).CombinedOutput(); err != nil {
			t.Fatalf("build: %v\n%s", err, out)
		}
	}
	t.Setenv("METRICS_FILE", file)
	m := p.member(stock, "", proctest.Port(t)).start()
	m.setUp(t, metricsWebhook(t))
	m.round(t)
	served = m.scrape(t)
	if err := m.Terminate(t); err != nil {
		t.Fatal(err)
	}
	raw, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return strings.Fields(string(raw)), served
}

// TestRegisteredMetricsMatchKubeAPIServer checks that Larder registers or serves each metric that kube-apiserver
// registers, except those in notRegistered. Metrics with the digest of a server's ID must have this server's.
func TestRegisteredMetricsMatchKubeAPIServer(t *testing.T) {
	names, served := registered(t, false)
	defer func(usual string) { *stockBinary = usual }(*stockBinary)
	*stockBinary = *stockRegisters
	stock := stocks(t, registeredFile, func() []string {
		names, _ := registered(t, true)
		return names
	})
	for _, name := range stock {
		has := slices.Contains(names, name) || served[name] != nil || elsewhere[name] != ""
		switch reason := notRegistered[name]; {
		case !has && reason == "":
			t.Errorf("%s is missing", name)
		case has && reason != "":
			t.Errorf("%s is registered: remove it from notRegistered", name)
		}
	}
	for name := range elsewhere {
		if !slices.Contains(stock, name) || served[name] != nil {
			t.Errorf("%s is registered or served: remove it from elsewhere", name)
		}
	}
	for name := range notRegistered {
		if !slices.Contains(stock, name) {
			t.Errorf("kube-apiserver has no %s: remove it from the list", name)
		}
	}
	host, err := os.Hostname()
	if err != nil {
		t.Fatal(err)
	}
	want, samples := fmt.Sprintf("sha256:%x", sha256.Sum256([]byte(serverIDOf(host)))), 0
	for _, name := range slices.Sorted(maps.Keys(served)) {
		for _, sample := range served[name].GetMetric() {
			for _, l := range sample.GetLabel() {
				if l.GetName() != "apiserver_id_hash" {
					continue
				}
				if samples++; l.GetValue() != want {
					t.Errorf("%s{%s=%q}, want %q", name, l.GetName(), l.GetValue(), want)
				}
			}
		}
	}
	if samples < 4 {
		t.Errorf("invalid: %d samples have the digest of a server's ID", samples)
	}
}
