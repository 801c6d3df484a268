package relay

import (
	"bytes"
	"crypto/tls"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/larder-io/larder/internal/e2e/e2etest"
	"github.com/larder-io/larder/internal/proctest/testcert"
)

// below returns the configuration of a client of one of r's upstreams.
func (r *relay) below(name, token string) *rest.Config {
	config := r.as(token)
	config.Host += "/clusters/" + name
	return config
}

// eavesdropper is an upstream that records everything it receives, and sends only errors.
type eavesdropper struct {
	*httptest.Server

	mu    sync.Mutex
	heard bytes.Buffer
}

func newEavesdropper(t *testing.T) *eavesdropper {
	e := new(eavesdropper)
	e.Server = httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		body, _ := io.ReadAll(req.Body)
		e.mu.Lock()
		defer e.mu.Unlock()
		fmt.Fprintln(&e.heard, req.Method, req.RequestURI, req.Header, string(body))
		w.WriteHeader(http.StatusUnauthorized)
	}))
	e.TLS = &tls.Config{ClientAuth: tls.RequestClientCert}
	e.StartTLS()
	t.Cleanup(e.Close)
	return e
}

func (e *eavesdropper) received() string {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.heard.String()
}

// kubeconfigOf writes a kubeconfig of a server with a token, and returns its path.
func kubeconfigOf(t *testing.T, server, token string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "kubeconfig")
	err := clientcmd.WriteToFile(clientcmdapi.Config{
		Clusters:  map[string]*clientcmdapi.Cluster{"upstream": {Server: server, InsecureSkipTLSVerify: true}},
		AuthInfos: map[string]*clientcmdapi.AuthInfo{"relay": {Token: token}},
		Contexts:  map[string]*clientcmdapi.Context{"upstream": {Cluster: "upstream", AuthInfo: "relay"}}, CurrentContext: "upstream",
	}, file)
	if err != nil {
		t.Fatal(err)
	}
	return file
}

// TestUpstreamsDisagree checks that requests for two upstreams can share a connection, and that each upstream's objects
// and rights apply only below its own prefix.
func TestUpstreamsDisagree(t *testing.T) {
	t.Parallel()
	a, b := startUpstream(t), startUpstream(t)
	rules := allowed([]string{"get", "list", "watch"}, []string{"configmaps"})
	inA, inB := a.token(t, "reader", rules), b.token(t, "reader", rules)
	barred := b.token(t, "barred", allowed([]string{"get"}, []string{"pods"})) // a allows this, b does not
	a.token(t, "barred", rules)
	for name, u := range map[string]*upstream{"only-a": a, "only-b": b} {
		if _, err := u.client(t).CoreV1().ConfigMaps("default").Create(t.Context(), configMap(name), metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	r := startRelay(t, "--upstream", "a="+a.kubeconfig(t), "--upstream", "b="+b.kubeconfig(t))
	const list = "/api/v1/namespaces/default/configmaps?resourceVersion=0"
	client := e2etest.HTTPClient(t, r.as("")) // all requests share its connection
	request := func(cluster, token string) (int, string) {
		t.Helper()
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, r.url+"/clusters/"+cluster+list, nil)
		if err != nil {
			t.Fatal(err)
		}
		if token != "" {
			req.Header.Set("Authorization", "Bearer "+token)
		}
		got := send(t, client, req)
		return got.code, string(got.body)
	}
	for range 3 { // later requests use cached decisions and objects
		for _, c := range []struct {
			cluster, token, has, lacks string
			code                       int
		}{
			{"a", inA, "only-a", "only-b", http.StatusOK},
			{"b", inA, "Unauthorized", "only-", http.StatusUnauthorized},
			{"b", inB, "only-b", "only-a", http.StatusOK},
			{"a", inB, "Unauthorized", "only-", http.StatusUnauthorized},
			{"b", barred, "forbidden", "only-", http.StatusForbidden},
			{"a", "", "system:anonymous", "only-", http.StatusForbidden},
			{"b", "", "system:anonymous", "only-", http.StatusForbidden},
		} {
			code, body := request(c.cluster, c.token)
			if code != c.code || !strings.Contains(body, c.has) || strings.Contains(body, c.lacks) {
				t.Errorf("%s: %d %s, want %d with %q", c.cluster, code, body, c.code, c.has)
			}
		}
	}
	w, err := kubernetes.NewForConfigOrDie(r.below("b", inB)).CoreV1().ConfigMaps("default").Watch(t.Context(), metav1.ListOptions{ResourceVersion: "0"})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Stop()
	// While one upstream is unavailable, the relay serves the other, even after a restart of the relay.
	if err := b.Pause(); err != nil {
		t.Fatal(err)
	}
	if code, body := request("b", inB); code != http.StatusOK || !strings.Contains(body, "only-b") {
		t.Errorf("a cached list without the upstream: %d %s", code, body)
	}
	if code, body := request("b", inA); code == http.StatusOK {
		t.Errorf("a token of another upstream is accepted: %s", body)
	}
	second := startRelay(t, "--upstream", "b="+kubeconfigOf(t, b.config.Host, "none"), "--upstream", "a="+a.kubeconfig(t))
	for _, relay := range []*relay{r, second} {
		if got := get(t, relay.below("a", inA), list); got.code != http.StatusOK || !bytes.Contains(got.body, []byte("only-a")) {
			t.Errorf("the available upstream: %d %s", got.code, got.body)
		}
		if got := get(t, relay.as(""), "/readyz"); got.code != http.StatusOK {
			t.Errorf("/readyz: %d %s", got.code, got.body)
		}
		if err := relay.Terminate(t); err != nil { // while a watch is open
			t.Errorf("the relay exits with %v", err)
		}
	}
	awaitEnd(t, w)
}

// TestTokensStayWithTheirUpstream checks that an upstream receives only credentials that a client has sent to it. These
// upstreams do not review tokens.
func TestTokensStayWithTheirUpstream(t *testing.T) {
	t.Parallel()
	first, second := newEavesdropper(t), newEavesdropper(t)
	r := startRelay(t, "--upstream", "first="+kubeconfigOf(t, first.URL, "relays-token-for-first"), "--upstream", "second="+kubeconfigOf(t, second.URL, "relays-token-for-second"))
	for target, code := range map[string]int{
		"/clusters/first/api/v1/pods":                           http.StatusServiceUnavailable,
		"/clusters/first/api/v1/pods?resourceVersion=0":         http.StatusServiceUnavailable,
		"/clusters/first/../second/api/v1/pods":                 http.StatusServiceUnavailable,
		"/clusters/first/%2e%2e/second/api/v1/pods":             http.StatusServiceUnavailable,
		"/clusters/first//clusters/second/api/v1/pods":          http.StatusServiceUnavailable,
		"/clusters/first/clusters/second/api":                   http.StatusServiceUnavailable,
		"/clusters/first/metrics":                               http.StatusServiceUnavailable,
		"/clusters/first?resourceVersion=0":                     http.StatusServiceUnavailable,
		"/clusters/first%2Fapi":                                 http.StatusNotFound,
		"/clusters/%66irst/api":                                 http.StatusNotFound,
		"/clusters/third/api/v1/pods":                           http.StatusNotFound,
		"/clusters":                                             http.StatusNotFound,
		"/clusters/":                                            http.StatusNotFound,
		"//clusters/first/api":                                  http.StatusNotFound,
		"/api":                                                  http.StatusNotFound,
		"/api/v1/namespaces/default/configmaps?resourceVersion": http.StatusNotFound,
		"/": http.StatusNotFound, "/metrics": http.StatusNotFound, "/larder/": http.StatusNotFound, "/larder/status": http.StatusNotFound,
		"/healthz": http.StatusOK, "/livez": http.StatusOK, "/readyz": http.StatusOK,
	} {
		got := get(t, r.as("secret"), target)
		if got.code != code {
			t.Errorf("%s: %d %s, want %d", target, got.code, got.body, code)
		}
		if code == http.StatusNotFound && !bytes.Contains(got.body, []byte(`"kind":"Status"`)) {
			t.Errorf("%s: got a response without a Status: %s", target, got.body)
		}
	}
	for name, received := range map[string]string{"first": first.received(), "second": second.received()} {
		other := map[string]string{"first": "second", "second": "first"}[name]
		if strings.Contains(received, "relays-token-for-"+other) || name == "second" && strings.Contains(received, "secret") {
			t.Errorf("%s received a credential that is not for it:\n%s", name, received)
		}
	}
	before := first.received()
	for _, target := range []string{"/", "/api", "/healthz", "/clusters/third/api", "/clusters/second/api"} {
		get(t, r.as("another"), target)
	}
	if strings.Contains(strings.TrimPrefix(first.received(), before), "another") {
		t.Errorf("the first upstream received a token of requests that are not for it")
	}
	if !strings.Contains(second.received(), "another") {
		t.Error("no request reached the second upstream")
	}
}

// TestCertificatesOfOneUpstream checks that a certificate identifies a user only to the upstream whose CA has signed
// it.
func TestCertificatesOfOneUpstream(t *testing.T) {
	t.Parallel()
	a, b := startUpstream(t), startUpstream(t)
	authority, file := testcert.New(t, "clients"), filepath.Join(t.TempDir(), "ca.crt")
	if err := os.WriteFile(file, []byte(authority.PEM()), 0o600); err != nil {
		t.Fatal(err)
	}
	a.apply(t, "relay-impersonates.yaml")
	b.apply(t, "relay-impersonates.yaml")
	r := startRelay(t, "--upstream", "a="+a.kubeconfig(t), "--upstream", "b="+b.kubeconfig(t), "--client-ca-file", "a="+file)
	ann := r.certified(t, authority, "ann", "system:masters")
	for _, query := range []string{"", "?resourceVersion=0"} {
		for _, c := range []struct { // over one connection
			cluster, has string
			code         int
		}{{"a", "ConfigMapList", http.StatusOK}, {"b", "system:anonymous", http.StatusForbidden}} {
			got := get(t, ann, "/clusters/"+c.cluster+"/api/v1/configmaps"+query)
			if got.code != c.code || !bytes.Contains(got.body, []byte(c.has)) {
				t.Errorf("configmaps%s of %s: %d %s", query, c.cluster, got.code, got.body)
			}
		}
	}
}
