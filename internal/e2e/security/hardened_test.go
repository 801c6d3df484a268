package security

import (
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/larder-io/larder/internal/proctest"
	"github.com/larder-io/larder/internal/proctest/testcert"
)

// Tokens of a hardenedServer's users. They must not be disclosed.
const (
	alice  = "alice-canary-token"  // has the rights that a test grants
	reader = "reader-canary-token" // may get everything about pods
	node   = "node-canary-token"   // of node-1
)

// hardenedServer is a server with all protections on, and the servers that it uses.
type hardenedServer struct {
	*server
	clients, proxies *testcert.Authority // CAs of clients and of front proxies
	policy           *hook               // the image policy webhook
	audit            string              // the audit log's file
}

func newHardenedServer(t *testing.T) *hardenedServer {
	t.Helper()
	f := &hardenedServer{clients: testcert.New(t, "clients"), proxies: testcert.New(t, "proxies"), policy: newHook(t)}
	dir := t.TempDir()
	f.audit = filepath.Join(dir, "audit.log")
	f.policy.respond = func(w http.ResponseWriter, body []byte) {
		fmt.Fprintf(w, `{"apiVersion":"imagepolicy.k8s.io/v1alpha1","kind":"ImageReview","status":{"allowed":%t,"reason":"the test decides"}}`, !strings.Contains(string(body), "forbidden-image"))
	}
	kubeconfig := file(t, dir, "policy.kubeconfig", fmt.Sprintf(`{"apiVersion":"v1","kind":"Config","current-context":"c","contexts":[{"name":"c","context":{"cluster":"c","user":"u"}}],`+
		`"clusters":[{"name":"c","cluster":{"server":%q,"certificate-authority-data":%q}}],"users":[{"name":"u","user":{}}]}`, f.policy.URL+"/images", f.policy.bundle()))
	plugins := file(t, dir, "admission.yaml", fmt.Sprintf(`{"apiVersion":"apiserver.config.k8s.io/v1","kind":"AdmissionConfiguration","plugins":[{"name":"ImagePolicyWebhook",`+
		`"configuration":{"imagePolicy":{"kubeConfigFile":%q,"allowTTL":1,"denyTTL":1,"retryBackoff":500,"defaultAllow":false}}}]}`, kubeconfig))
	f.server = serve(t, alice+",alice,u1,\n"+reader+",reader,u2,\n"+node+",system:node:node-1,u3,system:nodes\n",
		"--authorization-mode=Node,RBAC", "-v=10",
		"--client-ca-file", file(t, dir, "clients.crt", f.clients.PEM()),
		"--requestheader-client-ca-file", file(t, dir, "proxies.crt", f.proxies.PEM()), "--requestheader-allowed-names=front-proxy",
		"--requestheader-username-headers=X-Remote-User", "--requestheader-group-headers=X-Remote-Group", "--requestheader-extra-headers-prefix=X-Remote-Extra-",
		"--enable-admission-plugins=NodeRestriction,DenyServiceExternalIPs,ImagePolicyWebhook", "--admission-control-config-file", plugins,
		"--audit-log-path", f.audit, "--audit-policy-file", file(t, dir, "policy.yaml", `{"apiVersion":"audit.k8s.io/v1","kind":"Policy","rules":[{"level":"RequestResponse"}]}`))
	f.create(t, "/api/v1/namespaces/default/serviceaccounts", `{"metadata":{"name":"default"}}`)
	f.bind(t, "reads-pods", "reader", `{"apiGroups":[""],"resources":["pods","pods/exec","pods/attach","pods/portforward"],"verbs":["get","list","watch"]}`)
	return f
}

// patch patches an object as the admin.
func (s *server) patch(t *testing.T, path, body string) response {
	t.Helper()
	return s.send(t, admin, "PATCH", path, body, mergeBody)
}

// pod returns the JSON of a pod that runs an image.
func pod(name, image, more string) string {
	return fmt.Sprintf(`{"metadata":{"name":%q},"spec":{"containers":[{"name":"c","image":%q}]%s}}`, name, image, more)
}

// hook is a webhook that records the bodies of its requests, by path.
type hook struct {
	*httptest.Server
	respond func(w http.ResponseWriter, body []byte) // nil allows every request

	mu       sync.Mutex
	received map[string][]string
}

func newHook(t *testing.T) *hook {
	h := &hook{received: make(map[string][]string)}
	h.Server = httptest.NewUnstartedServer(h)
	h.Config.ErrorLog = log.New(io.Discard, "", 0)
	h.StartTLS()
	t.Cleanup(h.Close)
	return h
}

// bundle returns the CA of h's certificate, as base64 of PEM.
func (h *hook) bundle() string {
	block := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: h.Certificate().Raw})
	text, err := json.Marshal(block)
	if err != nil {
		panic(err) // cannot happen for bytes
	}
	return strings.Trim(string(text), `"`)
}

func (h *hook) requests(path string) []string {
	h.mu.Lock()
	defer h.mu.Unlock()
	return append([]string(nil), h.received[path]...)
}

// ServeHTTP implements http.Handler.
func (h *hook) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	body, err := io.ReadAll(req.Body)
	if err != nil {
		return
	}
	h.mu.Lock()
	h.received[req.URL.Path] = append(h.received[req.URL.Path], string(body))
	h.mu.Unlock()
	w.Header().Set("Content-Type", "application/json")
	if req.URL.Path == "/redirect" {
		http.Redirect(w, req, h.URL+"/secret", http.StatusFound)
		return
	}
	if h.respond != nil {
		h.respond(w, body)
		return
	}
	var review struct{ Request struct{ UID string } }
	_ = json.Unmarshal(body, &review) // the server rejects a response without the UID
	fmt.Fprintf(w, `{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview","response":{"uid":%q,"allowed":true}}`, review.Request.UID)
}

// register makes the server call h for objects of a resource until the test ends.
func (h *hook) register(t *testing.T, s *server, name, path, operation, resource string) {
	t.Helper()
	const all = "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations"
	s.create(t, all, fmt.Sprintf(`{"metadata":{"name":%q},"webhooks":[{"name":"%[1]s.example.com","admissionReviewVersions":["v1"],"sideEffects":"None","failurePolicy":"Fail",`+
		`"clientConfig":{"url":%q,"caBundle":%q},"rules":[{"operations":[%q],"apiGroups":[""],"apiVersions":["v1"],"resources":[%q]}]}]}`,
		name, h.URL+path, h.bundle(), operation, resource))
	t.Cleanup(func() { s.send(t, admin, "DELETE", all+"/"+name, "") })
}

// wait calls check until it returns nil.
func wait(t *testing.T, what string, check func() error) {
	t.Helper()
	proctest.Eventually(t, what, check)
}
