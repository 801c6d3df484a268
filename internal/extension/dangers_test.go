package extension_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"regexp"
	"strings"
	"sync/atomic"
	"testing"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
)

// shelves is a definition with defaults, fields that may be null or not, an embedded
// object, a part that is not pruned, and two versions.
const shelves = `
metadata: {name: shelves.example.com}
spec:
  group: example.com
  scope: Namespaced
  names: {plural: shelves, singular: shelf, kind: Shelf, listKind: ShelfList}
  versions:
  - name: v1
    served: true
    storage: true
    schema:
      openAPIV3Schema:
        type: object
        properties:
          spec:
            type: object
            default: {}
            properties:
              width: {type: integer, default: 80}
              color: {type: string}
              free: {type: object, x-kubernetes-preserve-unknown-fields: true}
              firm: {type: string, default: oak}
              inner: {type: object, x-kubernetes-embedded-resource: true, x-kubernetes-preserve-unknown-fields: true}
    selectableFields: [{jsonPath: .spec.color}]
    additionalPrinterColumns:
    - {name: Width, type: integer, jsonPath: .spec.width}
    - {name: Color, type: string, jsonPath: .spec.color}
  - name: v2
    served: true
    storage: false
    schema:
      openAPIV3Schema:
        type: object
        properties:
          spec:
            type: object
            properties: {width: {type: integer}, colour: {type: string}}
    selectableFields: [{jsonPath: .spec.colour}]
`

const (
	shelvesV1 = "/apis/example.com/v1/namespaces/ns/shelves"
	shelvesV2 = "/apis/example.com/v2/namespaces/ns/shelves"
	shelfKey  = "/registry/example.com/shelves/ns/"
)

// old is an object as an older definition let it be stored.
const old = `{"apiVersion":"example.com/v1","kind":"Shelf","metadata":{"name":"old","namespace":"ns","uid":"u",` +
	`"labels":{"good":"1","bad":{"x":1}},"creationTimestamp":"2020-01-01T00:00:00Z","unheard":"of"},` +
	`"spec":{"color":"red","unknown":1,"firm":null,"free":{"any":[1]},` +
	`"inner":{"apiVersion":"v1","kind":"X","metadata":{"name":"i","labels":{"l":5}},"more":1}}}`

// TestReadsPruneAndDefaultCustomResources is that reading prunes, defaults, drops what metadata cannot be and
// gives a generation, whatever was stored.
func TestReadsPruneAndDefaultCustomResources(t *testing.T) {
	s := newServer(t)
	s.define(t, shelves)
	revision := s.put(t, shelfKey+"old", old)
	check := func(what, text string) {
		t.Helper()
		contains(t, text, `"width":80`, `"color":"red"`, `"firm":"oak"`, `"free":{"any":[1]}`, `"generation":1`,
			fmt.Sprintf(`"resourceVersion":"%d"`, revision), `"more":1`)
		lacks(t, text, "unknown", "unheard", "bad", `"l":5`)
		if t.Failed() {
			t.Fatalf("%s: %s", what, text)
		}
	}
	check("get", s.get(t, shelvesV1+"/old").body)
	check("list", s.get(t, shelvesV1).body)
	_, object, _ := s.watch(t, shelvesV1+"?watch=1").next(t)
	check("watch", object)

	// Nothing was written for that.
	item, _, _, err := s.store.Get(t.Context(), shelfKey+"old")
	must(t, err)
	if string(item.Value) != old || item.Revision != revision {
		t.Errorf("stored is now %s", item.Value)
	}
	// In another version the same object is pruned by that version's schema, and has no
	// defaults of it.
	other := s.get(t, shelvesV2+"/old").body
	contains(t, other, `"apiVersion":"example.com/v2"`, `"width":80`)
	lacks(t, other, "color", "firm", "free")
}

// TestCachedCustomResourcesAreAnsweredAsUpstreamDoes compares answers from cached bytes with those of upstream's
// handler, which decodes and encodes each object.
func TestCachedCustomResourcesAreAnsweredAsUpstreamDoes(t *testing.T) {
	s := newServer(t)
	s.define(t, shelves)
	s.put(t, shelfKey+"old", old)
	for i := range 5 {
		body := fmt.Sprintf(`{"apiVersion":"example.com/v1","kind":"Shelf","metadata":{"name":"s%d","labels":{"n":"%d"}},"spec":{"color":"<%d>&\u2028"}}`, i, i%2, i)
		s.do(t, http.MethodPost, shelvesV1+"?fieldManager=m", "application/json", body)
	}
	s.do(t, http.MethodPost, shelvesV2, "application/json",
		`{"apiVersion":"example.com/v2","kind":"Shelf","metadata":{"name":"two"},"spec":{"colour":"blue"}}`)
	const table = "application/json;as=Table;v=v1;g=meta.k8s.io"
	accepts := []string{
		"", "application/json", "application/yaml", "application/vnd.kubernetes.protobuf", "text/html", "*/*",
		"application/vnd.kubernetes.protobuf, application/json", table, table + ", application/json",
		"application/json;as=PartialObjectMetadata;v=v1;g=meta.k8s.io", "application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io",
		"application/json;as=PartialObjectMetadataList;v=v1beta1;g=meta.k8s.io",
		"application/vnd.kubernetes.protobuf;as=PartialObjectMetadata;v=v1;g=meta.k8s.io",
		"application/vnd.kubernetes.protobuf;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io",
		"application/vnd.kubernetes.protobuf;as=Table;v=v1;g=meta.k8s.io",
	}
	paths := []string{
		"", "/old", "/s0", "/two", "/none", "?limit=2", "?labelSelector=n%3D1", "?labelSelector=%3D", "?fieldSelector=spec.color%3D%3C1%3E%26%E2%80%A8",
		"?fieldSelector=spec.colour%3Dblue", "?fieldSelector=metadata.name%3Dold", "?resourceVersion=0", "?resourceVersion=x", "?pretty=true",
		"?includeObject=Object", "?includeObject=None", "?includeObject=x", "/s0?includeObject=Object", "?limit=x", "/s0?resourceVersion=0",
	}
	for _, base := range []string{shelvesV1, shelvesV2} {
		for _, path := range paths {
			for _, accept := range accepts {
				c := call{method: http.MethodGet, path: base + path, accept: accept}
				got, want := ageless(s.ask(t, c)), ageless(s.upstream(t, c))
				if got.code != want.code || got.body != want.body || got.header.Get("Content-Type") != want.header.Get("Content-Type") {
					t.Errorf("%s as %q:\nupstream %s %q\nlarder   %s %q", c.path, accept,
						want, want.header.Get("Content-Type"), got, got.header.Get("Content-Type"))
				}
			}
		}
	}
}

var age = regexp.MustCompile(`"(\d+[smh])+"`)

// ageless is a without the ages in the cells of tables, which go on between two answers.
func ageless(a answer) answer {
	a.body = age.ReplaceAllString(a.body, `"AGE"`)
	return a
}

// TestReadsFollowAChangedDefinition is that reads follow the definition: nothing that was made of
// an object under another one is given out, and watches end.
func TestReadsFollowAChangedDefinition(t *testing.T) {
	s := newServer(t)
	s.define(t, shelves)
	s.put(t, shelfKey+"old", old)
	contains(t, s.get(t, shelvesV1+"/old").body, `"width":80`)
	w := s.watch(t, shelvesV1+"?watch=1")
	if _, _, ok := w.next(t); !ok {
		t.Fatal("watch ended at once")
	}
	s.change(t, "shelves.example.com", func(d *apiextensionsv1.CustomResourceDefinition) {
		properties := d.Spec.Versions[0].Schema.OpenAPIV3Schema.Properties["spec"].Properties
		width := properties["width"]
		width.Default = &apiextensionsv1.JSON{Raw: []byte("120")}
		properties["width"] = width
		properties["unknown"] = apiextensionsv1.JSONSchemaProps{Type: "integer"}
		delete(properties, "free")
	})
	if event, object, ok := w.next(t); ok {
		t.Errorf("watch went on with %s %s", event, object)
	}
	changed := func(a answer) bool { return strings.Contains(a.body, `"width":120`) }
	a := s.eventually(t, call{method: http.MethodGet, path: shelvesV1 + "/old"}, changed)
	contains(t, a.body, `"unknown":1`)
	lacks(t, a.body, "free")
	for _, path := range []string{shelvesV1, shelvesV1 + "/old"} { // never again what was
		lacks(t, s.get(t, path).body, `"width":80`, "free")
	}
	_, object, _ := s.watch(t, shelvesV1+"?watch=1").next(t)
	contains(t, object, `"width":120`)
}

// TestDefinitionMadeAnewForgetsTheFirst is that a definition that was deleted and made again
// does not give out what was read under the first.
func TestDefinitionMadeAnewForgetsTheFirst(t *testing.T) {
	s := newServer(t)
	s.define(t, shelves)
	s.do(t, http.MethodPost, shelvesV1, "application/json", `{"apiVersion":"example.com/v1","kind":"Shelf","metadata":{"name":"a"}}`)
	client := s.definitions.ApiextensionsV1().CustomResourceDefinitions()
	must(t, client.Delete(t.Context(), "shelves.example.com", deleteNow()))
	s.eventually(t, call{method: http.MethodGet, path: shelvesV1}, func(a answer) bool { return a.code == http.StatusNotFound })
	page, err := s.store.Range(t.Context(), everythingBelow(shelfKey))
	must(t, err)
	if len(page.Items) != 0 {
		t.Errorf("left in the store: %v", page.Items)
	}
	s.define(t, shelves)
	a := s.get(t, shelvesV1)
	contains(t, a.body, `"items":[]`)
}

// converter is a webhook that renames spec.color and spec.colour, and can be down.
type converter struct {
	*httptest.Server
	down  atomic.Bool
	calls atomic.Int64
}

func newConverter(t *testing.T) *converter {
	c := new(converter)
	c.Server = httptest.NewTLSServer(c)
	t.Cleanup(c.Close)
	return c
}

// ServeHTTP converts.
func (c *converter) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	c.calls.Add(1)
	if c.down.Load() {
		http.Error(w, "down", http.StatusServiceUnavailable)
		return
	}
	var review struct {
		Request struct {
			UID               string           `json:"uid"`
			DesiredAPIVersion string           `json:"desiredAPIVersion"`
			Objects           []map[string]any `json:"objects"`
		} `json:"request"`
	}
	if err := json.NewDecoder(req.Body).Decode(&review); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	for _, object := range review.Request.Objects {
		object["apiVersion"] = review.Request.DesiredAPIVersion
		spec, _ := object["spec"].(map[string]any)
		from, to := "color", "colour"
		if strings.HasSuffix(review.Request.DesiredAPIVersion, "v1") {
			from, to = to, from
		}
		if value, ok := spec[from]; ok {
			delete(spec, from)
			spec[to] = value
		}
	}
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(map[string]any{
		"apiVersion": "apiextensions.k8s.io/v1", "kind": "ConversionReview",
		"response": map[string]any{"uid": review.Request.UID, "result": map[string]any{"status": "Success"}, "convertedObjects": review.Request.Objects},
	})
}

// by has a definition's versions converted by c.
func (c *converter) by(d *apiextensionsv1.CustomResourceDefinition) {
	url := c.URL
	d.Spec.Conversion = &apiextensionsv1.CustomResourceConversion{
		Strategy: apiextensionsv1.WebhookConverter,
		Webhook: &apiextensionsv1.WebhookConversion{
			ConversionReviewVersions: []string{"v1"},
			ClientConfig:             &apiextensionsv1.WebhookClientConfig{URL: &url, CABundle: certificateOf(c.Server)},
		},
	}
}

// TestWebhookConvertsEachStateOnce is that a webhook is asked once for each state of an object.
func TestWebhookConvertsEachStateOnce(t *testing.T) {
	s, c := newServer(t), newConverter(t)
	s.define(t, shelves, c.by)
	s.put(t, shelfKey+"old", old)
	read := func(path, want string) {
		t.Helper()
		a := s.get(t, path)
		if a.code != http.StatusOK {
			t.Fatalf("%s: %s", path, a)
		}
		contains(t, a.body, want)
	}
	read(shelvesV1+"/old", `"color":"red"`)
	read(shelvesV1, `"color":"red"`)
	if n := c.calls.Load(); n != 0 {
		t.Errorf("%d conversions of what is stored in the version that is read", n)
	}
	for range 5 {
		read(shelvesV2+"/old", `"colour":"red"`)
		read(shelvesV2, `"colour":"red"`)
	}
	if n := c.calls.Load(); n != 1 {
		t.Errorf("%d conversions of one object", n)
	}
	s.put(t, shelfKey+"old", strings.Replace(old, `"red"`, `"blue"`, 1))
	read(shelvesV2+"/old", `"colour":"blue"`)
	read(shelvesV2, `"colour":"blue"`)
	if n := c.calls.Load(); n != 2 {
		t.Errorf("%d conversions of two states", n)
	}
	contains(t, s.get(t, shelvesV2+"?fieldSelector=spec.colour%3Dblue").body, `"colour":"blue"`)
	contains(t, s.get(t, shelvesV2+"?fieldSelector=spec.colour%3Dred").body, `"items":[]`)
	event, object, _ := s.watch(t, shelvesV2+"?watch=1").next(t)
	contains(t, string(event)+object, "ADDED", `"colour":"blue"`)
}

// TestWebhookThatIsDownFailsOnlyWhatNeedsIt is that a webhook that is down fails the requests that need it, and
// leaves nothing behind.
func TestWebhookThatIsDownFailsOnlyWhatNeedsIt(t *testing.T) {
	s, c := newServer(t), newConverter(t)
	s.define(t, shelves, c.by)
	s.put(t, shelfKey+"old", old)
	c.down.Store(true)
	for _, path := range []string{shelvesV2 + "/old", shelvesV2} {
		a := s.get(t, path)
		if a.code != http.StatusInternalServerError {
			t.Errorf("%s: %s", path, a)
		}
		contains(t, a.body, "conversion webhook for example.com/v1, Kind=Shelf failed")
		if want := s.upstream(t, call{method: http.MethodGet, path: path}); want.code != a.code || want.body != a.body {
			t.Errorf("%s: upstream %s, larder %s", path, want, a)
		}
	}
	// Who does not need it is served, also of what is written meanwhile.
	w := s.watch(t, shelvesV1+"?watch=1")
	if _, object, _ := w.next(t); !strings.Contains(object, `"color":"red"`) {
		t.Errorf("watch: %s", object)
	}
	s.do(t, http.MethodPost, shelvesV1, "application/json", `{"apiVersion":"example.com/v1","kind":"Shelf","metadata":{"name":"new"},"spec":{"color":"green"}}`)
	if _, object, _ := w.next(t); !strings.Contains(object, `"color":"green"`) {
		t.Errorf("watch: %s", object)
	}
	contains(t, s.get(t, shelvesV1).body, `"color":"red"`, `"color":"green"`)
	contains(t, s.ask(t, call{method: http.MethodGet, path: shelvesV1, accept: "application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io"}).body, `"name":"new"`)

	c.down.Store(false)
	contains(t, s.get(t, shelvesV2+"/old").body, `"colour":"red"`)
	contains(t, s.get(t, shelvesV2).body, `"colour":"red"`, `"colour":"green"`)
}
