package security

import (
	"bufio"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"

	"github.com/larder-io/larder/internal/proctest/testcert"
)

// backend is a malicious aggregated server or kubelet. A request for /secret shows that the server has followed a
// redirect.
type backend struct {
	*httptest.Server
	authority []byte // the CA of its certificate
	port      int

	mu       sync.Mutex
	received []string
}

func newBackend(t *testing.T, name string) *backend {
	t.Helper()
	authority := testcert.New(t, "backends")
	own := authority.Sign(t, name, nil, func(c *x509.Certificate) {
		c.DNSNames, c.IPAddresses = []string{name}, []net.IP{net.IPv4(127, 0, 0, 1)}
		c.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}
	})
	b := &backend{authority: []byte(authority.PEM())}
	b.Server = httptest.NewUnstartedServer(b)
	b.Config.ErrorLog = log.New(io.Discard, "", 0)
	b.TLS = &tls.Config{Certificates: []tls.Certificate{own}}
	b.StartTLS()
	b.port = b.Listener.Addr().(*net.TCPAddr).Port
	t.Cleanup(b.Close)
	return b
}

func (b *backend) requests(part string) (n int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, path := range b.received {
		if strings.Contains(path, part) {
			n++
		}
	}
	return n
}

// ServeHTTP implements http.Handler.
func (b *backend) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	b.mu.Lock()
	b.received = append(b.received, req.URL.Path)
	b.mu.Unlock()
	switch path := req.URL.Path; {
	case path == "/apis/evil.example.com/v1":
		w.Header().Set("Content-Type", "application/json")
		io.WriteString(w, `{"kind":"APIResourceList","apiVersion":"v1","groupVersion":"evil.example.com/v1","resources":[]}`)
	case strings.Contains(path, "reject"):
		http.Error(w, "no", http.StatusForbidden)
	case strings.Contains(path, "redirect"):
		w.Header().Set("Location", b.URL+"/secret")
		w.WriteHeader(http.StatusFound)
	case strings.Contains(path, "plain"):
		io.WriteString(w, "not switched")
	default:
		io.WriteString(w, "secret")
	}
}

// aggregate makes h forward requests for the group evil.example.com to b, and gives alice rights for it.
func (h *hardenedServer) aggregate(t *testing.T) *backend {
	t.Helper()
	b := newBackend(t, "evil.default.svc")
	const services, all = "/api/v1/namespaces/default/services", "/apis/apiregistration.k8s.io/v1/apiservices"
	h.create(t, services, `{"metadata":{"name":"evil"},"spec":{"type":"ExternalName","externalName":"localhost"}}`)
	h.create(t, all, fmt.Sprintf(`{"metadata":{"name":"v1.evil.example.com"},"spec":{"group":"evil.example.com","version":"v1","groupPriorityMinimum":1,"versionPriority":1,`+
		`"service":{"namespace":"default","name":"evil","port":%d},"caBundle":%q}}`, b.port, base64.StdEncoding.EncodeToString(b.authority)))
	h.bind(t, "evil", "alice", `{"apiGroups":["evil.example.com"],"resources":["*"],"verbs":["*"]}`)
	t.Cleanup(func() {
		for _, path := range []string{services + "/evil", all + "/v1.evil.example.com", "/apis/rbac.authorization.k8s.io/v1/clusterroles/evil", "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings/evil"} {
			h.send(t, admin, "DELETE", path, "")
		}
	})
	wait(t, "the aggregated server gets requests", func() error {
		if a := h.send(t, alice, "GET", "/apis/evil.example.com/v1/secret", ""); a.body != "secret" {
			return fmt.Errorf("%d %s", a.code, a.body)
		}
		return nil
	})
	b.mu.Lock()
	defer b.mu.Unlock()
	b.received = nil
	return b
}

// kubelet creates pods on a new node whose kubelet is the backend. The backend's response to exec in a pod depends on
// the pod's name.
func (h *hardenedServer) kubelet(t *testing.T, node string, pods ...string) *backend {
	t.Helper()
	b := newBackend(t, node)
	h.create(t, "/api/v1/nodes", fmt.Sprintf(`{"metadata":{"name":%q}}`, node))
	h.patch(t, "/api/v1/nodes/"+node+"/status", fmt.Sprintf(`{"status":{"addresses":[{"type":"InternalIP","address":"127.0.0.1"}],"daemonEndpoints":{"kubeletEndpoint":{"Port":%d}}}}`, b.port)).
		expect(t, "status", http.StatusOK)
	for _, name := range pods {
		h.create(t, "/api/v1/namespaces/default/pods", pod(name, "i", fmt.Sprintf(`,"nodeName":%q`, node)))
	}
	return b
}

const upgrade = "Connection: Upgrade\r\nUpgrade: SPDY/3.1\r\nX-Stream-Protocol-Version: v4.channel.k8s.io\r\n"

// tunnels returns an upgrade request through each proxy, with its backend. kind is part of the path and selects the
// backend's response.
func (h *hardenedServer) tunnels(t *testing.T, kind string) map[string]*backend {
	t.Helper()
	return map[string]*backend{
		"GET /apis/evil.example.com/v1/" + kind + " HTTP/1.1\r\nAuthorization: Bearer " + alice + "\r\n":                                                         h.aggregate(t),
		"POST /api/v1/namespaces/default/pods/" + kind + "/exec?command=ls&stdout=true HTTP/1.1\r\nContent-Length: 0\r\nAuthorization: Bearer " + admin + "\r\n": h.kubelet(t, "node-"+kind, kind),
	}
}

func rejectedUpgrade(t *testing.T, f *hardenedServer) {
	for request, b := range f.tunnels(t, "reject") {
		conn := f.dial(t)
		in := bufio.NewReader(conn)
		fmt.Fprintf(conn, "%sHost: h\r\n%s\r\n", request, upgrade)
		readResponse(t, in).expect(t, request, http.StatusForbidden)
		// The server must handle the next bytes as an unauthenticated request.
		fmt.Fprintf(conn, "GET /apis/evil.example.com/v1/secret HTTP/1.1\r\nHost: h\r\nX-Remote-User: admin\r\nX-Remote-Group: system:masters\r\n\r\n")
		if rest, _ := io.ReadAll(in); strings.Contains(string(rest), "200 OK") || strings.Contains(string(rest), "\r\n\r\nsecret") {
			t.Errorf("after %.60s: %s", request, rest)
		}
		if b.requests("reject") != 1 || b.requests("secret") != 0 {
			t.Errorf("%.60s: the backend received requests for %q", request, b.received)
		}
	}
}

func redirectedUpgrade(t *testing.T, f *hardenedServer) {
	for _, kind := range []string{"redirect", "plain"} {
		t.Run(kind, func(t *testing.T) {
			for request, b := range f.tunnels(t, kind) {
				a := f.raw(t, request+"Host: h\r\n"+upgrade+"\r\n")
				if a.code < 500 || a.header.Get("Location") != "" || strings.Contains(a.body, "not switched") {
					t.Errorf("%.60s: %d %v %s", request, a.code, a.header, a.body)
				}
				if b.requests(kind) != 1 || b.requests("secret") != 0 {
					t.Errorf("%.60s: the backend received requests for %q", request, b.received)
				}
			}
		})
	}
}

func redirectedClient(t *testing.T, f *hardenedServer) {
	b := f.aggregate(t)
	a := f.send(t, alice, "GET", "/apis/evil.example.com/v1/redirect", "")
	if a.code != http.StatusBadGateway || a.header.Get("Location") != "" || b.requests("redirect") != 1 || b.requests("secret") != 0 {
		t.Errorf("%d %v %s, the backend received requests for %q", a.code, a.header, a.body, b.received)
	}
}

// nodeAddress creates nodes with addresses that belong to this machine or its network. As in kube-apiserver, a name may
// still resolve to different addresses at the check and at the dial. Only users with the right to create nodes can set
// such names.
func nodeAddress(t *testing.T, f *hardenedServer) {
	b := f.kubelet(t, "near")
	for _, address := range []string{"127.0.0.1", "169.254.169.254", "::1", "0.0.0.0", "224.0.0.1", "localhost"} {
		kind := "InternalIP"
		if address == "localhost" {
			kind = "Hostname"
		}
		f.patch(t, "/api/v1/nodes/near/status", fmt.Sprintf(`{"status":{"addresses":[{"type":%q,"address":%q}]}}`, kind, address))
		for _, name := range []string{"near", fmt.Sprintf("near:%d", b.port), fmt.Sprintf("https:near:%d", b.port)} {
			a := f.send(t, admin, "GET", "/api/v1/nodes/"+name+"/proxy/secret", "")
			if a.code < 400 || b.requests("secret") != 0 {
				t.Errorf("%s at %s: %d %s", name, address, a.code, a.body)
			}
		}
	}
	f.create(t, "/api/v1/namespaces/default/pods", pod("near", "i", `,"nodeName":"near"`))
	f.patch(t, "/api/v1/namespaces/default/pods/near/status", `{"status":{"podIP":"127.0.0.1","podIPs":[{"ip":"127.0.0.1"}]}}`)
	if a := f.send(t, admin, "GET", fmt.Sprintf("/api/v1/namespaces/default/pods/https:near:%d/proxy/secret", b.port), ""); a.code < 400 || b.requests("secret") != 0 {
		t.Errorf("a pod at the server's own address: %d %s", a.code, a.body)
	}
}

// websocketExec upgrades with rights that are not sufficient for exec.
func websocketExec(t *testing.T, f *hardenedServer) {
	b := f.kubelet(t, "terminal", "terminal")
	const lines = "Host: h\r\nOrigin: https://h\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Protocol: v4.channel.k8s.io\r\n"
	for _, sub := range []string{"exec?command=ls&stdout=true", "attach?stdout=true", "portforward?ports=80"} {
		a := f.raw(t, "GET /api/v1/namespaces/default/pods/terminal/"+sub+" HTTP/1.1\r\nAuthorization: Bearer "+reader+"\r\n"+lines+"\r\n")
		a.expect(t, sub, http.StatusForbidden)
	}
	if n := b.requests("/"); n > 0 {
		t.Errorf("the kubelet received requests for %q", b.received)
	}
	f.send(t, reader, "GET", "/api/v1/namespaces/default/pods/terminal", "").expect(t, "the pod itself", http.StatusOK)
}
