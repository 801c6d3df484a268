package e2e_test

import (
	"bufio"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/util/cert"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"
	"k8s.io/kube-aggregator/pkg/apis/apiregistration/v1/helper"
	aggregator "k8s.io/kube-aggregator/pkg/client/clientset_generated/clientset"

	"github.com/larder-io/larder/internal/proctest"
	"github.com/larder-io/larder/internal/proctest/testcert"
)

// gvThings is the group version of the aggregated server.
var gvThings = schema.GroupVersion{Group: "things.example.com", Version: "v1"}

const things = "/apis/things.example.com/v1"

// aggregated is an aggregated API server over TLS. It authenticates Larder by its client certificate and takes the user
// from header fields.
type aggregated struct {
	*httptest.Server
	authority []byte // the CA of its certificate

	mu       sync.Mutex
	down     bool            // it responds with 503
	callers  map[string]bool // common names of clients' certificates
	received chan *http.Request
}

// newAggregated starts an aggregated server. Its certificate is for the Service name in namespace default.
func newAggregated(t *testing.T, name string) *aggregated {
	t.Helper()
	certificate, key, err := cert.GenerateSelfSignedCertKey(name+".default.svc", nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	pair, err := tls.X509KeyPair(certificate, key)
	if err != nil {
		t.Fatal(err)
	}
	a := &aggregated{authority: certificate, callers: make(map[string]bool), received: make(chan *http.Request, 1000)}
	a.Server = httptest.NewUnstartedServer(a)
	a.Config.ErrorLog = log.New(io.Discard, "", 0)
	a.TLS = &tls.Config{Certificates: []tls.Certificate{pair}, ClientAuth: tls.RequestClientCert}
	a.StartTLS()
	t.Cleanup(a.Close)
	return a
}

func (a *aggregated) port() int32 { return int32(a.Listener.Addr().(*net.TCPAddr).Port) }

func (a *aggregated) setDown(down bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.down = down
}

// ServeHTTP implements http.Handler.
func (a *aggregated) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	a.mu.Lock()
	down := a.down
	for _, c := range req.TLS.PeerCertificates {
		a.callers[c.Subject.CommonName] = true
	}
	a.mu.Unlock()
	if down {
		http.Error(w, "down", http.StatusServiceUnavailable)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	switch path := strings.TrimPrefix(req.URL.Path, things); {
	case path == "":
		fmt.Fprint(w, `{"kind":"APIResourceList","apiVersion":"v1","groupVersion":"things.example.com/v1","resources":[`+
			`{"name":"things","singularName":"thing","namespaced":true,"kind":"Thing","verbs":["get","list","watch","create"],"shortNames":["tg"]}]}`)
	case req.URL.Path == "/openapi/v2":
		fmt.Fprint(w, `{"swagger":"2.0","info":{"title":"things","version":"1"},"paths":{"/apis/things.example.com/v1/things":{"get":{"operationId":"listThings","responses":{"200":{"description":"OK"}}}},"/elsewhere":{}},`+
			`"definitions":{"com.example.things.v1.Thing":{"type":"object","description":"A thing.","properties":{"size":{"type":"integer","description":"How large it is."}},"x-kubernetes-group-version-kind":[{"group":"things.example.com","version":"v1","kind":"Thing"}]}}}`)
	case strings.HasSuffix(path, "/things") && req.URL.Query().Get("watch") != "":
		a.serveWatch(w, req)
	case strings.HasSuffix(path, "/things") && req.Method == http.MethodGet:
		fmt.Fprint(w, `{"kind":"ThingList","apiVersion":"things.example.com/v1","metadata":{"resourceVersion":"5"},"items":[{"metadata":{"name":"a","namespace":"default"},"size":1}]}`)
	case strings.HasSuffix(path, "/things/a"):
		fmt.Fprint(w, `{"kind":"Thing","apiVersion":"things.example.com/v1","metadata":{"name":"a","namespace":"default"},"size":1}`)
	case strings.HasSuffix(path, "/upload"):
		n, err := io.Copy(io.Discard, req.Body)
		fmt.Fprintf(w, `{"bytes":%d,"error":"%v"}`, n, err)
	case strings.HasSuffix(path, "/who"):
		a.received <- req
		fmt.Fprint(w, `{}`)
	case strings.HasSuffix(path, "/console"):
		a.serveConsole(w, req)
	case strings.HasSuffix(path, "/moved"):
		http.Redirect(w, req, "https://example.com/", http.StatusFound)
	case strings.HasSuffix(path, "/slow"):
		_, _ = io.Copy(io.Discard, req.Body) // net/http then notices when the client disconnects
		<-req.Context().Done()
	default:
		http.NotFound(w, req)
	}
}

// serveWatch sends one event immediately and another when the test allows it.
func (a *aggregated) serveWatch(w http.ResponseWriter, req *http.Request) {
	fmt.Fprint(w, `{"type":"ADDED","object":{"kind":"Thing","apiVersion":"things.example.com/v1","metadata":{"name":"a","namespace":"default","resourceVersion":"5"}}}`+"\n")
	_ = http.NewResponseController(w).Flush()
	a.received <- req
	<-req.Context().Done()
}

// serveConsole serves a custom protocol: it repeats every line.
func (a *aggregated) serveConsole(w http.ResponseWriter, req *http.Request) {
	conn, in, err := http.NewResponseController(w).Hijack()
	if err != nil {
		return
	}
	defer conn.Close()
	fmt.Fprintf(in, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: twice\r\nX-Caller: %s\r\n\r\n", req.Header.Get("X-Remote-User"))
	for in.Flush() == nil {
		line, err := in.ReadString('\n')
		if err != nil {
			return
		}
		fmt.Fprint(in, line, line)
	}
}

// register makes p forward requests for things to a.
func (p *process) register(a *aggregated, service string) {
	p.t.Helper()
	ctx := context.Background()
	_, err := p.client().CoreV1().Services("default").Create(ctx, &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: service},
		Spec:       corev1.ServiceSpec{Type: corev1.ServiceTypeExternalName, ExternalName: "localhost"},
	}, metav1.CreateOptions{})
	if err != nil {
		p.t.Fatal(err)
	}
	port := a.port()
	_, err = p.registrations().ApiregistrationV1().APIServices().Create(ctx, &apiregistrationv1.APIService{
		ObjectMeta: metav1.ObjectMeta{Name: gvThings.Version + "." + gvThings.Group},
		Spec: apiregistrationv1.APIServiceSpec{
			Group: gvThings.Group, Version: gvThings.Version, GroupPriorityMinimum: 2000, VersionPriority: 10,
			Service: &apiregistrationv1.ServiceReference{Namespace: "default", Name: service, Port: &port}, CABundle: a.authority,
		},
	}, metav1.CreateOptions{})
	if err != nil {
		p.t.Fatal(err)
	}
	p.awaitAvailable(apiregistrationv1.ConditionTrue, "Passed")
	proctest.Eventually(p.t, "requests are forwarded", func() error {
		if resp, body := p.fetch("GET", things, nil, nil); resp.StatusCode != http.StatusOK {
			return fmt.Errorf("%d %s", resp.StatusCode, body)
		}
		return nil
	})
}

func (p *process) registrations() aggregator.Interface {
	p.t.Helper()
	client, err := aggregator.NewForConfig(p.config())
	if err != nil {
		p.t.Fatal(err)
	}
	return client
}

// awaitAvailable waits for the condition of the APIService of things.
func (p *process) awaitAvailable(status apiregistrationv1.ConditionStatus, reason string) {
	p.t.Helper()
	client := p.registrations().ApiregistrationV1().APIServices()
	proctest.Eventually(p.t, fmt.Sprintf("things are available: %s", status), func() error {
		s, err := client.Get(context.Background(), "v1.things.example.com", metav1.GetOptions{})
		if err != nil {
			return err
		}
		if c := helper.GetAPIServiceConditionByType(s, apiregistrationv1.Available); c == nil || c.Status != status || c.Reason != reason {
			return fmt.Errorf("condition %+v", c)
		}
		return nil
	})
}

// fetch sends a request with the administrator's certificate.
func (p *process) fetch(method, path string, body io.Reader, header http.Header) (*http.Response, string) {
	p.t.Helper()
	transport, err := rest.TransportFor(p.config())
	if err != nil {
		p.t.Fatal(err)
	}
	req, err := http.NewRequestWithContext(p.t.Context(), method, p.url()+path, body)
	if err != nil {
		p.t.Fatal(err)
	}
	for name, values := range header {
		req.Header[name] = values
	}
	resp, err := transport.RoundTrip(req)
	if err != nil {
		p.t.Fatal(err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		p.t.Fatal(err)
	}
	return resp, string(text)
}

// TestAggregatedRequestsAreProxied checks that an aggregated server gets requests with the caller's name and the front
// proxy's certificate: lists, watches, uploads and custom protocols, from client-go and kubectl; while it is down, when
// it is up again, and after a restart of Larder.
func TestAggregatedRequestsAreProxied(t *testing.T) {
	a := newAggregated(t, "things")
	certFile, keyFile := testcert.Write(t, t.TempDir(), "proxy", testcert.New(t, "proxies").Sign(t, "front-proxy", nil, nil))
	p := serve(t, "--authorization-mode=AlwaysAllow", "--unsafe-no-fsync", "--proxy-client-cert-file", certFile, "--proxy-client-key-file", keyFile,
		"--aggregator-reject-forwarding-redirect", "--strict-transport-security-directives=max-age=1")
	if resp, body := p.fetch("GET", things+"/things", nil, nil); resp.StatusCode != http.StatusNotFound || body != "404 page not found\n" {
		t.Errorf("before the registration: %d %q", resp.StatusCode, body)
	}
	p.register(a, "things")
	proctest.Eventually(t, "the aggregated server has seen the proxy's certificate", func() error {
		a.mu.Lock()
		defer a.mu.Unlock()
		if !a.callers["front-proxy"] {
			return fmt.Errorf("callers %v", a.callers)
		}
		return nil
	})
	if resp, body := p.fetch("GET", things+"/moved", nil, nil); resp.StatusCode != http.StatusBadGateway {
		t.Errorf("a redirect, which a flag makes Larder reject: %d %q", resp.StatusCode, body)
	}
	testAggregatedReads(t, p, a)
	testAggregatedStreams(t, p, a)
	testAggregatedIdentity(t, p, a)

	a.setDown(true)
	p.awaitAvailable(apiregistrationv1.ConditionFalse, "FailedDiscoveryCheck")
	proctest.Eventually(t, "requests are rejected", func() error {
		if resp, body := p.fetch("GET", things+"/things", nil, nil); resp.StatusCode != http.StatusServiceUnavailable || body != "service unavailable\n" {
			return fmt.Errorf("%d %q", resp.StatusCode, body)
		}
		return nil
	})
	proctest.Eventually(t, "the APIService is counted", func() error { // after its status is written
		_, metrics := p.fetch("GET", "/metrics", nil, nil)
		if !strings.Contains(metrics, `aggregator_unavailable_apiservice{name="v1.things.example.com"} 1`) ||
			!strings.Contains(metrics, `aggregator_unavailable_apiservice_total{name="v1.things.example.com",reason="FailedDiscoveryCheck"} `) {
			return errors.New("the metrics do not report the APIService as unavailable")
		}
		return nil
	})
	a.setDown(false)
	p.awaitAvailable(apiregistrationv1.ConditionTrue, "Passed")

	if err := p.Terminate(t); err != nil {
		t.Fatal(err)
	}
	p.start()
	p.awaitReady()
	proctest.Eventually(t, "things are served after a restart", func() error {
		if resp, body := p.fetch("GET", things+"/namespaces/default/things/a", nil, nil); resp.StatusCode != http.StatusOK {
			return fmt.Errorf("%d %q", resp.StatusCode, body)
		}
		return nil
	})
	if err := p.registrations().ApiregistrationV1().APIServices().Delete(t.Context(), "v1.things.example.com", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	proctest.Eventually(t, "things are no longer served", func() error {
		if resp, body := p.fetch("GET", things+"/things", nil, nil); resp.StatusCode != http.StatusNotFound {
			return fmt.Errorf("%d %q", resp.StatusCode, body)
		}
		return nil
	})
}

func testAggregatedReads(t *testing.T, p *process, a *aggregated) {
	t.Helper()
	client, err := dynamic.NewForConfig(p.config())
	if err != nil {
		t.Fatal(err)
	}
	all := client.Resource(gvThings.WithResource("things")).Namespace("default")
	list, err := all.List(t.Context(), metav1.ListOptions{})
	if err != nil || len(list.Items) != 1 || list.GetResourceVersion() != "5" {
		t.Errorf("list: %v, error %v", list, err)
	}
	w, err := all.Watch(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if event := <-w.ResultChan(); event.Type != watch.Added {
		t.Errorf("watch: first event %v", event)
	}
	ended := (<-a.received).Context()
	w.Stop()
	select { // the aggregated server notices that the client has disconnected
	case <-ended.Done():
	case <-time.After(proctest.Patience):
		t.Error("the watch continues without its client")
	}
	k := newKubectl(t, p.kubeconfig(), "default")
	proctest.Eventually(t, "kubectl gets things", func() error {
		if out := k.run("", "get", "tg"); !strings.HasPrefix(out, "NAME") || !strings.Contains(out, "\na ") {
			return fmt.Errorf("%s", out)
		}
		return nil
	})
	if out := k.must(t, "", "get", "apiservice", "v1.things.example.com", "--no-headers"); !strings.Contains(out, "default/things") || !strings.Contains(out, "True") {
		t.Errorf("kubectl get apiservice: %s", out)
	}
	if out := k.must(t, "", "api-versions"); !slices.Contains(strings.Fields(out), gvThings.String()) {
		t.Errorf("kubectl api-versions: %s", out)
	}
}

func testAggregatedStreams(t *testing.T, p *process, a *aggregated) {
	t.Helper()
	const size = 9 << 20 // above Larder's own limit
	resp, body := p.fetch("POST", things+"/upload", io.LimitReader(zeros{}, size), nil)
	if want := fmt.Sprintf(`{"bytes":%d,"error":"<nil>"}`, size); resp.StatusCode != http.StatusOK || body != want {
		t.Errorf("upload: %d %s, want %s", resp.StatusCode, body, want)
	}
	conn, in, timeout := openConsole(t, p)
	for _, line := range []string{"early\n", "late\n"} {
		if line != "early\n" { // the line comes after the deadline of the upgrade request
			for _, body := range []io.Reader{nil, io.LimitReader(zeros{}, 100<<10)} {
				if resp, text := p.fetch("POST", fmt.Sprintf("%s/slow?timeout=%v", things, timeout*2/3), body, nil); resp.StatusCode != http.StatusGatewayTimeout || resp.Header.Get("Content-Type") != "text/plain; charset=utf-8" ||
					resp.Header.Get("Strict-Transport-Security") != "max-age=1" {
					t.Errorf("a slow response: %d %v %s", resp.StatusCode, resp.Header, text)
				}
			}
			fmt.Fprint(conn, line)
		}
		for range 2 {
			if got, err := in.ReadString('\n'); got != line {
				t.Fatalf("the console sent %q, error %v", got, err)
			}
		}
	}
}

// openConsole upgrades a connection, and returns the deadline of the upgrade request. If the machine was too slow, it
// tries again with a later deadline.
func openConsole(t *testing.T, p *process) (conn io.Writer, in *bufio.Reader, timeout time.Duration) {
	t.Helper()
	config, err := rest.TLSConfigFor(p.config())
	if err != nil {
		t.Fatal(err)
	}
	for timeout = 3 * time.Second; ; timeout *= 2 {
		conn := proctest.DialTLS(t, strings.TrimPrefix(p.url(), "https://"), config)
		fmt.Fprintf(conn, "GET %s/console?timeout=%v HTTP/1.1\r\nHost: x\r\nConnection: keep-alive\r\nConnection: Upgrade\r\nUpgrade: twice\r\n\r\nearly\n", things, timeout)
		in = bufio.NewReader(conn)
		resp, err := http.ReadResponse(in, nil)
		switch {
		case err == nil && resp.StatusCode == http.StatusSwitchingProtocols && resp.Header.Get("X-Caller") != "":
			return conn, in, timeout
		case err != nil || resp.StatusCode != http.StatusGatewayTimeout:
			t.Fatalf("upgrade: %v, %v", resp, err)
		}
	}
}

// zeros is an endless reader.
type zeros struct{}

// Read implements io.Reader.
func (zeros) Read(p []byte) (int, error) { clear(p); return len(p), nil }

// testAggregatedIdentity checks that the aggregated server gets the user from Larder, and accepts users from no other
// client.
func testAggregatedIdentity(t *testing.T, p *process, a *aggregated) {
	t.Helper()
	header := http.Header{
		"Impersonate-User": {"jane"}, "Impersonate-Group": {"devs", "ops"}, "Impersonate-Uid": {"u-1"}, "Impersonate-Extra-Scopes": {"all"},
		"X-Remote-User": {"mallory"}, "X-Remote-Group": {"system:masters"}, "X-Remote-Extra-Power": {"much"}, "Authorization": {"Basic c2VjcmV0"},
	}
	resp, body := p.fetch("GET", things+"/who", nil, header)
	if resp.StatusCode != http.StatusOK {
		t.Fatalf("%d %s", resp.StatusCode, body)
	}
	got := (<-a.received).Header
	want := http.Header{
		"X-Remote-User": {"jane"}, "X-Remote-Group": {"devs", "ops", "system:authenticated"}, "X-Remote-Uid": {"u-1"}, "X-Remote-Extra-Scopes": {"all"},
		"Audit-Id": resp.Header["Audit-Id"], "X-Remote-Extra-Power": nil, "Authorization": nil, "Impersonate-User": nil, "Impersonate-Group": nil,
	}
	for name, values := range want {
		if !slices.Equal(got[name], values) {
			t.Errorf("%s: %q, want %q", name, got[name], values)
		}
	}
}

// TestAPIServiceReplacesACRD checks that an APIService with a service takes over a group that a CRD serves, and that
// the CRD serves it again afterwards.
func TestAPIServiceReplacesACRD(t *testing.T) {
	a := newAggregated(t, "things")
	p := serve(t, "--authorization-mode=AlwaysAllow", "--unsafe-no-fsync")
	k := newKubectl(t, p.kubeconfig(), "default")
	k.must(t, `{"apiVersion":"apiextensions.k8s.io/v1","kind":"CustomResourceDefinition","metadata":{"name":"things.things.example.com"},"spec":{"group":"things.example.com","scope":"Namespaced",`+
		`"names":{"plural":"things","singular":"thing","kind":"Thing"},"versions":[{"name":"v1","served":true,"storage":true,"schema":{"openAPIV3Schema":{"type":"object","x-kubernetes-preserve-unknown-fields":true}}}]}}`, "create", "-f", "-")
	client := p.registrations().ApiregistrationV1().APIServices()
	served := func(items int) func() error {
		return func() error {
			_, body := p.fetch("GET", things+"/namespaces/default/things", nil, nil)
			var list struct{ Items []json.RawMessage }
			if err := json.Unmarshal([]byte(body), &list); err != nil || list.Items == nil || len(list.Items) != items {
				return fmt.Errorf("%s (%v)", body, err)
			}
			return nil
		}
	}
	proctest.Eventually(t, "the CRD serves things", served(0))
	proctest.Eventually(t, "the CRD's version has an APIService", func() error {
		_, err := client.Get(t.Context(), "v1.things.example.com", metav1.GetOptions{})
		return err
	})
	if err := client.Delete(t.Context(), "v1.things.example.com", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	proctest.Eventually(t, "the APIService is created again", func() error {
		_, err := client.Get(t.Context(), "v1.things.example.com", metav1.GetOptions{})
		return err
	})
	// To change the APIService, a user first removes the label with which a controller manages it.
	k.must(t, "", "create", "service", "externalname", "things", "--external-name", "localhost")
	patch := fmt.Sprintf(`{"metadata":{"labels":{"kube-aggregator.kubernetes.io/automanaged":null}},"spec":{"insecureSkipTLSVerify":true,"service":{"namespace":"default","name":"things","port":%d}}}`, a.port())
	k.must(t, "", "patch", "apiservice", "v1.things.example.com", "--type", "merge", "-p", patch)
	proctest.Eventually(t, "the aggregated server serves things", served(1))
	k.must(t, "", "patch", "apiservice", "v1.things.example.com", "--type", "merge", "-p", `{"spec":{"insecureSkipTLSVerify":null,"service":null}}`)
	proctest.Eventually(t, "the CRD serves things again", served(0))
	k.must(t, "", "label", "apiservice", "v1.things.example.com", "kube-aggregator.kubernetes.io/automanaged=true")
	k.must(t, "", "delete", "crd", "things.things.example.com")
	proctest.Eventually(t, "its APIService is deleted", func() error {
		if _, err := client.Get(t.Context(), "v1.things.example.com", metav1.GetOptions{}); err == nil {
			return fmt.Errorf("it still exists")
		}
		return nil
	})
}
