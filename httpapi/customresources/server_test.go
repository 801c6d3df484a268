package customresources_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"k8s.io/apiextensions-apiserver/pkg/apihelpers"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	clientset "k8s.io/apiextensions-apiserver/pkg/client/clientset/clientset"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/version"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizerfactory"
	"k8s.io/apiserver/pkg/endpoints/discovery/aggregated"
	"k8s.io/apiserver/pkg/endpoints/filters"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/kube-openapi/pkg/validation/spec"
	"sigs.k8s.io/yaml"

	"github.com/larder-io/larder/httpapi"
	"github.com/larder-io/larder/httpapi/customresources"
	"github.com/larder-io/larder/internal/admission"
	"github.com/larder-io/larder/internal/proctest"
	"github.com/larder-io/larder/internal/registry"
	"github.com/larder-io/larder/internal/registry/registrytest"
	"github.com/larder-io/larder/kv"
	"github.com/larder-io/larder/kv/kvtest"
)

// server is an API server with custom resources and a store in memory, and a client for its CRDs.
type server struct {
	store      *kvtest.Memory
	http       *httpapi.Server
	registry   *registry.Registry
	extensions *customresources.Extensions
	crds       clientset.Interface
}

// newServer runs a server until the test ends.
func newServer(t testing.TB, change ...func(*registry.Config)) *server {
	t.Helper()
	return newServerOf(t, func(*customresources.Config) {}, change...)
}

// newServerOf is newServer with a change of the configuration of custom resources.
func newServerOf(t testing.TB, configure func(*customresources.Config), change ...func(*registry.Config)) *server {
	t.Helper()
	back := registrytest.New(t, nil, change...)
	s := &server{store: back.Store, registry: back.Registry}
	everything := aggregated.NewResourceManager("apis")
	webhooks, err := admission.NewWebhooks(admission.NewServiceResolver(back.Registry, false), back.ClientConfig, nil, nil)
	must(t, err)
	config := customresources.Config{
		Registry: back.Registry, ClientConfig: back.ClientConfig, Webhooks: webhooks, Alone: true,
		Authorizer: authorizerfactory.NewAlwaysAllowAuthorizer(), Discovery: everything.WithSource(aggregated.CRDSource),
		Schemas:  func() (map[string]*spec.Schema, error) { return s.http.Schemas() },
		Complete: func() bool { return true }, MinRequestTimeout: time.Minute,
	}
	configure(&config)
	s.extensions, err = customresources.New(config)
	must(t, err)
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	pair := httptest.NewTLSServer(nil)
	defer pair.Close()
	s.http, err = httpapi.New(httpapi.Config{
		Registry: back.Registry, Listener: listener, TLS: pair.TLS.Clone(),
		Access:     httpapi.Access{Authorizer: authorizerfactory.NewAlwaysAllowAuthorizer()},
		Version:    &version.Info{Major: "1", Minor: "36", EmulationMajor: "1", EmulationMinor: "36", GitVersion: "v1.36.3"},
		Delegation: httpapi.Delegation{Extensions: s.extensions, Discovery: everything},
	})
	must(t, err)
	back.Start(t)
	kvtest.RunUntilEnd(t, s.extensions.Run)
	kvtest.RunUntilEnd(t, s.http.Run)
	kvtest.RunUntilEnd(t, s.extensions.Follow)
	must(t, s.extensions.WaitSynced(t.Context()))
	s.crds, err = clientset.NewForConfig(back.ClientConfig)
	must(t, err)
	return s
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// define creates a CRD from YAML and waits until it is established.
func (s *server) define(t testing.TB, text string, change ...func(*apiextensionsv1.CustomResourceDefinition)) *apiextensionsv1.CustomResourceDefinition {
	t.Helper()
	crd := new(apiextensionsv1.CustomResourceDefinition)
	must(t, yaml.UnmarshalStrict([]byte(text), crd))
	for _, fn := range change {
		fn(crd)
	}
	client := s.crds.ApiextensionsV1().CustomResourceDefinitions()
	w, err := client.Watch(t.Context(), metav1.ListOptions{FieldSelector: "metadata.name=" + crd.Name})
	must(t, err)
	defer w.Stop()
	_, err = client.Create(t.Context(), crd, metav1.CreateOptions{})
	must(t, err)
	for event := range w.ResultChan() {
		now, ok := event.Object.(*apiextensionsv1.CustomResourceDefinition)
		if !ok {
			t.Fatalf("watch of CRDs: event %v", event)
		}
		if apihelpers.IsCRDConditionTrue(now, apiextensionsv1.Established) {
			return now
		}
	}
	t.Fatal("the watch of CRDs ended")
	return nil
}

// change updates a CRD. The server sees the change a little later.
func (s *server) change(t testing.TB, name string, change func(*apiextensionsv1.CustomResourceDefinition)) {
	t.Helper()
	client := s.crds.ApiextensionsV1().CustomResourceDefinitions()
	for {
		crd, err := client.Get(t.Context(), name, metav1.GetOptions{})
		must(t, err)
		change(crd)
		_, err = client.Update(t.Context(), crd, metav1.UpdateOptions{})
		if err == nil {
			return
		}
		if !strings.Contains(err.Error(), "the object has been modified") {
			t.Fatal(err)
		}
	}
}

// put writes a value to the store directly and returns its revision.
func (s *server) put(t testing.TB, key, value string) int64 {
	t.Helper()
	item, _, _, err := s.store.Get(t.Context(), key)
	must(t, err)
	result, err := s.store.Put(t.Context(), key, []byte(value), kv.PutOptions{IfRevision: item.Revision})
	must(t, err)
	if !result.Committed {
		t.Fatalf("another write changed %s", key)
	}
	return result.Revision
}

// response is a server's response.
type response struct {
	code   int
	header http.Header
	body   string
}

func (a response) String() string { return fmt.Sprintf("%d %s", a.code, a.body) }

// call is a request.
type call struct{ method, path, accept, kind, body string }

func (c call) request(ctx context.Context) *http.Request {
	req := httptest.NewRequestWithContext(ctx, c.method, "https://larder.invalid"+c.path, strings.NewReader(c.body))
	req.RequestURI = ""
	if c.body == "" {
		req.Body = http.NoBody
	}
	if c.accept != "" {
		req.Header.Set("Accept", c.accept)
	}
	if c.kind != "" {
		req.Header.Set("Content-Type", c.kind)
	}
	return req
}

// send sends a request to the server and reads the response.
func (s *server) send(t testing.TB, c call) response {
	t.Helper()
	resp, err := s.http.RoundTripper().RoundTrip(c.request(t.Context()))
	must(t, err)
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	must(t, err)
	return response{resp.StatusCode, resp.Header, string(body)}
}

func (s *server) get(t testing.TB, path string) response {
	t.Helper()
	return s.send(t, call{method: http.MethodGet, path: path})
}

// do sends a write, which must succeed.
func (s *server) do(t testing.TB, method, path, kind, body string) response {
	t.Helper()
	a := s.send(t, call{method: method, path: path, kind: kind, body: body})
	if a.code >= 300 {
		t.Fatalf("%s %s: %s", method, path, a)
	}
	return a
}

// upstream sends a request to upstream's handler, which decodes objects and encodes them again.
func (s *server) upstream(t testing.TB, c call) response {
	t.Helper()
	admin := &user.DefaultInfo{Name: "admin", Groups: []string{user.SystemPrivilegedGroup}}
	withUser := http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		s.extensions.ServeHTTP(w, req.WithContext(request.WithUser(req.Context(), admin)))
	})
	handler := filters.WithRequestInfo(filters.WithAuditInit(withUser), &request.RequestInfoFactory{
		APIPrefixes: sets.NewString("api", "apis"), GrouplessAPIPrefixes: sets.NewString("api"),
	})
	w := httptest.NewRecorder()
	filters.WithRequestReceivedTimestamp(handler).ServeHTTP(w, c.request(t.Context()))
	return response{w.Code, w.Result().Header, w.Body.String()}
}

// stream is an open watch.
type stream struct {
	body   io.ReadCloser
	events *json.Decoder
}

func (s *server) watch(t testing.TB, path string) *stream {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), proctest.Patience)
	resp, err := s.http.RoundTripper().RoundTrip(call{method: http.MethodGet, path: path}.request(ctx))
	must(t, err)
	if resp.StatusCode != http.StatusOK {
		body, _ := io.ReadAll(resp.Body)
		t.Fatalf("%s: %d %s", path, resp.StatusCode, body)
	}
	t.Cleanup(func() { cancel(); resp.Body.Close() })
	return &stream{resp.Body, json.NewDecoder(resp.Body)}
}

// next returns the type and the object of the next event, or false at the end of the stream.
func (s *stream) next(t testing.TB) (watch.EventType, string, bool) {
	t.Helper()
	var event struct {
		Type   watch.EventType
		Object json.RawMessage
	}
	err := s.events.Decode(&event)
	switch {
	case errors.Is(err, io.EOF):
		return "", "", false
	case err != nil:
		t.Fatal(err)
	}
	return event.Type, string(event.Object), true
}

// eventually repeats a request until want accepts the response.
func (s *server) eventually(t testing.TB, c call, want func(response) bool) response {
	t.Helper()
	var a response
	proctest.Eventually(t, fmt.Sprintf("%s %s", c.method, c.path), func() error {
		if a = s.send(t, c); want(a) {
			return nil
		}
		return fmt.Errorf("got %s", a)
	})
	return a
}

func contains(t testing.TB, text string, parts ...string) {
	t.Helper()
	for _, part := range parts {
		if !strings.Contains(text, part) {
			t.Errorf("%s is not in %s", part, text)
		}
	}
}

func lacks(t testing.TB, text string, parts ...string) {
	t.Helper()
	for _, part := range parts {
		if strings.Contains(text, part) {
			t.Errorf("%s is in %s", part, text)
		}
	}
}

// compact returns JSON without insignificant whitespace.
func compact(t testing.TB, text string) string {
	t.Helper()
	var out bytes.Buffer
	must(t, json.Compact(&out, []byte(text)))
	return out.String()
}
