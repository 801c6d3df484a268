package e2e_test

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	admissionv1 "k8s.io/api/admission/v1"
	registrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	apimachineryversion "k8s.io/apimachinery/pkg/version"
	"k8s.io/client-go/kubernetes"
	"k8s.io/utils/ptr"

	"github.com/larder-io/larder/internal/e2e/e2etest"
	"github.com/larder-io/larder/internal/proctest"
	"github.com/larder-io/larder/internal/proctest/testcert"
	"github.com/larder-io/larder/kv"
)

// ask sends a request as the administrator, with header fields "Name: value".
func (p *process) ask(method, path, body string, fields ...string) (*http.Response, string) {
	p.t.Helper()
	req, err := http.NewRequestWithContext(p.t.Context(), method, p.url()+path, strings.NewReader(body))
	if err != nil {
		p.t.Fatal(err)
	}
	for _, field := range fields {
		name, value, _ := strings.Cut(field, ": ")
		req.Header.Set(name, value)
	}
	resp, err := e2etest.HTTPClient(p.t, p.config()).Do(req)
	if err != nil {
		p.t.Fatal(err)
	}
	defer resp.Body.Close()
	all, err := io.ReadAll(resp.Body)
	if err != nil {
		p.t.Fatal(err)
	}
	return resp, string(all)
}

func (p *process) want(code int, path string) string {
	p.t.Helper()
	resp, body := p.ask(http.MethodGet, path, "")
	if resp.StatusCode != code {
		p.t.Errorf("%s: %d, want %d: %.200s", path, resp.StatusCode, code, body)
	}
	return body
}

// valueAt returns the value of a key in an etcd, nil if there is none.
func valueAt(t *testing.T, servers, key string) []byte {
	t.Helper()
	prefix := "/" + strings.Split(key, "/")[1]
	store, err := kv.NewExternal(kv.ExternalConfig{StoreConfig: kv.StoreConfig{Prefix: prefix}, Endpoints: []string{servers}})
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- store.Run(ctx) }()
	defer func() { stop(); <-ended }()
	item, found, _, err := store.Get(t.Context(), key)
	if err != nil {
		t.Fatal(err)
	}
	if !found {
		return nil
	}
	return item.Value
}

func (p *process) etcd() string { return "unix://" + filepath.Join(p.dir, "etcd", "sock", "etcd") }

// TestServingFlagsTakeEffect checks flags about browsers, TLS clients and listeners.
func TestServingFlagsTakeEffect(t *testing.T) {
	cert := testcert.New(t, "someone else").Sign(t, "named", nil, func(c *x509.Certificate) { c.DNSNames = []string{"named.example"} })
	certFile, keyFile := testcert.Write(t, t.TempDir(), "named", cert)
	p := serve(t, "--unsafe-no-fsync", "--cors-allowed-origins=^https://example[.]com$",
		"--strict-transport-security-directives=max-age=31536000,includeSubDomains", "--profiling=false",
		"--tls-min-version=VersionTLS13", "--tls-sni-cert-key="+certFile+","+keyFile, "--permit-port-sharing")
	for origin, allowed := range map[string]string{"https://example.com": "https://example.com", "https://evil.com": "", "": ""} {
		resp, _ := p.ask(http.MethodGet, "/api/v1/namespaces", "", "Origin: "+origin)
		if got := resp.Header.Get("Access-Control-Allow-Origin"); resp.StatusCode != 200 || got != allowed {
			t.Errorf("origin %q: %d, allowed %q", origin, resp.StatusCode, got)
		}
		if got := resp.Header.Get("Strict-Transport-Security"); got != "max-age=31536000; includeSubDomains" {
			t.Errorf("Strict-Transport-Security: %q", got)
		}
	}
	// Browsers send preflight requests without credentials.
	resp, body := p.ask(http.MethodOptions, "/api/v1/namespaces", "", "Origin: https://example.com")
	if resp.StatusCode != http.StatusNoContent || body != "" || resp.Header.Get("Access-Control-Allow-Methods") != "POST, GET, OPTIONS, PUT, DELETE, PATCH" {
		t.Errorf("preflight: %d %v %q", resp.StatusCode, resp.Header, body)
	}
	address := "127.0.0.1:" + strconv.Itoa(p.port)
	if c, err := tls.Dial("tcp", address, &tls.Config{InsecureSkipVerify: true, MaxVersion: tls.VersionTLS12}); err == nil {
		c.Close()
		t.Error("the server accepts TLS 1.2")
	}
	for name, want := range map[string]bool{"named.example": true, "localhost": false} {
		c, err := tls.Dial("tcp", address, &tls.Config{InsecureSkipVerify: true, ServerName: name})
		if err != nil {
			t.Fatal(err)
		}
		if got := c.ConnectionState().PeerCertificates[0].VerifyHostname("named.example") == nil; got != want {
			t.Errorf("%s gets the certificate of named.example: %v", name, got)
		}
		c.Close()
	}
	second := newProcess(t, "--unsafe-no-fsync", "--permit-port-sharing")
	second.port = p.port
	second.start()
	second.awaitReady()
}

// TestProfilingFlagTakesEffect checks that --profiling=false disables profiles, changes of the log level, and the
// deletion of metrics.
func TestProfilingFlagTakesEffect(t *testing.T) {
	t.Parallel()
	for _, on := range []bool{true, false} {
		p := serve(t, "--unsafe-no-fsync", fmt.Sprintf("--profiling=%v", on))
		code := map[bool]int{true: http.StatusOK, false: http.StatusNotFound}[on]
		p.want(code, "/debug/pprof/")
		for method, path := range map[string]string{http.MethodGet: "/debug/pprof/heap", http.MethodPut: "/debug/flags/v"} {
			if resp, text := p.ask(method, path, "2"); resp.StatusCode != code {
				t.Errorf("profiling %v: %s %s: %d %s", on, method, path, resp.StatusCode, text)
			}
		}
		p.want(http.StatusOK, "/api/v1/podtemplates?resourceVersion=0")
		for _, path := range []string{"/metrics", "/metrics/slis"} {
			resp, text := p.ask(http.MethodDelete, path, "")
			if reset := text == "metrics reset\n"; resp.StatusCode != http.StatusOK || reset != on {
				t.Errorf("profiling %v: DELETE %s: %d %.200s", on, path, resp.StatusCode, text)
			}
		}
		metrics := p.want(http.StatusOK, "/metrics")
		for _, name := range []string{"apiserver_cache_list_total", "apiserver_watch_cache_read_wait_seconds_count", `etcd_requests_total`} {
			if left := regexp.MustCompile("(?m)^" + name + `\{.*resource="podtemplates"`).MatchString(metrics); left == on {
				t.Errorf("profiling %v: metric %s of podtemplates remains: %v", on, name, left)
			}
		}
	}
}

// TestCiphersAndCurves checks that flags about ciphers and curves restrict the handshake.
func TestCiphersAndCurves(t *testing.T) {
	p := serve(t, "--unsafe-no-fsync", "--tls-cipher-suites=TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384,TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384", "--tls-curve-preferences=24",
		"--disable-http2-serving") // because HTTP/2 requires another cipher
	address := "127.0.0.1:" + strconv.Itoa(p.port)
	for _, test := range []struct {
		config *tls.Config
		ok     bool
	}{
		{&tls.Config{}, true},
		{&tls.Config{CurvePreferences: []tls.CurveID{tls.X25519}}, false},
		{&tls.Config{CurvePreferences: []tls.CurveID{tls.CurveP384}}, true},
		{&tls.Config{MaxVersion: tls.VersionTLS12, CipherSuites: []uint16{tls.TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256, tls.TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256}}, false},
		{&tls.Config{MaxVersion: tls.VersionTLS12, CipherSuites: []uint16{tls.TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384, tls.TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384}}, true},
	} {
		test.config.InsecureSkipVerify = true
		c, err := tls.Dial("tcp", address, test.config)
		if (err == nil) != test.ok {
			t.Errorf("curves %v, ciphers %v: %v", test.config.CurvePreferences, test.config.CipherSuites, err)
		}
		if err == nil {
			c.Close()
		}
	}
}

// TestStorageAndAPIFlagsTakeEffect checks --runtime-config and other flags about served APIs and storage.
func TestStorageAndAPIFlagsTakeEffect(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "debug")
	p := serve(t, "--unsafe-no-fsync", "--runtime-config=batch/v1=false,internal.apiserver.k8s.io/v1alpha1=true,apps/v1/daemonsets=false",
		"--feature-gates=StorageVersionAPI=true,APIServerIdentity=true", "--storage-media-type=application/json", "--version=v1.36.3-custom",
		"--kubernetes-service-node-port=30443", "--watch-cache=false", "--debug-socket-path="+socket, "--profiling=false", "--contention-profiling", "--enable-logs-handler",
		"--enable-garbage-collector=false", "--delete-collection-workers=4")
	p.want(404, "/apis/batch/v1")
	p.want(404, "/apis/batch/v1/jobs")
	if groups := p.want(200, "/apis"); strings.Contains(groups, `"batch"`) {
		t.Error("discovery has batch")
	}
	p.want(404, "/apis/apps/v1/daemonsets")
	p.want(200, "/apis/apps/v1/deployments")
	p.want(200, "/apis/internal.apiserver.k8s.io/v1alpha1/storageversions")
	if metrics := p.want(200, "/metrics"); !strings.Contains(metrics, `kubernetes_feature_enabled{name="StorageVersionAPI",stage="ALPHA"} 1`) {
		t.Error("the metrics report the feature gate as off")
	}
	p.want(404, "/logs/no-such-file")

	client := p.client()
	put(t, client, "default", "in-json")
	if value := valueAt(t, p.etcd(), "/registry/configmaps/default/in-json"); !json.Valid(value) {
		t.Errorf("a ConfigMap is stored as %.40q", value)
	}
	// A server without garbage collection adds no finalizer for it.
	maps, foreground := client.CoreV1().ConfigMaps("default"), metav1.DeletePropagationForeground
	if err := maps.Delete(t.Context(), "in-json", metav1.DeleteOptions{PropagationPolicy: &foreground}); err != nil {
		t.Error(err)
	}
	if _, err := maps.Get(t.Context(), "in-json", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("after a foreground deletion: %v", err)
	}
	deleteTogether(t, client, 4)
	service, err := client.CoreV1().Services("default").Get(t.Context(), "kubernetes", metav1.GetOptions{})
	if err != nil || service.Spec.Type != corev1.ServiceTypeNodePort || service.Spec.Ports[0].NodePort != 30443 {
		t.Errorf("the kubernetes service: %v, error %v", service.Spec, err)
	}
	var version apimachineryversion.Info
	if err := json.Unmarshal([]byte(p.want(200, "/version")), &version); err != nil || version.GitVersion != "v1.36.3-custom" {
		t.Errorf("version %v, error %v", version, err)
	}
	// Without a cache, a limit applies at revision 0.
	list, err := client.CoreV1().Namespaces().List(t.Context(), metav1.ListOptions{ResourceVersion: "0", Limit: 1})
	if err != nil || len(list.Items) != 1 || list.Continue == "" {
		t.Errorf("%d namespaces, error %v, want one", len(list.Items), err)
	}
	if info, err := os.Stat(socket); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the debug socket has mode %v: %v", info.Mode(), err)
	}
	local := &http.Client{Transport: &http.Transport{DisableKeepAlives: true, DialContext: func(context.Context, string, string) (net.Conn, error) { return net.Dial("unix", socket) }}}
	for path, want := range map[string]string{"cmdline": "--debug-socket-path", "block?debug=1": " @ 0x"} {
		resp, err := local.Get("http://x/debug/pprof/" + path)
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(resp.Body)
		resp.Body.Close()
		if err != nil || resp.StatusCode != 200 || !strings.Contains(string(body), want) {
			t.Errorf("debug socket: %s: status %d %s, error %v", path, resp.StatusCode, body, err)
		}
	}
}

// deleteTogether deletes a collection of workers ConfigMaps. A webhook responds only after it was called for all of
// them.
func deleteTogether(t *testing.T, client kubernetes.Interface, workers int32) {
	t.Helper()
	var calls, deleted atomic.Int32
	all := make(chan struct{})
	hook := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		var review admissionv1.AdmissionReview
		body, err := io.ReadAll(req.Body) // read completely, so that the context ends with the connection
		if err = errors.Join(err, json.Unmarshal(body, &review)); err != nil {
			t.Error(err)
			return
		}
		if *review.Request.DryRun {
			calls.Add(1)
		} else {
			if deleted.Add(1) == workers {
				close(all)
			}
			select {
			case <-all:
			case <-req.Context().Done():
			}
		}
		fmt.Fprintf(w, `{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview","response":{"uid":%q,"allowed":true}}`, review.Request.UID)
	}))
	defer hook.Close()
	ca, none := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: hook.Certificate().Raw}), registrationv1.SideEffectClassNone
	if _, err := client.AdmissionregistrationV1().ValidatingWebhookConfigurations().Create(t.Context(), &registrationv1.ValidatingWebhookConfiguration{
		ObjectMeta: metav1.ObjectMeta{Name: "together"}, Webhooks: []registrationv1.ValidatingWebhook{{
			Name: "together.example.com", ClientConfig: registrationv1.WebhookClientConfig{URL: &hook.URL, CABundle: ca}, SideEffects: &none,
			AdmissionReviewVersions: []string{"v1"}, TimeoutSeconds: ptr.To[int32](30), Rules: []registrationv1.RuleWithOperations{{
				Operations: []registrationv1.OperationType{registrationv1.Delete},
				Rule:       registrationv1.Rule{APIGroups: []string{""}, APIVersions: []string{"v1"}, Resources: []string{"configmaps"}},
			}},
		}},
	}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	const namespace = "kube-public"
	maps := client.CoreV1().ConfigMaps(namespace)
	for i := range workers {
		put(t, client, namespace, fmt.Sprint("m", i))
	}
	proctest.Eventually(t, "the webhook is called", func() error {
		if err := maps.Delete(t.Context(), "m0", metav1.DeleteOptions{DryRun: []string{metav1.DryRunAll}}); err != nil || calls.Load() == 0 {
			return fmt.Errorf("got no call, error %v", err)
		}
		return nil
	})
	if err := maps.DeleteCollection(t.Context(), metav1.DeleteOptions{}, metav1.ListOptions{}); err != nil || deleted.Load() != workers {
		t.Errorf("%d of %d deletions are concurrent: %v", deleted.Load(), workers, err)
	}
}

// TestEmulatedVersion checks that a server that emulates an older Kubernetes does not serve later APIs, unless
// --runtime-config names them.
func TestEmulatedVersion(t *testing.T) {
	p := serve(t, "--unsafe-no-fsync", "--emulated-version=1.35", "--runtime-config-emulation-forward-compatible",
		"--runtime-config=admissionregistration.k8s.io/v1/mutatingadmissionpolicybindings=true")
	p.want(200, "/apis/admissionregistration.k8s.io/v1/mutatingadmissionpolicybindings") // added in 1.36
	var version apimachineryversion.Info
	if err := json.Unmarshal([]byte(p.want(200, "/version")), &version); err != nil || version.EmulationMinor != "35" || version.MinCompatibilityMinor != "34" || version.Minor != "36" {
		t.Errorf("version %+v, error %v", version, err)
	}
	p.want(404, "/apis/admissionregistration.k8s.io/v1/mutatingadmissionpolicies") // added in 1.36
	var described struct{ Info struct{ Version string } }
	if err := json.Unmarshal([]byte(p.want(200, "/openapi/v2")), &described); err != nil || described.Info.Version != "1.35" {
		t.Errorf("OpenAPI describes version %+v, error %v", described, err)
	}
	p.want(200, "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies")
	put(t, p.client(), "default", "works")
}

// TestServersOverrides checks that Events are stored in an etcd of their own and served from there.
func TestServersOverrides(t *testing.T) {
	apart := serve(t, "--unsafe-no-fsync")
	p := serve(t, "--unsafe-no-fsync", "--etcd-servers-overrides=/events#"+apart.etcd())
	client := p.client()
	watched, err := client.CoreV1().Events("default").Watch(t.Context(), metav1.ListOptions{FieldSelector: "metadata.name=mine"})
	if err != nil {
		t.Fatal(err)
	}
	defer watched.Stop()
	event := &corev1.Event{ObjectMeta: metav1.ObjectMeta{Name: "mine"}, InvolvedObject: corev1.ObjectReference{Namespace: "default"}}
	if _, err := client.CoreV1().Events("default").Create(t.Context(), event, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if e := <-watched.ResultChan(); e.Type != "ADDED" {
		t.Errorf("watch event: %v", e)
	}
	const key = "/registry/events/default/mine"
	if len(valueAt(t, apart.etcd(), key)) == 0 || valueAt(t, p.etcd(), key) != nil {
		t.Error("the event is not in its etcd")
	}
	if _, err := client.EventsV1().Events("default").Get(t.Context(), "mine", metav1.GetOptions{}); err != nil {
		t.Error(err)
	}
	put(t, client, "default", "here")
	if valueAt(t, p.etcd(), "/registry/configmaps/default/here") == nil {
		t.Error("another resource is not in the first etcd")
	}
	for name, want := range map[string]int{"etcd-0": http.StatusOK, "etcd-1": http.StatusOK, "etcd-2": http.StatusNotFound} {
		p.want(want, "/api/v1/componentstatuses/"+name)
	}
	if healthy := p.want(200, "/healthz?verbose&exclude=etcd"); strings.Contains(healthy, "[+]etcd-override-0 ok") {
		t.Errorf("excluding etcd's check does not exclude that of the other etcd: %s", healthy)
	}
	if ready := p.want(200, "/readyz?verbose"); !strings.Contains(ready, "[+]etcd-override-0 ok") || !strings.Contains(ready, "[+]etcd-override-readiness-0 ok") {
		t.Errorf("/readyz: %s", ready)
	}
}

// TestLogFlagsTakeEffect checks that every log line is JSON if a flag says so, and that the log level can be changed.
func TestLogFlagsTakeEffect(t *testing.T) {
	p := newProcess(t, "--unsafe-no-fsync", "--logging-format=json")
	p.start()
	p.Await(t, "ready after")
	for line := range strings.Lines(strings.TrimSpace(p.Output())) {
		if !json.Valid([]byte(line)) {
			t.Errorf("a log line is not JSON: %s", line)
		}
	}
	quiet := serve(t, "--unsafe-no-fsync")
	before := len(quiet.Output())
	if resp, body := quiet.ask(http.MethodPut, "/debug/flags/v", "6"); resp.StatusCode != 200 || !strings.Contains(body, "successfully set klog.logging.verbosity to 6") {
		t.Fatalf("%d %s", resp.StatusCode, body)
	}
	proctest.Eventually(t, "the server logs more", func() error {
		if output := quiet.Output()[before:]; !strings.Contains(output, "\nI") && !strings.HasPrefix(output, "I") {
			return errors.New("no line of a higher level")
		}
		return nil
	})
}

// TestUpstreamMistakes checks that mistakes in flags are reported with kube-apiserver's text.
func TestUpstreamMistakes(t *testing.T) {
	for args, want := range map[string]string{
		"--goaway-chance=0.5":                                                        "--goaway-chance can not be less than 0 or greater than 0.02",
		"--runtime-config=api/all=false":                                             "invalid runtime-config with only api/all=false",
		"--runtime-config=apiregistration.k8s.io/v1=false":                           "API group/version apiregistration.k8s.io/v1 must be enabled",
		"--runtime-config=nothing.example/v1=true":                                   "unknown api groups nothing.example",
		"--feature-gates=Nothing=true":                                               "unrecognized feature gate: Nothing",
		"--tls-cipher-suites=NOTHING":                                                "Cipher suite NOTHING not supported or doesn't exist",
		"--tls-min-version=SSL3":                                                     "unknown tls version",
		"--strict-transport-security-directives=always":                              "--strict-transport-security-directives invalid",
		"--cors-allowed-origins=example.com":                                         "does not pin to start/end of host",
		"--storage-media-type=text/plain":                                            `--storage-media-type "text/plain" invalid`,
		"--show-hidden-metrics-for-version=1.20":                                     `metrics.showHiddenMetricsForVersion: Invalid value: "1.20": must be omitted or have the value '1.35'`,
		"--storage-backend=etcd2":                                                    "--storage-backend invalid, allowed values: etcd3",
		"--etcd-servers-overrides=events":                                            "--etcd-servers-overrides invalid",
		"--emulated-version=1.10":                                                    "emulation version 1.10 is not between",
		"--logging-format=xml":                                                       "Unsupported log format",
		"--peer-ca-file=x --feature-gates=UnknownVersionInteroperabilityProxy=false": "requires UnknownVersionInteroperabilityProxy feature to be turned on",
		"--kubernetes-service-node-port=80":                                          "doesn't contain 80",
		"--watch-cache-sizes=pods":                                                   "invalid value of watch cache size",
		"--runtime-config=flowcontrol.apiserver.k8s.io/v1=false":                     "conflicts with --enable-priority-and-fairness=true",
	} {
		if out := larder(t, append([]string{"serve", "--quiet"}, strings.Fields(args)...)...); !strings.Contains(out, want) || strings.Count(out, "\n") != 2 {
			t.Errorf("%s: want one line with %q, got\n%s", args, want, out)
		}
	}
}

// TestNames checks that the binary supports --version under each name, and --help without --insecure-port, for which
// envtest looks.
func TestNames(t *testing.T) {
	dir := t.TempDir()
	for name, want := range map[string]string{"kube-apiserver": "Kubernetes v1.36.3\n", "larder": "kubernetes v1.36.3\n"} {
		file := filepath.Join(dir, name)
		if err := exec.Command("ln", "-s", binaries.larder, file).Run(); err != nil {
			t.Fatal(err)
		}
		if out, err := exec.Command(file, "--version").Output(); err != nil || !strings.Contains(string(out), want) {
			t.Errorf("%s --version: %v %s", name, err, out)
		}
		if out, err := exec.Command(file, "--help").Output(); err != nil || bytes.Contains(out, []byte("--insecure-port")) {
			t.Errorf("%s --help: %v", name, err)
		}
	}
}

// serveEtcd runs the binary as a single etcd and returns its URL.
func serveEtcd(t *testing.T) string {
	t.Helper()
	return serveEtcdIn(t, filepath.Join(t.TempDir(), "data"))
}

// serveEtcdIn is serveEtcd with a data directory that may contain data.
func serveEtcdIn(t *testing.T, data string) string {
	t.Helper()
	url, _ := startEtcd(t, data)
	return url
}

// startEtcd is serveEtcdIn, and also returns the process.
func startEtcd(t *testing.T, data string) (string, *proctest.Process) {
	t.Helper()
	dir := t.TempDir()
	name := filepath.Join(dir, "etcd")
	if err := os.Symlink(binaries.larder, name); err != nil {
		t.Fatal(err)
	}
	ports := proctest.Ports(t, 2)
	url, peers := fmt.Sprintf("http://127.0.0.1:%d", ports[0]), fmt.Sprintf("http://127.0.0.1:%d", ports[1])
	store := proctest.New(t, "etcd", func() *exec.Cmd {
		return exec.Command(name, "--data-dir", data, "--listen-client-urls", url,
			"--advertise-client-urls", url, "--listen-peer-urls", peers, "--unsafe-no-fsync=true")
	})
	began := time.Now()
	if err := store.Start(); err != nil {
		t.Fatal(err)
	}
	store.Eventually(t, "etcd is healthy", func() error {
		resp, err := http.Get(url + "/health")
		if err != nil {
			return err
		}
		defer resp.Body.Close()
		if resp.StatusCode != 200 {
			return errors.New(resp.Status)
		}
		return nil
	})
	t.Logf("etcd is healthy after %v", time.Since(began))
	return url, store
}

// TestBothNames checks that the binary is a complete control plane when it runs as etcd and as kube-apiserver.
func TestBothNames(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{"etcd", "kube-apiserver"} {
		if err := os.Symlink(binaries.larder, filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	if out, err := exec.Command(filepath.Join(dir, "etcd"), "--version").Output(); err != nil || !strings.HasPrefix(string(out), "etcd Version: 3.") {
		t.Errorf("etcd --version: %v %s", err, out)
	}
	url := serveEtcd(t)
	keys := serve(t, "--unsafe-no-fsync")
	p := &process{t: t, dir: keys.dir, port: proctest.Port(t)}
	p.Process = proctest.New(t, "kube-apiserver", func() *exec.Cmd {
		return exec.Command(filepath.Join(dir, "kube-apiserver"), "--etcd-servers", url, "--secure-port", strconv.Itoa(p.port), "--bind-address=127.0.0.1",
			"--cert-dir", filepath.Join(dir, "certs"), "--service-account-issuer=https://kubernetes.default.svc", "--token-auth-file", tokens(t),
			"--service-account-signing-key-file", filepath.Join(keys.dir, "pki", "sa.key"), "--runtime-config=", "--service-cluster-ip-range=", "")
	})
	p.start()
	p.awaitReady()
	if code, err := p.status("/api/v1/namespaces/default", "alice-token"); code != 200 || err != nil {
		t.Errorf("%d %v", code, err)
	}
	if len(valueAt(t, url, "/registry/namespaces/default")) == 0 {
		t.Error("etcd has no objects")
	}
}
