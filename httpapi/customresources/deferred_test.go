package customresources_test

import (
	"errors"
	"fmt"
	"net/http"
	"regexp"
	"strings"
	"sync"
	"testing"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/features"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	featuregatetesting "k8s.io/component-base/featuregate/testing"
	"k8s.io/kube-openapi/pkg/validation/spec"

	"github.com/larder-io/larder/httpapi/customresources"
	"github.com/larder-io/larder/internal/proctest"
)

// withoutStorages makes the storages of every CRD fail to build.
func withoutStorages(c *customresources.Config) {
	c.Schemas = func() (map[string]*spec.Schema, error) { return nil, errors.New("no schemas") }
}

const unresolved = "error resolving resource"

// shelf returns a request that creates an object.
func shelf(name string) call {
	body := fmt.Sprintf(`{"apiVersion":"example.com/v1","kind":"Shelf","metadata":{"name":%q},"spec":{"color":"red"}}`, name)
	return call{method: http.MethodPost, path: shelvesV1, kind: "application/json", body: body}
}

// TestEmptyReadsBuildNoStorages checks that reads of a CRD without objects succeed even if its storages cannot be
// built. After the first write, all requests fail.
func TestEmptyReadsBuildNoStorages(t *testing.T) {
	s := newServerOf(t, withoutStorages)
	s.define(t, shelves)
	// Until the informer has seen the CRD, the handler serves requests and builds the storages.
	s.eventually(t, call{method: http.MethodGet, path: "/apis/example.com/v1"}, func(a response) bool { return a.code == http.StatusOK })
	for _, c := range []call{
		{path: shelvesV1}, {path: shelvesV1 + "?limit=1"}, {path: "/apis/example.com/v2/shelves"},
		{path: shelvesV1 + "?fieldSelector=spec.color%3Dred&labelSelector=a%3Db"},
		{path: shelvesV1, accept: "application/json;as=Table;g=meta.k8s.io;v=v1"},
		{path: shelvesV1, accept: "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"},
	} {
		c.method = http.MethodGet
		if a := s.send(t, c); a.code != http.StatusOK {
			t.Errorf("%+v: got %s, want 200", c, a)
		}
	}
	if a := s.get(t, shelvesV1+"/nobody"); a.code != http.StatusNotFound {
		t.Errorf("a missing object: %s", a)
	}
	w := s.watch(t, shelvesV1+"?watch=true&sendInitialEvents=true&allowWatchBookmarks=true&resourceVersionMatch=NotOlderThan")
	kind, object, _ := w.next(t)
	if kind != "BOOKMARK" || !strings.Contains(object, metav1.InitialEventsAnnotationKey) {
		t.Errorf("the watch sent %s %s, want nothing", kind, object)
	}
	for _, c := range []call{shelf("a"), {method: http.MethodGet, path: shelvesV1}, {method: http.MethodDelete, path: shelvesV1}} {
		if a := s.send(t, c); a.code != http.StatusInternalServerError || !strings.Contains(a.body, unresolved) {
			t.Errorf("%s %s: got %s, want 500 and %q", c.method, c.path, a, unresolved)
		}
	}
}

// TestObjectsBuildTheStorages checks that a CRD is not served if its stored objects need decoding and its storages
// cannot be built.
func TestObjectsBuildTheStorages(t *testing.T) {
	s := newServerOf(t, withoutStorages)
	s.define(t, shelves)
	s.put(t, shelfKey+"a", `{"apiVersion":"example.com/v1","kind":"Shelf","metadata":{"name":"a","namespace":"ns","uid":"1"},"spec":{"color":"red"}}`)
	if a := s.get(t, shelvesV1); a.code != http.StatusInternalServerError || !strings.Contains(a.body, unresolved) {
		t.Errorf("list: %s", a)
	}
}

// TestStoragesOfCRDsWithWebhooksAreNotDeferred checks that the storages of a CRD with a conversion webhook are built
// for the first request, as upstream does, because building them may fail.
func TestStoragesOfCRDsWithWebhooksAreNotDeferred(t *testing.T) {
	s := newServerOf(t, withoutStorages)
	s.define(t, shelves, func(d *apiextensionsv1.CustomResourceDefinition) {
		url := "https://converts.example.com"
		d.Spec.Conversion = &apiextensionsv1.CustomResourceConversion{
			Strategy: apiextensionsv1.WebhookConverter,
			Webhook:  &apiextensionsv1.WebhookConversion{ClientConfig: &apiextensionsv1.WebhookClientConfig{URL: &url}, ConversionReviewVersions: []string{"v1"}},
		}
	})
	if a := s.get(t, shelvesV1); a.code != http.StatusInternalServerError || !strings.Contains(a.body, unresolved) {
		t.Errorf("list: %s", a)
	}
}

var revisions = regexp.MustCompile(`"resourceVersion":"\d+"`)

// TestEmptyReadsMatchUpstream checks that reads of a CRD without objects have the same responses before and after its
// storages are built, and that these are upstream's.
func TestEmptyReadsMatchUpstream(t *testing.T) {
	s := newServer(t)
	s.define(t, shelves)
	var calls []call
	for _, path := range []string{
		shelvesV1, shelvesV1 + "?limit=1", shelvesV1 + "?limit=-1", shelvesV1 + "?continue=nonsense", shelvesV1 + "?limit=x",
		shelvesV1 + "?resourceVersion=x", shelvesV1 + "?resourceVersionMatch=Exact", shelvesV1 + "?resourceVersion=0",
		shelvesV1 + "?fieldSelector=spec.color%3Dred", shelvesV1 + "?fieldSelector=spec.width%3D1", shelvesV1 + "?labelSelector=,,,",
		shelvesV1 + "/nobody", "/apis/example.com/v2/namespaces/ns/shelves", "/apis/example.com/v2/shelves?fieldSelector=spec.colour%3Dred",
		"/apis/example.com/v2/shelves?fieldSelector=spec.color%3Dred", "/apis/example.com/v3/shelves", "/apis/example.com/v1/shelves/a",
		shelvesV1 + "?watch=true&sendInitialEvents=true", shelvesV1 + "?watch=true&resourceVersion=x",
	} {
		for _, accept := range []string{"", "application/json;as=Table;g=meta.k8s.io;v=v1", "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1", "application/yaml", "text/plain"} {
			calls = append(calls, call{method: http.MethodGet, path: path, accept: accept})
		}
	}
	normalized := func(a response) string {
		return fmt.Sprint(a.code, a.header.Get("Content-Type"), revisions.ReplaceAllString(a.body, ""))
	}
	before := make([]string, len(calls))
	for i, c := range calls {
		before[i] = normalized(s.send(t, c))
	}
	for i, c := range calls {
		if a := normalized(s.upstream(t, c)); a != before[i] {
			t.Errorf("%+v:\n got %s\nwant %s", c, before[i], a)
		}
	}
	for i, c := range calls {
		if a := normalized(s.send(t, c)); a != before[i] {
			t.Errorf("%+v, after the storages are built:\n got %s\nwant %s", c, a, before[i])
		}
	}
}

// TestNotAcceptableNamesCBOR checks that 406 responses name CBOR if it is enabled, as upstream's do.
func TestNotAcceptableNamesCBOR(t *testing.T) {
	featuregatetesting.SetFeatureGateDuringTest(t, utilfeature.DefaultFeatureGate, features.CBORServingAndStorage, true)
	s := newServer(t)
	s.define(t, shelves)
	for _, path := range []string{shelvesV1, shelvesV1 + "/nobody", shelvesV1 + "?watch=true"} {
		for _, accept := range []string{"text/plain", "application/vnd.kubernetes.protobuf"} {
			c := call{method: http.MethodGet, path: path, accept: accept}
			a := s.send(t, c) // before upstream, because it waits until the CRD is served
			if want := s.upstream(t, c); a.code != want.code || a.body != want.body || want.code != http.StatusNotAcceptable {
				t.Errorf("%+v:\n got %s\nwant %s", c, a, want)
			}
		}
	}
}

const firstWrites = 16

// beginFirstWrites defines a CRD and begins to create firstWrites objects of it concurrently. It returns a function
// that waits for the responses.
func (s *server) beginFirstWrites(t *testing.T) (await func() []response) {
	t.Helper()
	s.define(t, shelves)
	s.get(t, shelvesV1)
	responses := make([]response, firstWrites)
	var all sync.WaitGroup
	for i := range responses {
		all.Go(func() { responses[i] = s.send(t, shelf(fmt.Sprint("s", i))) })
	}
	return func() []response {
		all.Wait()
		return responses
	}
}

// TestFirstWritesMakeOneHandler checks that concurrent first writes to a CRD build its storages once. The storages of a
// second handler would be rejected.
func TestFirstWritesMakeOneHandler(t *testing.T) {
	s := newServer(t)
	for _, a := range s.beginFirstWrites(t)() {
		if a.code != http.StatusCreated {
			t.Errorf("%s", a)
		}
	}
	if listed := strings.Count(s.get(t, shelvesV1).body, `"uid"`); listed != firstWrites {
		t.Errorf("%d objects are listed, want %d", listed, firstWrites)
	}
}

// TestFirstWritesMeetChanges checks that the first objects of a CRD can be written while it changes.
func TestFirstWritesMeetChanges(t *testing.T) {
	s := newServer(t)
	await := s.beginFirstWrites(t)
	s.change(t, "shelves.example.com", describe("changed"))
	for _, a := range await() {
		if a.code != http.StatusCreated {
			t.Errorf("%s", a)
		}
	}
	s.eventually(t, call{method: http.MethodGet, path: shelvesV1}, func(a response) bool { return strings.Count(a.body, `"uid"`) == firstWrites })
}

// TestFirstWritesMeetDeletions writes the first objects of a CRD while it is deleted. No write may fail with a server
// error. In the end no object may be left, and the resource must be unknown.
func TestFirstWritesMeetDeletions(t *testing.T) {
	s := newServer(t)
	await := s.beginFirstWrites(t)
	client := s.crds.ApiextensionsV1().CustomResourceDefinitions()
	must(t, client.Delete(t.Context(), "shelves.example.com", deleteNow()))
	for _, a := range await() {
		if a.code == http.StatusInternalServerError {
			t.Errorf("got %s, want another status", a)
		}
	}
	s.eventually(t, call{method: http.MethodGet, path: shelvesV1}, func(a response) bool { return a.code == http.StatusNotFound })
	proctest.Eventually(t, "the CRD is deleted", func() error {
		if _, err := client.Get(t.Context(), "shelves.example.com", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
			return fmt.Errorf("get: error %v, want not found", err)
		}
		return nil
	})
	if page, err := s.store.Range(t.Context(), everythingBelow("/registry/example.com/shelves/")); err != nil || len(page.Items) != 0 {
		t.Errorf("%d objects are left: %v", len(page.Items), err)
	}
}
