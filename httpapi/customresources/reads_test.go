package customresources_test

import (
	"fmt"
	"net/http"
	"regexp"
	"strings"
	"testing"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
)

// shelves is a CRD with defaults, nullable and other fields, an embedded object, a part that is not pruned, and two
// versions.
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

// old is an object stored under an older schema.
const old = `{"apiVersion":"example.com/v1","kind":"Shelf","metadata":{"name":"old","namespace":"ns","uid":"u",` +
	`"labels":{"good":"1","bad":{"x":1}},"creationTimestamp":"2020-01-01T00:00:00Z","unheard":"of"},` +
	`"spec":{"color":"red","unknown":1,"firm":null,"free":{"any":[1]},` +
	`"inner":{"apiVersion":"v1","kind":"X","metadata":{"name":"i","labels":{"l":5}},"more":1}}}`

// TestReadsPruneAndDefaultCustomResources checks that reads prune, apply defaults, drop invalid metadata and set a
// generation, whatever is stored.
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

	// Reads write nothing to the store.
	item, _, _, err := s.store.Get(t.Context(), shelfKey+"old")
	must(t, err)
	if string(item.Value) != old || item.Revision != revision {
		t.Errorf("the stored object became %s", item.Value)
	}
	// Another version is pruned by its own schema, after the stored version's defaults were applied.
	other := s.get(t, shelvesV2+"/old").body
	contains(t, other, `"apiVersion":"example.com/v2"`, `"width":80`)
	lacks(t, other, "color", "firm", "free")
}

// TestManyVersions reads and watches an object in each of 60 versions, which have more than 256 encodings.
func TestManyVersions(t *testing.T) {
	s := newServer(t)
	const one = "\n  - {name: v%d, served: true, storage: %t, schema: {openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}}}"
	versions := ""
	for i := 1; i <= 60; i++ {
		versions += fmt.Sprintf(one, i, i == 1)
	}
	before, _, _ := strings.Cut(shelves, "\n  - ")
	s.define(t, before+versions+"\n")
	s.put(t, shelfKey+"old", old)
	for i := 1; i <= 60; i++ {
		path := fmt.Sprintf("/apis/example.com/v%d/namespaces/ns/shelves", i)
		version := fmt.Sprintf(`"apiVersion":"example.com/v%d"`, i)
		contains(t, s.get(t, path+"/old").body, version)
		contains(t, s.get(t, path).body, version)
		_, object, _ := s.watch(t, path+"?watch=1").next(t)
		contains(t, object, version)
	}
}

// TestCachedCustomResourcesMatchUpstream compares responses from cached bytes with those of upstream's handler, which
// decodes and encodes each object.
func TestCachedCustomResourcesMatchUpstream(t *testing.T) {
	s := newServer(t)
	s.define(t, shelves)
	s.put(t, shelfKey+"old", old)
	for i := range 5 {
		body := fmt.Sprintf(`{"apiVersion":"example.com/v1","kind":"Shelf","metadata":{"name":"s%d","labels":{"n":"%d"}},"spec":{"color":"<%d>&\u2028"}}`, i, i%2, i)
		s.do(t, http.MethodPost, shelvesV1+"?fieldManager=m", "application/json", body)
	}
	s.do(t, http.MethodPost, shelvesV2, "application/json",
		`{"apiVersion":"example.com/v2","kind":"Shelf","metadata":{"name":"two"},"spec":{"colour":"blue"}}`)
	// These objects are large enough to be compressed.
	s.do(t, http.MethodPost, shelvesV1, "application/json",
		`{"apiVersion":"example.com/v1","kind":"Shelf","metadata":{"name":"large","labels":{"n":"1"}},"spec":{"color":"red","free":`+findings(300)+`}}`)
	s.do(t, http.MethodPost, shelvesV2, "application/json",
		`{"apiVersion":"example.com/v2","kind":"Shelf","metadata":{"name":"wide"},"spec":{"colour":"`+strings.Repeat("blue <\u00e9\\n>", 3000)+`"}}`)
	s.put(t, shelfKey+"older", strings.Replace(strings.Replace(old, `"name":"old"`, `"name":"older"`, 1), `"any":[1]`, `"any":`+findings(500), 1))
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
		"", "/old", "/s0", "/two", "/large", "/wide", "/older", "/none", "?limit=2", "?labelSelector=n%3D1", "?labelSelector=%3D", "?fieldSelector=spec.color%3D%3C1%3E%26%E2%80%A8",
		"?fieldSelector=spec.colour%3Dblue", "?fieldSelector=metadata.name%3Dold", "?resourceVersion=0", "?resourceVersion=x", "?pretty=true",
		"?includeObject=Object", "?includeObject=None", "?includeObject=x", "/s0?includeObject=Object", "?limit=x", "/s0?resourceVersion=0",
	}
	for _, base := range []string{shelvesV1, shelvesV2} {
		for i, path := range paths {
			for j, accept := range accepts {
				if testing.Short() && (i+j)%3 != 0 {
					continue // every path and every type is still tested
				}
				c := call{method: http.MethodGet, path: base + path, accept: accept}
				got, want := ageless(s.send(t, c)), ageless(s.upstream(t, c))
				if got.code != want.code || got.body != want.body || got.header.Get("Content-Type") != want.header.Get("Content-Type") {
					t.Errorf("%s as %q:\nupstream %s %q\nLarder   %s %q", c.path, accept,
						want, want.header.Get("Content-Type"), got, got.header.Get("Content-Type"))
				}
			}
		}
	}
}

var age = regexp.MustCompile(`"(\d+[smh])+"`)

// ageless returns a without the ages in Table cells, which differ between two responses.
func ageless(a response) response {
	a.body = age.ReplaceAllString(a.body, `"AGE"`)
	return a
}

// TestReadsFollowAChangedCRD checks that a change of the CRD ends watches, and that no later read uses the old schema.
func TestReadsFollowAChangedCRD(t *testing.T) {
	s := newServer(t)
	s.define(t, shelves)
	s.put(t, shelfKey+"old", old)
	contains(t, s.get(t, shelvesV1+"/old").body, `"width":80`)
	w := s.watch(t, shelvesV1+"?watch=1")
	if _, _, ok := w.next(t); !ok {
		t.Fatal("the watch ended before the change")
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
		t.Errorf("after the change, the watch sent %s %s", event, object)
	}
	changed := func(a response) bool { return strings.Contains(a.body, `"width":120`) }
	a := s.eventually(t, call{method: http.MethodGet, path: shelvesV1 + "/old"}, changed)
	contains(t, a.body, `"unknown":1`)
	lacks(t, a.body, "free")
	for _, path := range []string{shelvesV1, shelvesV1 + "/old"} { // must never have the old value
		lacks(t, s.get(t, path).body, `"width":80`, "free")
	}
	_, object, _ := s.watch(t, shelvesV1+"?watch=1").next(t)
	contains(t, object, `"width":120`)
}

// TestRecreatedCRDHasNoObjects checks that a CRD that is deleted and created again has no objects.
func TestRecreatedCRDHasNoObjects(t *testing.T) {
	s := newServer(t)
	s.define(t, shelves)
	s.do(t, http.MethodPost, shelvesV1, "application/json", `{"apiVersion":"example.com/v1","kind":"Shelf","metadata":{"name":"a"}}`)
	client := s.crds.ApiextensionsV1().CustomResourceDefinitions()
	must(t, client.Delete(t.Context(), "shelves.example.com", deleteNow()))
	s.eventually(t, call{method: http.MethodGet, path: shelvesV1}, func(a response) bool { return a.code == http.StatusNotFound })
	page, err := s.store.Range(t.Context(), everythingBelow(shelfKey))
	must(t, err)
	if len(page.Items) != 0 {
		t.Errorf("objects left in the store: %v", page.Items)
	}
	s.define(t, shelves)
	a := s.get(t, shelvesV1)
	contains(t, a.body, `"items":[]`)
}

// findings returns JSON with escapes and numbers that encoding/json writes differently.
func findings(n int) string {
	var b strings.Builder
	for i := range n {
		fmt.Fprintf(&b, `, "k%03d": [{"title": "findings \u00e9 \u2028 <of> no. %d", "score": %d.50, "big": 12345678901234567890, "none": null}, {}]`, 997*i%1000, i, i%10)
	}
	return "{" + b.String()[1:] + "}"
}
