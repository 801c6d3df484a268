package e2e_test

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	admissionv1 "k8s.io/api/admission/v1"
	registrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/larder-io/larder/internal/proctest"
	"github.com/larder-io/larder/internal/proctest/testcert"
)

// tunnel is an egress proxy like konnectivity's server in mode http-connect: it listens on a unix socket, accepts
// CONNECT, and connects to the address that it has for the requested name.
type tunnel struct {
	names map[string]string // addresses to dial, by requested host:port

	mu       sync.Mutex
	connects map[string]int
}

// anyName is the key for all names without an entry of their own, such as cluster IPs.
const anyName = ""

func newTunnel(t *testing.T, names map[string]string) (socket string, proxy *tunnel) {
	t.Helper()
	proxy = &tunnel{names: names, connects: make(map[string]int)}
	socket = filepath.Join(t.TempDir(), "konnectivity")
	listener, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	server := &http.Server{Handler: proxy}
	ended := make(chan struct{})
	go func() { defer close(ended); _ = server.Serve(listener) }()
	t.Cleanup(func() { server.Close(); <-ended })
	return socket, proxy
}

// ServeHTTP implements http.Handler.
func (t *tunnel) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	t.mu.Lock()
	t.connects[req.Host]++
	t.mu.Unlock()
	name := t.names[req.RequestURI]
	if name == "" {
		name = t.names[anyName]
	}
	there, err := net.Dial("tcp", name)
	if req.Method != http.MethodConnect || err != nil {
		http.Error(w, fmt.Sprint(req.RequestURI, err), http.StatusBadGateway)
		return
	}
	here, buffered, err := w.(http.Hijacker).Hijack()
	if err != nil {
		there.Close()
		return
	}
	fmt.Fprint(here, "HTTP/1.1 200 OK\r\n\r\n")
	go func() { _, _ = io.Copy(there, buffered); there.Close() }()
	_, _ = io.Copy(here, there)
	here.Close()
}

// deny starts a webhook that denies everything.
func deny(t *testing.T, authority *testcert.Authority, name string) *httptest.Server {
	t.Helper()
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		var review admissionv1.AdmissionReview
		if err := json.NewDecoder(req.Body).Decode(&review); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		review.Response = &admissionv1.AdmissionResponse{UID: review.Request.UID, Result: &metav1.Status{Message: "from beyond the proxy"}}
		_ = json.NewEncoder(w).Encode(review)
	}))
	cert := authority.Sign(t, name, nil, func(c *x509.Certificate) {
		c.DNSNames, c.ExtKeyUsage = []string{name}, []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}
	})
	server.TLS = &tls.Config{Certificates: []tls.Certificate{cert}}
	server.StartTLS()
	t.Cleanup(server.Close)
	return server
}

// TestEgressSelector checks that connections to hosts that only the proxy can resolve use the proxy in
// --egress-selector-config-file: to etcd, to a webhook with a URL, and to a webhook with a service.
func TestEgressSelector(t *testing.T) {
	store := serveEtcd(t)
	authority := testcert.New(t, "webhooks")
	byURL, byService := deny(t, authority, "hook.invalid"), deny(t, authority, "hook.default.svc")
	at := func(raw string) string {
		u, err := url.Parse(raw)
		if err != nil {
			t.Fatal(err)
		}
		return u.Host
	}
	etcdProxy, etcdTunnel := newTunnel(t, map[string]string{"etcd.invalid:2379": at(store)})
	controlProxy, controlTunnel := newTunnel(t, map[string]string{"hook.invalid:443": at(byURL.URL)})
	clusterProxy, clusterTunnel := newTunnel(t, map[string]string{anyName: at(byService.URL)})
	config := "apiVersion: apiserver.k8s.io/v1beta1\nkind: EgressSelectorConfiguration\negressSelections:\n"
	for name, socket := range map[string]string{"etcd": etcdProxy, "controlplane": controlProxy, "cluster": clusterProxy} {
		config += fmt.Sprintf("- name: %s\n  connection: {proxyProtocol: HTTPConnect, transport: {uds: {udsName: %s}}}\n", name, socket)
	}
	file := filepath.Join(t.TempDir(), "egress.yaml")
	if err := os.WriteFile(file, []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	p := serve(t, "--etcd-servers=http://etcd.invalid:2379", "--egress-selector-config-file="+file)
	client := p.client()
	put(t, client, "default", "stored")
	if len(valueAt(t, store, "/registry/configmaps/default/stored")) == 0 {
		t.Error("etcd got no connection from the proxy")
	}

	link, path, fail, none := "https://hook.invalid/", "/", registrationv1.Fail, registrationv1.SideEffectClassNone
	hook := func(name, resource string, config registrationv1.WebhookClientConfig) registrationv1.ValidatingWebhook {
		config.CABundle = []byte(authority.PEM())
		return registrationv1.ValidatingWebhook{
			Name: name, ClientConfig: config, FailurePolicy: &fail, SideEffects: &none, AdmissionReviewVersions: []string{"v1"},
			Rules: []registrationv1.RuleWithOperations{{
				Operations: []registrationv1.OperationType{registrationv1.Create},
				Rule:       registrationv1.Rule{APIGroups: []string{""}, APIVersions: []string{"v1"}, Resources: []string{resource}},
			}},
		}
	}
	if _, err := client.CoreV1().Services("default").Create(t.Context(), &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: "hook"}, Spec: corev1.ServiceSpec{Ports: []corev1.ServicePort{{Port: 443}}},
	}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := client.AdmissionregistrationV1().ValidatingWebhookConfigurations().Create(t.Context(), &registrationv1.ValidatingWebhookConfiguration{
		ObjectMeta: metav1.ObjectMeta{Name: "deny"},
		Webhooks: []registrationv1.ValidatingWebhook{
			hook("url.example.com", "configmaps", registrationv1.WebhookClientConfig{URL: &link}),
			hook("service.example.com", "secrets", registrationv1.WebhookClientConfig{Service: &registrationv1.ServiceReference{Namespace: "default", Name: "hook", Path: &path}}),
		},
	}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	proctest.Eventually(t, "both webhooks deny", func() error {
		_, err := client.CoreV1().ConfigMaps("default").Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{GenerateName: "c"}}, metav1.CreateOptions{})
		_, err2 := client.CoreV1().Secrets("default").Create(t.Context(), &corev1.Secret{ObjectMeta: metav1.ObjectMeta{GenerateName: "s"}}, metav1.CreateOptions{})
		if err == nil || err2 == nil || !strings.Contains(err.Error(), "beyond the proxy") || !strings.Contains(err2.Error(), "beyond the proxy") {
			return fmt.Errorf("with a URL: error %v; with a service: error %v", err, err2)
		}
		return nil
	})
	for name, proxy := range map[string]*tunnel{"etcd.invalid:2379": etcdTunnel, "hook.invalid:443": controlTunnel, "services": clusterTunnel} {
		proxy.mu.Lock()
		if len(proxy.connects) == 0 {
			t.Errorf("the proxy got no CONNECT request for %s", name)
		}
		proxy.mu.Unlock()
	}
}
