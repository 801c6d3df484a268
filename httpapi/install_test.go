package httpapi

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"regexp"
	runtimelib "runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/version"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizerfactory"
	"k8s.io/apiserver/pkg/endpoints"
	upstreamdiscovery "k8s.io/apiserver/pkg/endpoints/discovery"
	"k8s.io/apiserver/pkg/endpoints/filters"
	apirequest "k8s.io/apiserver/pkg/endpoints/request"
	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/apiserver/pkg/server/routes"
	"k8s.io/kubernetes/pkg/api/legacyscheme"

	"github.com/larder-io/larder/httpapi/discovery"
	"github.com/larder-io/larder/httpapi/openapi"
	"github.com/larder-io/larder/internal/proctest/testcert"
	"github.com/larder-io/larder/internal/registry"
	"github.com/larder-io/larder/internal/registry/registrytest"
	"github.com/larder-io/larder/kv/kvtest"
)

func testVersion() *version.Info {
	return &version.Info{Major: "1", Minor: "36", GitVersion: "v1.36.3", GitTreeState: "clean", Platform: "linux/amd64"}
}

// side is a server of the API: Larder, or upstream's handlers over storages that are constructed in the same way.
type side struct {
	name     string
	registry *registry.Registry
	do       func(*http.Request) *http.Response
}

// newLarder runs a server without a listener, for requests from within the process.
func newLarder(t testing.TB, change ...func(*Config)) (*side, *Server) {
	t.Helper()
	back := registrytest.New(t, nil)
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	config := Config{
		Registry: back.Registry,
		Listener: listener,
		Access:   Access{Authorizer: authorizerfactory.NewAlwaysAllowAuthorizer()},
		Version:  testVersion(),
		// Documents of everything take long on a slow machine.
		Timeouts: Timeouts{RequestTimeout: 5 * time.Minute},
	}
	config.TLS, _ = testcert.Loopback(t)
	for _, fn := range change {
		fn(&config)
	}
	s, err := New(config)
	if err != nil {
		t.Fatal(err)
	}
	kvtest.RunUntilEnd(t, s.Run)
	back.Start(t)
	return &side{name: "larder", registry: back.Registry, do: func(req *http.Request) *http.Response {
		resp, err := s.RoundTripper().RoundTrip(req)
		if err != nil {
			t.Fatalf("%s %s: %v", req.Method, req.URL, err)
		}
		return resp
	}}, s
}

// newUpstream installs the same storages by upstream's installer, behind upstream's
// router.
func newUpstream(t testing.TB) *side {
	t.Helper()
	back := registrytest.New(t, nil)
	back.Start(t)
	h, err := upstreamHandler(back.Registry)
	if err != nil {
		t.Fatal(err)
	}
	return &side{name: "upstream", registry: back.Registry, do: func(req *http.Request) *http.Response {
		w := httptest.NewRecorder()
		req.RequestURI = req.URL.RequestURI()
		h.ServeHTTP(w, req)
		return w.Result()
	}}
}

// apiRoot is below which path a group is served.
func apiRoot(core bool) string {
	if core {
		return "api"
	}
	return "apis"
}

// superUser is the user of every client if there is no authenticator.
var superUser = &user.DefaultInfo{Name: user.APIServerUser, Groups: []string{user.AllAuthenticated, user.SystemPrivilegedGroup}}

func upstreamHandler(r *registry.Registry) (http.Handler, error) {
	director, err := upstreamDirector(r, func(*endpoints.APIGroupVersion) {})
	if err != nil {
		return nil, err
	}
	withUser := http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		director.ServeHTTP(w, req.WithContext(apirequest.WithUser(req.Context(), superUser)))
	})
	return filters.WithRequestInfo(filters.WithAuditInit(filters.WithWarningRecorder(withUser)), &apirequest.RequestInfoFactory{
		APIPrefixes:          sets.NewString("api", "apis"),
		GrouplessAPIPrefixes: sets.NewString("api"),
	}), nil
}

// upstreamDirector returns upstream's router of r, without filters. change may change the installation of each
// version.
func upstreamDirector(r *registry.Registry, change func(*endpoints.APIGroupVersion)) (http.Handler, error) {
	chain := func(h http.Handler) http.Handler { return h }
	api := genericapiserver.NewAPIServerHandler("upstream", legacyscheme.Codecs, chain, nil)
	routes.Version{Version: testVersion()}.Install(api.GoRestfulContainer)
	legacy := upstreamdiscovery.NewLegacyRootAPIHandler(upstreamdiscovery.DefaultAddresses{}, legacyscheme.Codecs, "/api")
	api.GoRestfulContainer.Add(legacy.WebService())
	models := openapi.NewModels()
	// Upstream identifies equal resources by their storage prefix: config.go, Complete.
	kinds := runtime.NewEquivalentResourceRegistryWithIdentity(func(resource schema.GroupResource) string {
		if resource.Resource == "events" {
			return "/events"
		}
		return ""
	})
	for _, g := range r.Groups() {
		converter := models.Converter(g)
		if g.Name != "" {
			group := upstreamdiscovery.NewAPIGroupHandler(g.Info.NegotiatedSerializer, discovery.Group(g))
			api.GoRestfulContainer.Add(group.WebService())
		}
		for _, v := range g.Versions {
			scheme := g.Info.Scheme
			gv := &endpoints.APIGroupVersion{
				Storage:                    g.Info.VersionedResourcesStorageMap[v.Version],
				Root:                       "/" + apiRoot(g.Name == ""),
				GroupVersion:               v.GroupVersion,
				OptionsExternalVersion:     g.Info.OptionsExternalVersion,
				Serializer:                 g.Info.NegotiatedSerializer,
				ParameterCodec:             g.Info.ParameterCodec,
				Typer:                      scheme,
				Creater:                    scheme,
				Convertor:                  scheme,
				ConvertabilityChecker:      scheme,
				Defaulter:                  scheme,
				UnsafeConvertor:            runtime.UnsafeObjectConvertor(scheme),
				Namer:                      runtime.Namer(meta.NewAccessor()),
				TypeConverter:              converter,
				EquivalentResourceRegistry: kinds,
				Authorizer:                 authorizerfactory.NewAlwaysAllowAuthorizer(),
				MaxRequestBodyBytes:        3 << 20,
			}
			change(gv)
			if _, _, err := gv.InstallREST(api.GoRestfulContainer); err != nil {
				return nil, err
			}
		}
	}
	return api.Director, nil
}

// call is one request to either side.
type call struct {
	method, path string
	header       map[string]string
	body         string
}

// response is the part of a response that tests compare.
type response struct {
	code   int
	header http.Header
	body   []byte
}

func (s *side) call(t testing.TB, c call) response {
	t.Helper()
	req, err := http.NewRequest(c.method, "http://larder.test"+c.path, strings.NewReader(c.body))
	if err != nil {
		t.Fatal(err)
	}
	if c.body != "" {
		req.Header.Set("Content-Type", "application/json")
	}
	req.Header.Set("User-Agent", "tester/1.0")
	for name, value := range c.header {
		req.Header.Set(name, value)
	}
	resp := s.do(req)
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatalf("%s: %s %s: %v", s.name, c.method, c.path, err)
	}
	return response{code: resp.StatusCode, header: resp.Header, body: body}
}

// must is call for requests that prepare a test.
func (s *side) must(t testing.TB, c call) response {
	t.Helper()
	a := s.call(t, c)
	if a.code >= 300 {
		t.Fatalf("%s: %s %s: got status %d, want success: %s", s.name, c.method, c.path, a.code, a.body)
	}
	return a
}

// sameHeaders are compared between the two sides, as far as handlers set them.
var sameHeaders = []string{"Content-Type", "Warning", "Retry-After"}

// compare reports the differences between two responses, except values that each server generates: UIDs, times and
// revisions.
func compare(t testing.TB, ours, theirs response) {
	t.Helper()
	if ours.code != theirs.code {
		t.Errorf("code: got %d, upstream %d", ours.code, theirs.code)
	}
	for _, name := range sameHeaders {
		if got, want := ours.header[name], theirs.header[name]; !slices.Equal(got, want) {
			t.Errorf("%s: got %q, upstream %q", name, got, want)
		}
	}
	if got, want := scrub(ours.body), scrub(theirs.body); !bytes.Equal(got, want) {
		t.Errorf("body:\ngot      %s\nupstream %s", got, want)
	}
}

// scrub masks the values in a JSON body that vary between servers. Other bodies, and the order of keys, stay as they
// are.
func scrub(body []byte) []byte {
	body = anyUUID.ReplaceAll(body, []byte("*"))
	body = quotedTime.ReplaceAll(body, []byte("$1*"))
	var v any
	if json.Unmarshal(body, &v) != nil {
		return body
	}
	blank(v)
	out, err := json.Marshal(v)
	if err != nil {
		return body
	}
	return out
}

var anyUUID = regexp.MustCompile(`[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}`)

// quotedTime is a time in an object that a message quotes.
var quotedTime = regexp.MustCompile(`(\\")\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ`)

func blank(v any) {
	switch v := v.(type) {
	case []any:
		for _, e := range v {
			blank(e)
		}
	case map[string]any:
		for _, name := range slices.Collect(maps.Keys(v)) {
			switch name {
			case "uid", "resourceVersion", "creationTimestamp", "deletionTimestamp", "time", "firstTimestamp":
				v[name] = "*"
			case "lastTransitionTime": // the present, unless a client has set it
				if at, err := time.Parse(time.RFC3339, fmt.Sprint(v[name])); err == nil && time.Since(at) < time.Hour {
					v[name] = "*"
				}
			default:
				blank(v[name])
			}
			// Entries are ordered by time, and the sides may have written in different seconds.
			if entries, ok := v[name].([]any); ok && name == "managedFields" {
				slices.SortFunc(entries, func(a, b any) int { return strings.Compare(fmt.Sprint(a), fmt.Sprint(b)) })
			}
		}
	}
}

// observedAdmission records the depth of the call stack at which each request is admitted.
type observedAdmission struct {
	mu     sync.Mutex
	depths []int    // guarded by mu
	kinds  []string // guarded by mu
}

// take returns the records since the last call.
func (o *observedAdmission) take() (depths []int, kinds []string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	depths, kinds = o.depths, o.kinds
	o.depths, o.kinds = nil, nil
	return depths, kinds
}

func (*observedAdmission) Handles(admission.Operation) bool { return true }

func (o *observedAdmission) Admit(_ context.Context, a admission.Attributes, _ admission.ObjectInterfaces) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.depths = append(o.depths, runtimelib.Callers(0, make([]uintptr, 1<<12)))
	o.kinds = append(o.kinds, string(a.GetOperation())+" "+a.GetKind().Kind+" "+a.GetName()+" "+a.GetUserInfo().GetName())
	return nil
}

func (o *observedAdmission) Validate(context.Context, admission.Attributes, admission.ObjectInterfaces) error {
	return nil
}

// TestAdmissionDoesNotDeepen checks that a request does not lengthen the admission chain of later requests.
func TestAdmissionDoesNotDeepen(t *testing.T) {
	seen := &observedAdmission{}
	s, _ := newLarder(t, func(c *Config) { c.Admission = seen })
	s.must(t, post("/api/v1/namespaces", `{"metadata":{"name":"default"}}`))
	round := func() (deepest int) {
		seen.take()
		s.must(t, post(maps_, `{"metadata":{"name":"a"}}`))
		s.must(t, patch("merge-patch+json", maps_+"/a", `{"data":{"k":"v"}}`))
		s.must(t, put(maps_+"/a", `{"metadata":{"name":"a"}}`))
		s.must(t, del(maps_+"/a"))
		depths, kinds := seen.take()
		// A write that finds newer data than the cache's is admitted again.
		want := []string{"CREATE", "UPDATE", "DELETE"}
		for i := range want {
			want[i] += " ConfigMap a " + user.APIServerUser
		}
		if got := slices.Compact(kinds); !slices.Equal(got, want) {
			t.Errorf("admitted %q, want %q", got, want)
		}
		return slices.Max(depths)
	}
	first := round()
	for i := range 20 {
		if deepest := round(); deepest != first {
			t.Fatalf("after %d rounds: got a call stack of depth %d, at first %d", i+1, deepest, first)
		}
	}
}
