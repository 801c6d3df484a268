package relay

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apiextensions "k8s.io/apiextensions-apiserver/pkg/client/clientset/clientset"
	typed "k8s.io/apiextensions-apiserver/pkg/client/clientset/clientset/typed/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"

	"github.com/larder-io/larder/internal/e2e/e2etest"
	"github.com/larder-io/larder/internal/proctest"
)

// response is a server's response to a request.
type response struct {
	code   int
	header http.Header
	body   []byte
}

// get requests a path. headers are names and values.
func get(t *testing.T, config *rest.Config, path string, headers ...string) response {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), proctest.Patience)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, config.Host+path, nil)
	if err != nil {
		t.Fatal(err)
	}
	for i := 0; i < len(headers); i += 2 {
		req.Header.Set(headers[i], headers[i+1])
	}
	return send(t, e2etest.HTTPClient(t, config), req)
}

// send sends a request and reads the response.
func send(t *testing.T, client *http.Client, req *http.Request) response {
	t.Helper()
	resp, err := client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return response{resp.StatusCode, resp.Header, body}
}

// anyRevision removes the resourceVersion of a list, which may differ between two servers.
func anyRevision(body []byte) string {
	before, after, _ := bytes.Cut(body, []byte(`"resourceVersion":"`))
	_, after, _ = bytes.Cut(after, []byte(`"`))
	return string(before) + string(after)
}

// TestCachedReadsMatchTheUpstream checks that cached reads equal the upstream's responses, and are served without the
// upstream.
func TestCachedReadsMatchTheUpstream(t *testing.T) {
	t.Parallel()
	u := startUpstream(t)
	reader := u.token(t, "reader", allowed([]string{"get", "list", "watch"}, []string{"*"}))
	client := u.client(t)
	for i := range 5 {
		if _, err := client.CoreV1().ConfigMaps("default").Create(t.Context(), configMap(fmt.Sprintf("c%d", i)), metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	r := u.startRelay(t)
	direct := *u.config
	direct.TLSClientConfig.CertData, direct.TLSClientConfig.KeyData, direct.CertFile, direct.KeyFile = nil, nil, "", ""
	direct.BearerToken = reader
	for _, path := range []string{
		"/api/v1/namespaces/default/configmaps?resourceVersion=0",
		"/api/v1/configmaps?resourceVersion=0&labelSelector=of%3Dtest",
		"/api/v1/namespaces/default/configmaps/c1?resourceVersion=0",
		"/api/v1/namespaces?resourceVersion=0",
		"/apis/rbac.authorization.k8s.io/v1/clusterroles?resourceVersion=0&limit=3",
		"/apis/apps/v1/deployments?resourceVersion=0",
	} {
		for _, accept := range []string{
			"application/json", "application/vnd.kubernetes.protobuf",
			"application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io,application/json",
			"application/json;as=Table;v=v1;g=meta.k8s.io,application/json",
		} {
			r.Eventually(t, "the relay responds like the upstream", func() error {
				want, got := get(t, &direct, path, "Accept", accept), get(t, r.as(reader), path, "Accept", accept)
				if want.code != got.code || want.header.Get("Content-Type") != got.header.Get("Content-Type") {
					return fmt.Errorf("%s as %s: %d %q, want %d %q: %s", path, accept, got.code, got.header.Get("Content-Type"), want.code, want.header.Get("Content-Type"), got.body)
				}
				if strings.Contains(accept, "protobuf") {
					if len(want.body) != len(got.body) {
						return fmt.Errorf("%s as %s: %q, want %q", path, accept, got.body, want.body)
					}
					return nil
				}
				if got, want := anyRevision(got.body), anyRevision(want.body); got != want {
					return fmt.Errorf("%s as %s:\n%s, want\n%s", path, accept, got, want)
				}
				return nil
			})
		}
	}
	// The upstream is paused, so the next responses come from caches.
	const newer = "&resourceVersion=1&resourceVersionMatch=NotOlderThan"
	page(t, r.as(reader), newer) // so that the relay has cached the right to it
	if err := u.Pause(); err != nil {
		t.Fatal(err)
	}
	if got := get(t, r.as(reader), "/api/v1/namespaces/default/configmaps?resourceVersion=0"); got.code != http.StatusOK {
		t.Errorf("a cached list without the upstream: %d %s", got.code, got.body)
	}
	first := page(t, r.as(reader), newer)
	if err := u.Signal(syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	var names []string
	for p := first; ; p = page(t, r.as(reader), "&continue="+url.QueryEscape(p.Continue)) { // the upstream accepts the cache's continue tokens
		for _, o := range p.Items {
			names = append(names, o.Name)
		}
		if p.ResourceVersion != first.ResourceVersion {
			t.Errorf("a page has revision %s, the first page has %s", p.ResourceVersion, first.ResourceVersion)
		}
		if p.Continue == "" {
			break
		}
	}
	if !slices.Equal(names, []string{"c0", "c1", "c2", "c3", "c4"}) {
		t.Errorf("the pages contain %q", names)
	}
}

// page lists two of the tests' ConfigMaps.
func page(t *testing.T, config *rest.Config, query string) (p corev1.ConfigMapList) {
	t.Helper()
	got := get(t, config, "/api/v1/namespaces/default/configmaps?limit=2&labelSelector=of%3Dtest"+query)
	if err := json.Unmarshal(got.body, &p); err != nil || got.code != http.StatusOK {
		t.Fatalf("%s: %d %v %s", query, got.code, err, got.body)
	}
	return p
}

// TestWritesAreForwarded checks that writes reach the upstream, and that a consistent read sees them.
func TestWritesAreForwarded(t *testing.T) {
	t.Parallel()
	u := startUpstream(t)
	r := u.startRelay(t)
	writer := kubernetes.NewForConfigOrDie(r.as(u.token(t, "writer", allowed([]string{"*"}, []string{"configmaps"})))).CoreV1().ConfigMaps("default")
	made, err := writer.Create(t.Context(), configMap("c"), metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	made.Data["a"] = "c"
	if _, err := writer.Update(t.Context(), made, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := writer.Update(t.Context(), made, metav1.UpdateOptions{}); !apierrors.IsConflict(err) {
		t.Errorf("update of an old version: %v", err)
	}
	if got, err := writer.Get(t.Context(), "c", metav1.GetOptions{}); err != nil || got.Data["a"] != "c" {
		t.Errorf("a consistent read after the write: %v, %v", got, err)
	}
	if err := writer.Delete(t.Context(), "c", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
}

// informer runs an informer of ConfigMaps until the test ends.
func informer(t *testing.T, config *rest.Config) cache.SharedIndexInformer {
	t.Helper()
	factory := informers.NewSharedInformerFactory(kubernetes.NewForConfigOrDie(config), 0)
	i := factory.Core().V1().ConfigMaps().Informer()
	ctx, cancel := context.WithCancel(context.Background())
	factory.Start(ctx.Done())
	t.Cleanup(func() { cancel(); factory.Shutdown() })
	bounded, end := context.WithTimeout(t.Context(), proctest.Patience)
	defer end()
	if !cache.WaitForCacheSync(bounded.Done(), i.HasSynced) {
		t.Fatal("the informer has not synced")
	}
	return i
}

// awaitCount waits until the informer has exactly want of the tests' ConfigMaps.
func awaitCount(t *testing.T, i cache.SharedIndexInformer, want int) {
	t.Helper()
	proctest.Eventually(t, "the informer sees the changes", func() error {
		n := 0
		for _, o := range i.GetStore().List() {
			if o.(*corev1.ConfigMap).Labels["of"] == "test" {
				n++
			}
		}
		if n != want {
			return fmt.Errorf("%d ConfigMaps, want %d", n, want)
		}
		return nil
	})
}

// TestInformersShareOneWatch checks that many informers cause one watch of the upstream.
func TestInformersShareOneWatch(t *testing.T) {
	t.Parallel()
	u := startUpstream(t)
	reader := u.token(t, "reader", allowed([]string{"get", "list", "watch"}, []string{"configmaps"}))
	r := u.startRelay(t)
	others := u.watches(t, "configmaps")
	var all []cache.SharedIndexInformer
	for range 10 {
		all = append(all, informer(t, r.as(reader)))
	}
	maps := u.client(t).CoreV1().ConfigMaps("default")
	for i := range 20 {
		if _, err := maps.Create(t.Context(), configMap(fmt.Sprintf("c%d", i)), metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	for _, i := range all {
		awaitCount(t, i, 20)
	}
	r.Eventually(t, "the relay has one watch", func() error { // the upstream may still count one that has ended
		if watches := u.watches(t, "configmaps") - others; watches < 1 || watches > 2 { // a second one proves how far the first has come
			return fmt.Errorf("the relay has %d watches of ConfigMaps", watches)
		}
		return nil
	})
}

// watches returns the number of open watches of a resource.
func (u *upstream) watches(t *testing.T, resource string) int {
	t.Helper()
	n := 0
	for line := range strings.Lines(string(get(t, u.config, "/metrics").body)) {
		if strings.HasPrefix(line, "apiserver_longrunning_requests{") && strings.Contains(line, `resource="`+resource+`"`) && strings.Contains(line, `verb="WATCH"`) {
			var value int
			if _, err := fmt.Sscan(line[strings.LastIndexByte(line, ' '):], &value); err != nil {
				t.Fatal(err)
			}
			n += value
		}
	}
	return n
}

// boxes is the path of a custom resource.
var boxes = schema.GroupVersionResource{Group: "example.com", Version: "v1", Resource: "boxes"}

// crd returns the CRD of boxes.
func crd() *apiextensionsv1.CustomResourceDefinition {
	spec := apiextensionsv1.JSONSchemaProps{Type: "object", Default: &apiextensionsv1.JSON{Raw: []byte("{}")}, Properties: map[string]apiextensionsv1.JSONSchemaProps{
		"size": {Type: "integer"}, "color": {Type: "string", Default: &apiextensionsv1.JSON{Raw: []byte(`"red"`)}},
	}}
	return &apiextensionsv1.CustomResourceDefinition{
		ObjectMeta: metav1.ObjectMeta{Name: "boxes.example.com"},
		Spec: apiextensionsv1.CustomResourceDefinitionSpec{
			Group: boxes.Group, Scope: apiextensionsv1.NamespaceScoped,
			Names: apiextensionsv1.CustomResourceDefinitionNames{Plural: "boxes", Singular: "box", Kind: "Box", ListKind: "BoxList"},
			Versions: []apiextensionsv1.CustomResourceDefinitionVersion{{
				Name: "v1", Served: true, Storage: true,
				Schema: &apiextensionsv1.CustomResourceValidation{OpenAPIV3Schema: &apiextensionsv1.JSONSchemaProps{
					Type: "object", Properties: map[string]apiextensionsv1.JSONSchemaProps{"spec": spec},
				}},
			}},
		},
	}
}

// createCRD creates the CRD of boxes and one box.
func createCRD(t *testing.T, u *upstream) typed.CustomResourceDefinitionInterface {
	t.Helper()
	crds := apiextensions.NewForConfigOrDie(u.config).ApiextensionsV1().CustomResourceDefinitions()
	if _, err := crds.Create(t.Context(), crd(), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	box := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "example.com/v1", "kind": "Box", "metadata": map[string]any{"name": "b"}, "spec": map[string]any{"size": int64(3)},
	}}
	u.Eventually(t, "the CRD is served", func() error {
		_, err := dynamic.NewForConfigOrDie(u.config).Resource(boxes).Namespace("default").Create(t.Context(), box, metav1.CreateOptions{})
		return ignoreExists(err)
	})
	return crds
}

// TestCustomResources checks that custom resources are cached, and that watches end when the CRD changes.
func TestCustomResources(t *testing.T) {
	t.Parallel()
	u := startUpstream(t)
	crds := createCRD(t, u)
	reader := u.token(t, "reader", allowed([]string{"get", "list", "watch"}, []string{"boxes"}))
	r := u.startRelay(t)
	direct := &rest.Config{Host: u.config.Host, BearerToken: reader, TLSClientConfig: rest.TLSClientConfig{Insecure: true}}
	const path = "/apis/example.com/v1/namespaces/default/boxes?resourceVersion=0"
	same := func() {
		t.Helper()
		for _, accept := range []string{"application/json", "application/json;as=Table;v=v1;g=meta.k8s.io", "application/yaml", "application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io"} {
			r.Eventually(t, "the relay responds like the upstream", func() error {
				want, got := get(t, direct, path, "Accept", accept), get(t, r.as(reader), path, "Accept", accept)
				if want.code != http.StatusOK || got.code != want.code || anyRevision(got.body) != anyRevision(want.body) {
					return fmt.Errorf("%s: %d %s, want %d %s", accept, got.code, got.body, want.code, want.body)
				}
				return nil
			})
		}
	}
	same()
	w, err := dynamic.NewForConfigOrDie(r.as(reader)).Resource(boxes).Watch(t.Context(), metav1.ListOptions{ResourceVersion: "0"})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Stop()
	if e := <-w.ResultChan(); e.Type != watch.Added {
		t.Fatalf("the first event is %v", e)
	}
	changed, err := crds.Get(t.Context(), "boxes.example.com", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	changed.Spec.Versions[0].AdditionalPrinterColumns = []apiextensionsv1.CustomResourceColumnDefinition{{Name: "Size", Type: "integer", JSONPath: ".spec.size"}}
	changed.Spec.Versions[0].Schema.OpenAPIV3Schema.Properties["spec"].Properties["weight"] = apiextensionsv1.JSONSchemaProps{Type: "integer", Default: &apiextensionsv1.JSON{Raw: []byte("1")}}
	if _, err := crds.Update(t.Context(), changed, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	awaitEnd(t, w) // the change alters objects without a new resourceVersion
	same()
	if err := crds.Delete(t.Context(), "boxes.example.com", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	r.Eventually(t, "the relay does not serve the deleted resource", func() error {
		if got := get(t, r.as(reader), path); got.code != http.StatusNotFound {
			return fmt.Errorf("%d %s", got.code, got.body)
		}
		return nil
	})
}

// TestUpstreamsRightsApply checks that cached reads need the rights that the upstream grants.
func TestUpstreamsRightsApply(t *testing.T) {
	t.Parallel()
	u := startUpstream(t)
	r := u.startRelay(t)
	some := u.token(t, "some", allowed([]string{"get", "list", "watch"}, []string{"configmaps"}))
	for _, path := range []string{"/api/v1/services?resourceVersion=0", "/api/v1/namespaces/kube-system/services?resourceVersion=0", "/api/v1/secrets?watch=1&resourceVersion=0", "/api/v1/services?watch=1&resourceVersion=0"} {
		if got := get(t, r.as(some), path); got.code != http.StatusForbidden || !bytes.Contains(got.body, []byte("system:serviceaccount:default:some")) {
			t.Errorf("%s: %d %s", path, got.code, got.body)
		}
		if got := get(t, r.as("none"), path); got.code != http.StatusUnauthorized {
			t.Errorf("%s with an unknown token: %d %s", path, got.code, got.body)
		}
		if got := get(t, r.as(""), path); got.code != http.StatusForbidden || !bytes.Contains(got.body, []byte("system:anonymous")) {
			t.Errorf("%s without a token: %d %s", path, got.code, got.body)
		}
	}
	w, err := kubernetes.NewForConfigOrDie(r.as(some)).CoreV1().ConfigMaps("default").Watch(t.Context(), metav1.ListOptions{ResourceVersion: "0"})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Stop()
	if err := u.client(t).RbacV1().ClusterRoleBindings().Delete(t.Context(), "some", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	awaitEnd(t, w)
}

// TestRelayMayNotReview checks that a relay without the right to create reviews forwards reads.
func TestRelayMayNotReview(t *testing.T) {
	t.Parallel()
	u := startUpstream(t)
	kubeconfig := u.kubeconfig(t)
	some := u.token(t, "some", allowed([]string{"list"}, []string{"configmaps"}))
	ctx, roles := t.Context(), u.client(t).RbacV1().ClusterRoles()
	role, err := roles.Get(ctx, "larder-relay", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	role.Rules = slices.DeleteFunc(role.Rules, func(rule rbacv1.PolicyRule) bool { return slices.Contains(rule.Resources, "subjectaccessreviews") })
	if _, err := roles.Update(ctx, role, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	r := startRelay(t, "--upstream", kubeconfig)
	r.Eventually(t, "the list is forwarded", func() error { // the upstream may not have applied the change yet
		if got := get(t, r.as(some), "/api/v1/configmaps?resourceVersion=0"); got.code != http.StatusOK {
			return fmt.Errorf("%d %s", got.code, got.body)
		}
		if text := r.Output(); !strings.Contains(text, "nothing is served from a cache") {
			return fmt.Errorf("the log does not mention the missing right: %s", text)
		}
		return nil
	})
	if got := get(t, r.as(some), "/api/v1/services?resourceVersion=0"); got.code != http.StatusForbidden || !bytes.Contains(got.body, []byte("system:serviceaccount:default:some")) {
		t.Errorf("a list without the right to it: %d %s", got.code, got.body)
	}
	if got := get(t, r.as(some), "/metrics"); got.code != http.StatusServiceUnavailable {
		t.Errorf("the relay's status page: %d %s", got.code, got.body)
	}
	if got := get(t, r.as(some), "/api/v1/configmaps?resourceVersion=0", "Impersonate-User", "ann"); got.code != http.StatusServiceUnavailable {
		t.Errorf("impersonation: %d %s", got.code, got.body)
	}
}

// awaitEnd waits until a watch ends.
func awaitEnd(t *testing.T, w watch.Interface) {
	t.Helper()
	ended := time.After(proctest.Patience)
	for {
		select {
		case _, ok := <-w.ResultChan():
			if !ok {
				return
			}
		case <-ended:
			t.Fatal("the watch did not end")
		}
	}
}

// TestWatchesSurviveTheUpstream checks that while the upstream is unavailable, the relay serves cached reads and keeps
// watches open, and that it catches up afterwards.
func TestWatchesSurviveTheUpstream(t *testing.T) {
	t.Parallel()
	u := startUpstream(t)
	reader := u.token(t, "reader", allowed([]string{"get", "list", "watch"}, []string{"configmaps"}))
	other := u.token(t, "other", allowed([]string{"get", "list", "watch"}, []string{"configmaps"}))
	r := u.startRelay(t)
	i := informer(t, r.as(reader))
	maps := u.client(t).CoreV1().ConfigMaps("default")
	if _, err := maps.Create(t.Context(), configMap("before"), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	awaitCount(t, i, 1)
	get(t, r.as(reader), "/api/v1/configmaps?resourceVersion=0") // so that the relay has cached the right to list
	u.Kill()
	if got := get(t, r.as(reader), "/api/v1/configmaps?resourceVersion=0"); got.code != http.StatusOK {
		t.Errorf("a cached list without the upstream: %d %s", got.code, got.body)
	}
	if got := get(t, r.as(other), "/api/v1/configmaps?resourceVersion=0"); got.code != http.StatusServiceUnavailable {
		t.Errorf("a token that the relay has not cached: %d %s", got.code, got.body)
	}
	if got := get(t, r.as(reader), "/api/v1/configmaps/c?resourceVersion=0"); got.code != http.StatusServiceUnavailable {
		t.Errorf("a read without a cached right: %d %s", got.code, got.body)
	}
	if got := get(t, r.as(reader), "/api/v1/configmaps"); got.code != http.StatusServiceUnavailable || got.header.Get("Retry-After") == "" {
		t.Errorf("a consistent list without the upstream: %d %v %s", got.code, got.header, got.body)
	}
	r.Eventually(t, "responses from the cache have its age", func() error {
		if got := get(t, r.as(reader), "/api/v1/configmaps?resourceVersion=0"); got.code != http.StatusOK || got.header.Get("Larder-Upstream-Age") == "" {
			return fmt.Errorf("%d %v", got.code, got.header)
		}
		return nil
	})
	got := get(t, r.as(reader), "/api/v1/configmaps?watch=1&resourceVersion=0", "Connection", "Upgrade", "Upgrade", "websocket", "Sec-WebSocket-Version", "13", "Sec-WebSocket-Key", "dGhlIHNhbXBsZSBub25jZQ==")
	if got.code != http.StatusServiceUnavailable || got.header.Get("Larder-Upstream-Age") != "" { // not from a cache
		t.Errorf("a websocket without the upstream: %d %v %s", got.code, got.header, got.body)
	}
	u.start(t)
	if _, err := maps.Create(t.Context(), configMap("after"), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	awaitCount(t, i, 2)
}

// TestOwnPages checks that a relay's status page, metrics and costs show the cached resources.
func TestOwnPages(t *testing.T) {
	t.Parallel()
	u := startUpstream(t)
	createCRD(t, u)
	reader := u.token(t, "reader", allowed([]string{"get", "list", "watch"}, []string{"configmaps", "boxes"}),
		rbacv1.PolicyRule{Verbs: []string{"get"}, NonResourceURLs: []string{"/larder/status", "/larder/costs", "/metrics"}})
	r := u.startRelay(t)
	for path, has := range map[string][]string{
		"/larder/status":            {`{"name":"configmaps","ready":true,"objects":`, `{"name":"boxes.example.com","ready":true,"objects":1,`},
		"/larder/costs?by=resource": {`"configmaps"`, `"boxes.example.com"`},
		"/metrics": {
			`larder_relay_objects{group="",resource="configmaps",version="v1"}`, `larder_relay_objects{group="example.com",resource="boxes",version="v1"} 1`,
			`larder_relay_bytes{group="example.com",resource="boxes",version="v1"}`, `larder_relay_requests_total{by="cache"}`, "larder_relay_upstream_age_seconds 0",
			"\ngo_gc_gogc_percent ",
		},
	} {
		r.Eventually(t, path, func() error { // the first requests may be forwarded
			get(t, r.as(reader), "/api/v1/configmaps?resourceVersion=0")
			get(t, r.as(reader), "/apis/example.com/v1/boxes?resourceVersion=0")
			got := get(t, r.as(reader), path)
			for _, text := range has {
				if got.code != http.StatusOK || !bytes.Contains(got.body, []byte(text)) {
					return fmt.Errorf("status %d, want a body with %s: %s", got.code, text, got.body)
				}
			}
			if bytes.Contains(got.body, []byte("\ngo_gc_gogc_percent 100\n")) {
				return errors.New("GOGC has Go's default, which doubles the memory for objects")
			}
			return nil
		})
	}
}
