package httpapi

import (
	"bytes"
	"compress/gzip"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"testing"

	"k8s.io/apiserver/pkg/authorization/authorizerfactory"

	"github.com/larder-io/larder/internal/proctest/testcert"
	"github.com/larder-io/larder/internal/registry"
	"github.com/larder-io/larder/internal/registry/registrytest"
	"github.com/larder-io/larder/kv/kvtest"
)

// pair is a Larder server over TLS, and upstream's handlers over the same registry. Both must respond with the same
// bytes.
type pair struct {
	*running
	ours, theirs *side
	store        *kvtest.Memory
}

// serveBack runs a server of back that allows everything until the test ends.
func serveBack(t testing.TB, back *registrytest.Server) *running {
	t.Helper()
	return serveBackWith(t, back, func(*Config) {})
}

func serveBackWith(t testing.TB, back *registrytest.Server, change func(*Config)) *running {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	config, pool := testcert.Loopback(t)
	c := Config{
		Registry: back.Registry, Listener: l, TLS: config, Version: testVersion(),
		Access: Access{Authorizer: authorizerfactory.NewAlwaysAllowAuthorizer()},
	}
	change(&c)
	s, err := New(c)
	if err != nil {
		t.Fatal(err)
	}
	f := runTestServer(t, s, l.Addr().String(), pool)
	back.Start(t)
	return f
}

// sideAt returns the server at an address, reached by client.
func sideAt(t testing.TB, name, scheme, addr string, back *registrytest.Server, client http.RoundTripper) *side {
	return &side{name: name, registry: back.Registry, do: func(req *http.Request) *http.Response {
		req.URL.Scheme, req.URL.Host = scheme, addr
		resp, err := client.RoundTrip(req)
		if err != nil {
			t.Fatalf("%s %s: %v", req.Method, req.URL, err)
		}
		return resp
	}}
}

// side is f, reached by client.
func (f *running) side(t testing.TB, back *registrytest.Server, client http.RoundTripper) *side {
	return sideAt(t, "larder", "https", f.addr, back, client)
}

func newPair(t testing.TB, change ...func(*registry.Config)) *pair {
	t.Helper()
	return newPairWith(t, func(*Config) {}, change...)
}

// newPairWith is newPair with another configuration of our server.
func newPairWith(t testing.TB, adapt func(*Config), change ...func(*registry.Config)) *pair {
	t.Helper()
	return newPairOf(t, registrytest.New(t, nil, change...), adapt, func(h http.Handler) http.Handler { return h })
}

// newPairOf runs Larder beside upstream's handlers, which upstreamChain wraps, over back.
func newPairOf(t testing.TB, back *registrytest.Server, adapt func(*Config), upstreamChain func(http.Handler) http.Handler) *pair {
	t.Helper()
	h, err := upstreamHandler(back.Registry)
	if err != nil {
		t.Fatal(err)
	}
	p := &pair{running: serveBackWith(t, back, adapt), store: back.Store}
	client := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: p.pool}, DisableCompression: true}
	t.Cleanup(client.CloseIdleConnections)
	reference := httptest.NewServer(upstreamChain(h))
	t.Cleanup(reference.Close)
	p.ours = p.side(t, back, client)
	p.theirs = sideAt(t, "upstream", "http", reference.Listener.Addr().String(), back, client)
	return p
}

// seed creates objects of the kinds that reads treat differently.
func (p *pair) seed(t testing.TB) {
	t.Helper()
	for _, ns := range []string{"a", "a-b", "b"} {
		p.ours.must(t, post("/api/v1/namespaces", `{"metadata":{"name":"`+ns+`"}}`))
		for i := range 3 {
			p.ours.must(t, post("/api/v1/namespaces/"+ns+"/configmaps",
				fmt.Sprintf(`{"metadata":{"name":"c%d","labels":{"odd":"%t"},"annotations":{"note":"<x>"}},"data":{"k":"<&>\u2028"}}`, i, i%2 == 1)))
		}
		p.ours.must(t, post("/api/v1/namespaces/"+ns+"/serviceaccounts", `{"metadata":{"name":"default"}}`))
		p.ours.must(t, post("/api/v1/namespaces/"+ns+"/pods",
			`{"metadata":{"name":"p","labels":{"app":"x"}},"spec":{"nodeName":"n1","containers":[{"name":"c","image":"i"}]}}`))
		p.ours.must(t, post("/apis/autoscaling/v2/namespaces/"+ns+"/horizontalpodautoscalers",
			`{"metadata":{"name":"h"},"spec":{"maxReplicas":3,"scaleTargetRef":{"apiVersion":"apps/v1","kind":"Deployment","name":"d"},"metrics":[{"type":"Resource","resource":{"name":"cpu","target":{"type":"Utilization","averageUtilization":60}}}]}}`))
	}
	p.ours.must(t, post("/api/v1/nodes", `{"metadata":{"name":"n1"}}`))
}

func (p *pair) same(t *testing.T, c call) (ours response) {
	t.Helper()
	ours, theirs := p.ours.call(t, c), p.theirs.call(t, c)
	compareAll(t, c, ours, theirs)
	return ours
}

// compareAll fails t if the responses to c differ in content or form.
func compareAll(t *testing.T, c call, ours, theirs response) {
	t.Helper()
	if d := difference(t, c, ours, theirs); d != "" {
		t.Error(d)
	}
}

// difference describes where the responses to c differ in content or form.
func difference(t *testing.T, c call, ours, theirs response) string {
	t.Helper()
	if ours.code != theirs.code || ours.header.Get("Content-Type") != theirs.header.Get("Content-Type") ||
		ours.header.Get("Retry-After") != theirs.header.Get("Retry-After") || ours.header.Get("Vary") != theirs.header.Get("Vary") ||
		ours.header.Get("Content-Encoding") != theirs.header.Get("Content-Encoding") ||
		!slices.Equal(ours.header["Warning"], theirs.header["Warning"]) {
		return fmt.Sprintf("%s %s %v:\ngot  %d %v %.300s\nwant %d %v %.300s", c.method, c.path, c.header, ours.code, ours.header, ours.body, theirs.code, theirs.header, theirs.body)
	}
	got, want := plain(t, ours), plain(t, theirs)
	if strings.Contains(c.header["Accept"], "Table") {
		got, want = ages.ReplaceAll(got, nil), ages.ReplaceAll(want, nil)
	}
	if bytes.Equal(got, want) {
		return ""
	}
	at := 0
	for at < min(len(got), len(want)) && got[at] == want[at] {
		at++
	}
	at = max(0, at-50)
	return fmt.Sprintf("%s %s %v: from byte %d on\ngot  %.300q\nwant %.300q", c.method, c.path, c.header, at, got[min(at, len(got)):], want[min(at, len(want)):])
}

// ages matches the table cells that show an age, which on a slow machine can be minutes.
var ages = regexp.MustCompile(`\b(\d+[hms])+\b`)

// plain is the body without its compression.
func plain(t *testing.T, a response) []byte {
	if a.header.Get("Content-Encoding") != "gzip" {
		return a.body
	}
	z, err := gzip.NewReader(bytes.NewReader(a.body))
	if err != nil {
		t.Fatal(err)
	}
	body, err := io.ReadAll(z)
	if err != nil {
		t.Fatal(err)
	}
	return body
}

var readAccepts = []string{
	"", "*/*", "application/json", "application/yaml", "application/vnd.kubernetes.protobuf", "application/json;pretty=1",
	"application/json;as=Table;v=v1;g=meta.k8s.io", "application/json;as=Table;v=v1beta1;g=meta.k8s.io,application/json", "application/yaml;as=Table;v=v1;g=meta.k8s.io",
	"application/vnd.kubernetes.protobuf;as=Table;v=v1;g=meta.k8s.io", "application/json;as=Table;v=v9;g=meta.k8s.io,application/yaml",
	"application/json;as=PartialObjectMetadata;v=v1;g=meta.k8s.io", "application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io",
	"application/json;as=PartialObjectMetadataList;v=v1beta1;g=meta.k8s.io", "application/yaml;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io",
	"application/vnd.kubernetes.protobuf;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io", "application/vnd.kubernetes.protobuf;as=PartialObjectMetadata;v=v1;g=meta.k8s.io",
	"text/html", "application/*", "application/json;stream=watch", "application/cbor", "application/json;q=0.1,application/yaml;q=0.9", "application/json;sv=v1", "application/json;as=Nothing;v=v1;g=meta.k8s.io", ";;;", "text/html,*/*",
}

var readPaths = []string{
	"/api/v1/configmaps", "/api/v1/namespaces/a/configmaps", "/api/v1/namespaces/none/configmaps", "/api/v1/namespaces/a/configmaps/c1", "/api/v1/namespaces/a/configmaps/none",
	"/api/v1/pods", "/api/v1/namespaces/a-b/pods/p", "/api/v1/nodes", "/api/v1/nodes/n1", "/api/v1/namespaces", "/api/v1/namespaces/a", "/api/v1/namespaces/a/",
	"/apis/autoscaling/v1/namespaces/a/horizontalpodautoscalers/h", "/apis/autoscaling/v2/horizontalpodautoscalers", "/apis/autoscaling/v1/horizontalpodautoscalers",
	"/api/v1/services", "/api/v1/endpoints", "/api/v1/secrets", "/api/v1/namespaces/a/pods/p/status",
}

func TestReadsMatchUpstream(t *testing.T) {
	p := newPair(t)
	p.seed(t)
	for _, path := range readPaths {
		for _, accept := range readAccepts {
			p.same(t, call{method: "GET", path: path, header: map[string]string{"Accept": accept}})
		}
	}
	for _, query := range []string{
		"pretty=true", "pretty=0", "pretty=x", "export=1", "export=0", "limit=2", "limit=-1", "limit=x", "limit=0", "watch=0", "watch=false", "timeoutSeconds=x", "timeoutSeconds=1",
		"labelSelector=odd%3Dtrue", "labelSelector=((", "labelSelector=odd+in+(true,false),!x", "fieldSelector=metadata.name%3Dc1", "fieldSelector=metadata.namespace%3Da", "fieldSelector=metadata.name%3Dc1,metadata.namespace%3Da",
		"fieldSelector=metadata.name!%3Dc1", "fieldSelector=foo%3Dbar", "fieldSelector=metadata.name", "fieldSelector=spec.nodeName%3Dn1", "fieldSelector=spec.host%3Dn1",
		"resourceVersion=0", "resourceVersion=1", "resourceVersion=x", "resourceVersion=-1", "resourceVersionMatch=Exact", "resourceVersionMatch=NotOlderThan", "resourceVersion=0&resourceVersionMatch=Exact", "resourceVersion=1&resourceVersionMatch=Foo",
		"resourceVersion=1&resourceVersionMatch=NotOlderThan&continue=x", "sendInitialEvents=true", "continue=x", "continue=e30", "resourceVersion=1&continue=x", "limit=1&resourceVersion=0", "includeObject=Object", "includeObject=None", "includeObject=x", "unknown=1", "%zz=1&limit=1", "dryRun=All",
	} {
		for _, path := range []string{"/api/v1/configmaps", "/api/v1/namespaces/a/configmaps", "/api/v1/pods", "/api/v1/nodes", "/api/v1/namespaces/a/configmaps/c1"} {
			for _, accept := range []string{"", "application/json;as=Table;v=v1;g=meta.k8s.io", "application/yaml"} {
				p.same(t, call{method: "GET", path: path + "?" + query, header: map[string]string{"Accept": accept}})
			}
		}
	}
	for _, agent := range []string{"curl/8", "Wget/1", "Mozilla/5.0 x", "kubectl"} {
		p.same(t, call{method: "GET", path: "/api/v1/namespaces/a/configmaps", header: map[string]string{"User-Agent": agent}})
		p.same(t, call{method: "GET", path: "/api/v1/namespaces/a/configmaps/none", header: map[string]string{"User-Agent": agent}})
	}
}

func TestRoutesMatchUpstream(t *testing.T) {
	p := newPair(t)
	p.seed(t)
	for _, path := range []string{
		"/api/v1/nothing", "/api/v1/pods/p", "/api/v1/namespaces/a/nodes", "/api/v1/namespaces/a/nodes/n1", "/api/v1/namespaces/a/namespaces", "/api/v1/namespaces/a/pods/p/nothing",
		"/api/v1/namespaces/a/pods/p/status/more", "/api/v1/namespaces/a/configmaps/c1", "/api/v1/configmaps", "/api/v1/nodes", "/api/v1/nodes/n1", "/api/v1/namespaces/a/configmaps",
		"/api/v1/proxy/namespaces/a/services/s", "/apis/autoscaling/v1/nothing", "/api/v1/namespaces/a/pods/p/binding", "/api/v1/namespaces/a/bindings", "/api/v1/watch/configmaps/x", "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews",
		"/apis/authorization.k8s.io/v1/localsubjectaccessreviews", "/api/v1/namespaces/a/pods/p/exec/more", "/api/v1/watch/namespaces/a/pods/p/status",
	} {
		for _, method := range []string{"GET", "HEAD", "OPTIONS", "POST", "PUT", "PATCH", "DELETE", "BREW"} {
			exists := path == "/api/v1/nodes/n1" || strings.HasSuffix(path, "configmaps") || strings.HasSuffix(path, "/c1") || path == "/api/v1/nodes"
			if method == "DELETE" && exists {
				continue // would change the compared state
			}
			if c := (call{method: method, path: path}); method != "HEAD" {
				ours, theirs := p.ours.call(t, c), p.theirs.call(t, c)
				if ours.code != theirs.code || !bytes.Equal(ours.body, theirs.body) {
					t.Errorf("%s %s:\ngot  %d %.400q\nwant %d %.400q", method, path, ours.code, ours.body, theirs.code, theirs.body)
				}
				if allow := ours.header.Get("Allow"); allow != "" {
					t.Errorf("%s %s: Allow %q, which upstream does not send", method, path, allow)
				}
			}
		}
	}
}

// TestReadsDecodeNothing checks that reads decode no object whose encoding is cached.
func TestReadsDecodeNothing(t *testing.T) {
	p := newPair(t)
	p.seed(t)
	reads, watches := []call{}, []call{}
	for _, accept := range []string{"application/json", "application/vnd.kubernetes.protobuf", "application/yaml", "application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io", "application/vnd.kubernetes.protobuf;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io"} {
		for _, path := range []string{"/api/v1/pods", "/api/v1/namespaces/a/configmaps", "/api/v1/pods?fieldSelector=spec.nodeName%3Dn1", "/apis/autoscaling/v1/horizontalpodautoscalers", "/api/v1/namespaces/a/pods/p"} {
			if strings.HasSuffix(path, "/p") {
				accept = strings.ReplaceAll(accept, "MetadataList", "Metadata")
			}
			reads = append(reads, call{method: "GET", path: path, header: map[string]string{"Accept": accept}})
		}
		watches = append(watches, call{method: "GET", path: "/api/v1/pods?watch=1&allowWatchBookmarks=1", header: map[string]string{"Accept": strings.Replace(accept, "yaml", "json", 1)}})
	}
	all := func() {
		for _, c := range reads {
			p.ours.call(t, c)
		}
		for _, c := range watches {
			p.watchInitial(t, c)
		}
	}
	p.ours.must(t, reads[0])
	canonical := p.ours.decodes()
	p.ours.must(t, call{method: "GET", path: "/api/v1/pods", header: map[string]string{"Accept": "application/vnd.kubernetes.protobuf"}})
	if n := p.ours.decodes() - canonical; n != 0 {
		t.Errorf("a list in the storage media type decoded %d objects, want 0", n)
	}
	all() // makes the other forms, once
	before := p.ours.decodes()
	all()
	if n := p.ours.decodes() - before; n != 0 {
		t.Errorf("%d repeated reads decoded %d objects, want 0", len(reads)+len(watches), n)
	}
}

// decodes counts the decodings of cached bytes over all resources.
func (s *side) decodes() (n uint64) {
	for _, r := range s.registry.Resources() {
		n += r.Codec().Decodes()
	}
	return n
}

// watchInitial reads a watch that allows bookmarks up to that which ends the initial events.
func (p *pair) watchInitial(t *testing.T, c call) {
	t.Helper()
	_, in := p.openWatch(t, c.path, c.header["Accept"])
	var received []byte
	for !bytes.Contains(received, []byte("BOOKMARK")) {
		b, err := in.ReadByte()
		if err != nil {
			t.Fatalf("%s as %s: got %q and error %v, want a bookmark", c.path, c.header["Accept"], received, err)
		}
		received = append(received, b)
	}
	if !bytes.Contains(received, []byte("ADDED")) {
		t.Errorf("%s as %s: got %q, want an ADDED event", c.path, c.header["Accept"], received)
	}
}

func TestLargeListsAreCompressed(t *testing.T) {
	p := newPair(t)
	p.ours.must(t, post("/api/v1/namespaces", `{"metadata":{"name":"a"}}`))
	value := strings.Repeat("0123456789", 9000)
	for i := range 3 {
		p.ours.must(t, post("/api/v1/namespaces/a/configmaps", fmt.Sprintf(`{"metadata":{"name":"c%d"},"data":{"k":"%s"}}`, i, value)))
	}
	for _, encoding := range []string{"", "gzip", "gzip;q=1", "deflate, gzip", "identity"} {
		for _, path := range []string{"/api/v1/configmaps", "/api/v1/namespaces/a/configmaps?limit=1", "/api/v1/namespaces/a/configmaps/c0", "/api/v1/configmaps?pretty=1"} {
			for _, accept := range []string{"application/json", "application/yaml", "application/vnd.kubernetes.protobuf"} {
				a := p.same(t, call{method: "GET", path: path, header: map[string]string{"Accept": accept, "Accept-Encoding": encoding}})
				if a.header.Get("Content-Length") == "" {
					t.Errorf("%s in %s: got no Content-Length", path, encoding)
				}
			}
		}
	}
}

func TestPagesMatchUpstream(t *testing.T) {
	p := newPair(t)
	p.seed(t)
	for _, base := range []string{"/api/v1/configmaps?limit=2", "/api/v1/namespaces/a/configmaps?limit=1", "/api/v1/configmaps?limit=2&labelSelector=odd%3Dtrue"} {
		path := base
		for page := 0; path != ""; page++ {
			if page > 10 {
				t.Fatalf("%s: got more than 10 pages", base)
			}
			a := p.same(t, call{method: "GET", path: path})
			path = ""
			if _, rest, ok := strings.Cut(string(a.body), `"continue":"`); ok {
				token, _, _ := strings.Cut(rest, `"`)
				path = base + "&continue=" + url.QueryEscape(token)
			}
		}
	}
}
