package e2e_test

import (
	"bufio"
	"context"
	"encoding/base64"
	"fmt"
	"io"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/gorilla/websocket"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/larder-io/larder/internal/e2e/e2etest"
	"github.com/larder-io/larder/internal/proctest"
)

const (
	asTable    = "application/json;as=Table;v=v1;g=meta.k8s.io,application/json"
	asMetadata = "application/json;as=PartialObjectMetadata;v=v1;g=meta.k8s.io"
	asProtobuf = "application/vnd.kubernetes.protobuf"
)

// notesDefinition is the CRD of the kind Note, which has an additional printer column.
const notesDefinition = `{"apiVersion":"apiextensions.k8s.io/v1","kind":"CustomResourceDefinition","metadata":{"name":"notes.ui.example.com"},"spec":{"group":"ui.example.com","scope":"Namespaced",` +
	`"names":{"plural":"notes","singular":"note","kind":"Note"},"versions":[{"name":"v1","served":true,"storage":true,"additionalPrinterColumns":[{"name":"Text","type":"string","jsonPath":".text"}],` +
	`"schema":{"openAPIV3Schema":{"type":"object","properties":{"text":{"type":"string"}}}}}]}}`

// ui is a web client that runs in a browser, like Headlamp.
type ui struct {
	*testing.T
	config *rest.Config
	token  string // token of a service account that may read ConfigMaps and notes in namespace ui
}

// newUI creates the objects that the pages read, also in the server that -against names.
func newUI(t *testing.T, kubeconfig string) *ui {
	t.Helper()
	config := e2etest.Config(t, kubeconfig)
	u := &ui{T: t, config: config}
	k := newKubectl(t, kubeconfig, "ui")
	k.must(t, "", "create", "namespace", "ui")
	k.must(t, "", "create", "serviceaccount", "page")
	k.must(t, notesDefinition, "create", "-f", "-")
	k.must(t, "", "wait", longWait, "--for=condition=Established", "crd/notes.ui.example.com")
	k.must(t, "", "create", "role", "reader", "--verb=get,list,watch", "--resource=configmaps,notes.ui.example.com")
	core := kubernetes.NewForConfigOrDie(config)
	binding := &rbacv1.RoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: "page"}, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: "reader"},
		Subjects: []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: "ui", Name: "page"}},
	}
	if _, err := core.RbacV1().RoleBindings("ui").Create(t.Context(), binding, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	token, err := core.CoreV1().ServiceAccounts("ui").CreateToken(t.Context(), "page", &authenticationv1.TokenRequest{}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	u.token = token.Status.Token
	as := rest.AnonymousClientConfig(config)
	as.BearerToken = u.token
	page := kubernetes.NewForConfigOrDie(as).CoreV1().RESTClient()
	for _, path := range []string{"/api/v1/namespaces/ui/configmaps", "/apis/ui.example.com/v1/namespaces/ui/notes"} {
		proctest.Eventually(t, "the page may read "+path, func() error { return page.Get().AbsPath(path).Do(t.Context()).Error() })
	}
	return u
}

// protocol returns the subprotocol with a token: pages cannot set header fields.
func protocol(token string) string {
	return "base64url.bearer.authorization.k8s.io." + base64.RawURLEncoding.EncodeToString([]byte(token))
}

// dial opens a websocket with header fields besides Origin, and offers subprotocols as a browser does.
func (u *ui) dial(path string, header http.Header, protocols ...string) (*websocket.Conn, *http.Response, error) {
	u.Helper()
	tls, err := rest.TLSConfigFor(&rest.Config{TLSClientConfig: rest.TLSClientConfig{CAData: u.config.CAData, CAFile: u.config.CAFile}})
	if err != nil {
		u.Fatal(err)
	}
	if header == nil {
		header = make(http.Header)
	}
	if header.Get("Origin") == "" {
		header.Set("Origin", "https://ui.example.com")
	}
	dialer := &websocket.Dialer{TLSClientConfig: tls, Subprotocols: protocols, HandshakeTimeout: proctest.Patience, EnableCompression: true}
	ctx, cancel := context.WithTimeout(u.Context(), proctest.Patience)
	defer cancel()
	return dialer.DialContext(ctx, "wss"+strings.TrimPrefix(u.config.Host, "https")+path, header)
}

// open is dial with the token in a subprotocol. It must succeed.
func (u *ui) open(path string, header http.Header) *websocket.Conn {
	u.Helper()
	c, resp, err := u.dial(path, header, "base64.binary.k8s.io", protocol(u.token))
	if err != nil {
		u.Fatalf("%s: %v, %v", path, err, resp)
	}
	u.Cleanup(func() { c.Close() })
	if got := c.Subprotocol(); got != "base64.binary.k8s.io" {
		u.Errorf("%s: protocol %q", path, got)
	}
	return c
}

// message reads one message, which must be of a kind.
func (u *ui) message(c *websocket.Conn, kind int) string {
	u.Helper()
	if err := c.SetReadDeadline(time.Now().Add(proctest.Patience)); err != nil {
		u.Fatal(err)
	}
	got, data, err := c.ReadMessage()
	if err != nil || got != kind {
		u.Fatalf("message of kind %d, want %d: %q, %v", got, kind, data, err)
	}
	return string(data)
}

// TestPagesSeeKubeAPIServersWebSockets checks that pages see the same as with kube-apiserver, which passes this test
// with -against.
func TestPagesSeeKubeAPIServersWebSockets(t *testing.T) {
	kubeconfig := *against
	if kubeconfig == "" {
		kubeconfig = serve(t, "--unsafe-no-fsync").kubeconfig()
	}
	u := newUI(t, kubeconfig)
	k := newKubectl(t, kubeconfig, "ui")
	for name, test := range map[string]func(*ui, *kubectl){"watches": testWebSocketWatches, "handshakes": testWebSocketHandshakes, "ends": testWebSocketEnds} {
		t.Run(name, func(t *testing.T) { test(&ui{T: t, config: u.config, token: u.token}, k) })
	}
}

// ageCell matches an age in a Table. Two watches print it at different times.
var ageCell = regexp.MustCompile(`"\d+s"`)

// testWebSocketWatches checks that a watch over a websocket has the same events as one over HTTP, each in a message,
// for all parameters.
func testWebSocketWatches(u *ui, k *kubectl) {
	change := func(text string) {
		for _, note := range []string{`{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"a"},"data":{"text":%q}}`, `{"apiVersion":"ui.example.com/v1","kind":"Note","metadata":{"name":"a"},"text":%q}`} {
			k.must(u.T, fmt.Sprintf(note, text), "apply", "-f", "-")
		}
	}
	change("before")
	type pair struct {
		name   string
		socket *websocket.Conn
		http   *bufio.Reader
	}
	var pairs []pair
	for _, path := range []string{"/api/v1/namespaces/ui/configmaps", "/apis/ui.example.com/v1/namespaces/ui/notes"} {
		for _, accept := range []string{"application/json", asTable, asMetadata} {
			target := path + "?watch=1&fieldSelector=metadata.name%3Da"
			pairs = append(pairs, pair{name: accept + " " + path, socket: u.open(target, http.Header{"Accept": {accept}}), http: u.stream(target, accept)})
		}
	}
	equal := func(events int) {
		u.Helper()
		for _, p := range pairs {
			for range events {
				want, err := p.http.ReadString('\n')
				if err != nil {
					u.Fatalf("%s: %v", p.name, err)
				}
				if got := u.message(p.socket, websocket.TextMessage); ageCell.ReplaceAllString(got, "") != ageCell.ReplaceAllString(want, "") {
					u.Errorf("%s:\ngot  %q\nwant %q", p.name, got, want)
				}
			}
		}
	}
	equal(1)
	change("after")
	k.must(u.T, "", "delete", "configmap/a", "note/a")
	equal(2)
	if _, resp, err := u.dial("/apis/ui.example.com/v1/namespaces/ui/notes?watch=1", http.Header{"Accept": {asProtobuf}, "Authorization": {"Bearer " + u.token}}); err == nil || resp == nil || resp.StatusCode != http.StatusNotAcceptable {
		u.Errorf("notes in protobuf: %v, %v", resp, err)
	}
	change("again")
	binary := u.open("/api/v1/namespaces/ui/configmaps?watch=1&fieldSelector=metadata.name%3Da", http.Header{"Accept": {asProtobuf}})
	event := new(metav1.WatchEvent)
	if err := event.Unmarshal([]byte(u.message(binary, websocket.BinaryMessage))); err != nil || event.Type != "ADDED" {
		u.Errorf("binary: %v, %v", event, err)
	}
}

// stream opens a watch over HTTP.
func (u *ui) stream(path, accept string) *bufio.Reader {
	u.Helper()
	return bufio.NewReader(u.get(path, http.Header{"Accept": {accept}}).Body)
}

// get sends a request as the administrator. The response's body is closed at the end of the test.
func (u *ui) get(path string, header http.Header) *http.Response {
	u.Helper()
	req, err := http.NewRequestWithContext(u.Context(), http.MethodGet, u.config.Host+path, nil)
	if err != nil {
		u.Fatal(err)
	}
	req.Header = header
	resp, err := e2etest.HTTPClient(u, u.config).Do(req)
	if err != nil {
		u.Fatal(err)
	}
	u.Cleanup(func() { resp.Body.Close() })
	return resp
}

// testWebSocketHandshakes checks which users can open a websocket, and that errors equal kube-apiserver's.
func testWebSocketHandshakes(u *ui, _ *kubectl) {
	bearer := http.Header{"Authorization": {"Bearer " + u.token}}
	const maps, secrets = "/api/v1/namespaces/ui/configmaps?watch=1", "/api/v1/namespaces/ui/secrets?watch=1"
	for name, test := range map[string]struct {
		path      string
		header    http.Header
		protocols []string
		code      int
	}{
		"token in a header field":          {path: maps, header: bearer, code: 101},
		"token in a subprotocol":           {path: maps, protocols: []string{protocol(u.token), "v4.channel.k8s.io"}, code: 101},
		"only the token":                   {path: maps, protocols: []string{protocol(u.token)}, code: 401},
		"two tokens":                       {path: maps, protocols: []string{protocol(u.token), protocol(u.token), "v4.channel.k8s.io"}, code: 401},
		"an unknown token":                 {path: maps, protocols: []string{protocol("nobody"), "v4.channel.k8s.io"}, code: 401},
		"a token with padding":             {path: maps, protocols: []string{"base64url.bearer.authorization.k8s.io.YQ==", "v4.channel.k8s.io"}, code: 401},
		"no token":                         {path: maps, code: 403},
		"not allowed":                      {path: secrets, header: bearer, code: 403},
		"several protocols":                {path: maps, header: bearer, protocols: []string{"base64.binary.k8s.io", "v4.channel.k8s.io"}, code: 400},
		"a page of the origin null":        {path: maps, header: http.Header{"Authorization": bearer["Authorization"], "Origin": {"null"}}, code: 403},
		"a list":                           {path: "/api/v1/namespaces/ui/configmaps", header: bearer, code: 200},
		"a custom resource":                {path: "/apis/ui.example.com/v1/namespaces/ui/notes?watch=1", header: bearer, code: 101},
		"a resource that does not exist":   {path: "/apis/ui.example.com/v1/namespaces/ui/nothings?watch=1", header: bearer, code: 403},
		"a watch from an invalid revision": {path: maps + "&resourceVersion=x", header: bearer, code: 500},
	} {
		c, resp, err := u.dial(test.path, test.header.Clone(), test.protocols...)
		switch {
		case resp == nil:
			u.Errorf("%s: %v", name, err)
		case resp.StatusCode != test.code:
			body, _ := io.ReadAll(resp.Body)
			u.Errorf("%s: %d, want %d: %s", name, resp.StatusCode, test.code, body)
		}
		if c != nil {
			c.Close()
		}
	}
}

// testWebSocketEnds checks that a watch ends as in kube-apiserver: at its timeout, and when the client closes it. Other
// messages of the client are ignored.
func testWebSocketEnds(u *ui, k *kubectl) {
	const maps = "/api/v1/namespaces/ui/configmaps?watch=1&fieldSelector=metadata.name%3Db"
	ended := func(c *websocket.Conn, how string) {
		u.Helper()
		if _, data, err := c.ReadMessage(); !websocket.IsCloseError(err, websocket.CloseNormalClosure) {
			u.Errorf("%s: %q, %v", how, data, err)
		}
	}
	ended(u.open(maps+"&timeoutSeconds=1", nil), "the timeout")
	c := u.open(maps, nil)
	pongs := make(chan string, 1)
	c.SetPongHandler(func(data string) error { pongs <- data; return nil })
	for _, say := range []struct {
		kind int
		text string
	}{{websocket.TextMessage, "hello"}, {websocket.BinaryMessage, strings.Repeat("x", 100<<10)}, {websocket.PingMessage, "here"}} {
		if err := c.WriteMessage(say.kind, []byte(say.text)); err != nil {
			u.Fatal(err)
		}
	}
	if err := c.SetReadDeadline(time.Now().Add(proctest.Patience)); err != nil {
		u.Fatal(err)
	}
	read := make(chan string, 1)
	go func() { // the pong arrives before the event
		kind, data, err := c.ReadMessage()
		read <- fmt.Sprintf("%d %s %v", kind, data, err)
	}()
	select {
	case got := <-pongs:
		if got != "here" {
			u.Errorf("pong %q", got)
		}
	case got := <-read:
		u.Fatalf("%s instead of a pong", got)
	}
	k.must(u.T, "", "create", "configmap", "b")
	if got := <-read; !strings.HasPrefix(got, `1 {"type":"ADDED"`) {
		u.Errorf("%q", got)
	}
	if err := c.WriteMessage(websocket.CloseMessage, websocket.FormatCloseMessage(websocket.CloseNormalClosure, "")); err != nil {
		u.Fatal(err)
	}
	ended(c, "the client closes it")
}

// TestPagesReopenManyWebSockets has pages with a websocket for each visible list, which they reopen all the time. Every
// websocket must receive every change.
func TestPagesReopenManyWebSockets(t *testing.T) {
	p := serve(t, "--unsafe-no-fsync")
	u := newUI(t, p.kubeconfig())
	const sockets, changes = 40, 20
	var pages sync.WaitGroup
	for i := range sockets {
		path := "/api/v1/namespaces/ui/configmaps?watch=1&labelSelector=shown"
		accept := []string{"application/json", asTable, asMetadata}[i%3]
		pages.Go(func() {
			c, _, err := u.dial(path, http.Header{"Accept": {accept}}, protocol(u.token), "base64.binary.k8s.io")
			if err != nil {
				t.Error(err)
				return
			}
			defer c.Close()
			seen := make(map[string]bool)
			for len(seen) < changes {
				_ = c.SetReadDeadline(time.Now().Add(proctest.Patience))
				_, data, err := c.ReadMessage()
				if err != nil {
					t.Errorf("after %d changes: %v", len(seen), err)
					return
				}
				_, name, _ := strings.Cut(string(data), `"name":"shown-`)
				name, _, _ = strings.Cut(name, `"`)
				seen[name] = true
			}
		})
	}
	maps := p.client().CoreV1().ConfigMaps("ui")
	for i := range changes {
		c := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("shown-%d", i), Labels: map[string]string{"shown": ""}}}
		if _, err := maps.Create(t.Context(), c, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	pages.Wait()
}

// TestPagesOfOtherOrigins checks that browsers let a page of an allowed origin read every response, including watches
// of built-in and custom resources.
func TestPagesOfOtherOrigins(t *testing.T) {
	p := serve(t, "--unsafe-no-fsync", "--cors-allowed-origins=^https://ui[.]example[.]com$", "--strict-transport-security-directives=max-age=1")
	u := newUI(t, p.kubeconfig())
	promised := map[string]string{
		"Access-Control-Allow-Origin": "https://ui.example.com", "Access-Control-Allow-Credentials": "true", "Access-Control-Expose-Headers": "Date",
		"Access-Control-Allow-Methods": "POST, GET, OPTIONS, PUT, DELETE, PATCH",
		"Access-Control-Allow-Headers": "Content-Type, Content-Length, Accept-Encoding, X-CSRF-Token, Authorization, X-Requested-With, If-Modified-Since",
	}
	for _, path := range []string{
		"/version", "/apis", "/openapi/v3", "/api/v1/namespaces/ui/nothings",
		"/api/v1/namespaces/ui/configmaps", "/api/v1/namespaces/ui/configmaps?watch=1", "/api/v1/watch/namespaces/ui/configmaps",
		"/apis/ui.example.com/v1/namespaces/ui/notes", "/apis/ui.example.com/v1/namespaces/ui/notes?watch=1",
	} {
		for origin, allowed := range map[string]bool{"https://ui.example.com": true, "https://evil.example.com": false} {
			resp := u.get(path, http.Header{"Origin": {origin}})
			for name, want := range promised {
				if got := resp.Header[name]; allowed && !slices.Equal(got, []string{want}) || !allowed && got != nil {
					t.Errorf("%s for %s: %s: %q", path, origin, name, got)
				}
			}
			if got := resp.Header.Get("Strict-Transport-Security"); got != "max-age=1" {
				t.Errorf("%s: Strict-Transport-Security %q", path, got)
			}
		}
	}
}
