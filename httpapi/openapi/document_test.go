package openapi

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	"github.com/NYTimes/gziphandler"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apiextensions-apiserver/pkg/controller/openapi/builder"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/kube-openapi/pkg/aggregator"
	"k8s.io/kube-openapi/pkg/cached"
	"k8s.io/kube-openapi/pkg/handler"
	"k8s.io/kube-openapi/pkg/handler3"
	"k8s.io/kube-openapi/pkg/spec3"
	"k8s.io/kube-openapi/pkg/validation/spec"

	"github.com/larder-io/larder/internal/registry/registrytest"
)

// described is an Extensions whose CRDs have only their descriptions.
type described struct {
	definitions map[string]*apiextensionsv1.CustomResourceDefinition
	built       map[string]int // by name and state
}

func (d *described) OpenAPIV2() []Description[spec.Swagger] {
	var list []Description[spec.Swagger]
	for _, definition := range d.definitions {
		state := fmt.Sprint(definition.Generation)
		list = append(list, Description[spec.Swagger]{Name: definition.Name, State: state, Build: func() (*spec.Swagger, error) {
			d.built[definition.Name+" "+state]++
			return swaggerOf(definition)
		}})
	}
	return list
}

func (d *described) OpenAPIV3() []Description[spec3.OpenAPI] {
	var list []Description[spec3.OpenAPI]
	for _, definition := range d.definitions {
		state, version := fmt.Sprint(definition.Generation), definition.Spec.Versions[0].Name
		list = append(list, Description[spec3.OpenAPI]{Name: "apis/" + definition.Spec.Group + "/" + version, State: state, Build: func() (*spec3.OpenAPI, error) {
			d.built[definition.Name+" "+state]++
			return builder.BuildOpenAPIV3(definition, version, builder.Options{})
		}})
	}
	return list
}

func swaggerOf(definition *apiextensionsv1.CustomResourceDefinition) (*spec.Swagger, error) {
	s, err := builder.BuildOpenAPIV2(definition, definition.Spec.Versions[0].Name, builder.Options{V2: true})
	if err == nil {
		s.Definitions = handler.PruneDefaults(s.Definitions)
	}
	return s, err
}

// definitionOf returns a CRD of one version. Schema is JSON.
func definitionOf(t *testing.T, group, version, kind, schema string, change ...func(*apiextensionsv1.CustomResourceDefinition)) *apiextensionsv1.CustomResourceDefinition {
	plural := strings.ToLower(kind) + "s"
	d := &apiextensionsv1.CustomResourceDefinition{ObjectMeta: metav1.ObjectMeta{Name: plural + "." + group}}
	d.Spec.Group, d.Spec.Scope = group, apiextensionsv1.NamespaceScoped
	d.Spec.Names = apiextensionsv1.CustomResourceDefinitionNames{Plural: plural, Kind: kind, ListKind: kind + "List"}
	v := apiextensionsv1.CustomResourceDefinitionVersion{Name: version, Served: true, Storage: true, Schema: new(apiextensionsv1.CustomResourceValidation)}
	if err := json.Unmarshal([]byte(`{"openAPIV3Schema":`+schema+`}`), v.Schema); err != nil {
		t.Fatal(err)
	}
	d.Spec.Versions = []apiextensionsv1.CustomResourceDefinitionVersion{v}
	for _, fn := range change {
		fn(d)
	}
	return d
}

const plainSchema = `{"type":"object","description":"a <thing> & more","properties":{"spec":{"type":"object","properties":{"size":{"type":"integer","minimum":1}}}}}`

// builtInSwagger returns a part of the document of a server without extensions.
func builtInSwagger(t *testing.T) *spec.Swagger {
	t.Helper()
	document, err := (&Describer{Models: NewModels(), Groups: registrytest.New(t, nil).Registry.Groups(), Version: release()}).v2()
	if err != nil {
		t.Fatal(err)
	}
	return aggregator.FilterSpecByPathsWithoutSideEffects(document, []string{
		"/apis/apps/v1/namespaces/{namespace}/deployments", "/apis/apiextensions.k8s.io/", "/api/v1/namespaces/{namespace}/pods/{name}/status",
	})
}

// mergedByUpstream merges builtIn and parts as apiextensions-apiserver and kube-aggregator do, and encodes the
// result.
func mergedByUpstream(builtIn *spec.Swagger, parts []*spec.Swagger) ([]byte, error) {
	custom, err := builder.MergeSpecs(new(spec.Swagger), parts...)
	if err != nil {
		return nil, err
	}
	merged := new(spec.Swagger)
	for _, s := range []*spec.Swagger{builtIn, custom} {
		decoded, err := Decoded(s)
		if err != nil {
			return nil, err
		}
		if merged.Swagger == "" {
			*merged = *decoded
			merged.Paths, merged.Definitions, merged.Parameters = nil, nil, nil
		}
		if err := aggregator.MergeSpecsIgnorePathConflictRenamingDefinitionsAndParameters(merged, decoded); err != nil {
			return nil, err
		}
	}
	return merged.MarshalJSON()
}

// TestSwaggerIsWhatUpstreamMerges checks that a document that is assembled from bytes equals the one that upstream
// merges and encodes, while CRDs are added, changed and removed.
func TestSwaggerIsWhatUpstreamMerges(t *testing.T) {
	builtIn := builtInSwagger(t)
	schemas := []string{
		plainSchema, `{"type":"object","x-kubernetes-preserve-unknown-fields":true}`, `{"type":"object"}`,
		`{"type":"object","properties":{"spec":{"type":"object","x-kubernetes-embedded-resource":true,"x-kubernetes-preserve-unknown-fields":true},"port":{"x-kubernetes-int-or-string":true},"free":{"type":"object","additionalProperties":{"type":"array","items":{"type":"string","nullable":true}}}}}`,
	}
	// The last two are paths or names that built-in kinds have.
	groups := []string{"example.com", "zoo.io", "apps", "core.api.k8s.io"}
	custom := &described{definitions: make(map[string]*apiextensionsv1.CustomResourceDefinition), built: make(map[string]int)}
	s := &swaggerService{builtIn: func() (*spec.Swagger, error) { return builtIn, nil }, others: custom.OpenAPIV2}
	generation := int64(0)
	described := make(map[int64]*spec.Swagger) // by generation
	for round := range uint64(25) {
		random := rand.New(rand.NewPCG(round, 1))
		for range 1 + random.IntN(3) {
			generation++
			d := definitionOf(t, pick(random, groups), pick(random, []string{"v1", "v1beta1"}), pick(random, []string{"Widget", "Deployment", "Pod"}), pick(random, schemas))
			d.Generation = generation
			if random.IntN(2) == 0 {
				d.Spec.Scope = apiextensionsv1.ClusterScoped
			}
			if random.IntN(2) == 0 {
				d.Spec.Versions[0].Subresources = &apiextensionsv1.CustomResourceSubresources{Status: &apiextensionsv1.CustomResourceSubresourceStatus{}, Scale: &apiextensionsv1.CustomResourceSubresourceScale{}}
			}
			custom.definitions[d.Name] = d
			if random.IntN(2) == 0 {
				delete(custom.definitions, pick(random, slices.Sorted(maps.Keys(custom.definitions))))
			}
		}
		var parts []*spec.Swagger
		for _, name := range slices.Sorted(maps.Keys(custom.definitions)) {
			d := custom.definitions[name]
			if described[d.Generation] == nil {
				described[d.Generation] = must(swaggerOf(d))
			}
			parts = append(parts, described[d.Generation])
		}
		want, err := mergedByUpstream(builtIn, parts)
		if err != nil {
			t.Fatal(err)
		}
		p, err := s.document().in("json")
		if err != nil {
			t.Fatal(err)
		}
		got := *must(p.unpack())
		if !bytes.Equal(got, want) {
			at := 0
			for at < min(len(got), len(want)) && got[at] == want[at] {
				at++
			}
			t.Fatalf("at %d of %d, %d:\n got %.300s\nwant %.300s", at, len(got), len(want), got[max(0, at-100):], want[max(0, at-100):])
		}
		for state, n := range custom.built {
			if n != 1 {
				t.Errorf("%s was built %d times", state, n)
			}
		}
	}
}

// TestBuiltInKindsAreEncodedAsDecoded checks that the document of the built-in kinds equals upstream's encoding of
// the decoded document, except the paths of apiregistration.k8s.io, which upstream does not decode.
func TestBuiltInKindsAreEncodedAsDecoded(t *testing.T) {
	describer := &Describer{Models: NewModels(), Groups: registrytest.New(t, nil).Registry.Groups(), Version: release()}
	built := must(describer.v2())
	decoded := must(Decoded(built))
	kept := 0
	for path, item := range built.Paths.Paths {
		if strings.HasPrefix(path, "/apis/apiregistration.k8s.io/") {
			decoded.Paths.Paths[path] = item
			kept++
		}
	}
	want := must(decoded.MarshalJSON())
	s := &swaggerService{builtIn: func() (*spec.Swagger, error) { return built, nil }}
	got := must(s.baseLocked())
	if !bytes.Equal(got, want) || kept == 0 {
		t.Errorf("%d bytes that differ from the %d wanted; %d paths kept", len(got), len(want), kept)
	}
}

func pick[T any](random *rand.Rand, from []T) T { return from[random.IntN(len(from))] }

// TestDocumentsAnswerAsUpstream compares the responses for a document with the responses of kube-openapi's handlers.
func TestDocumentsAnswerAsUpstream(t *testing.T) {
	definition := definitionOf(t, "example.com", "v1", "Widget", plainSchema)
	v2, err := swaggerOf(definition)
	if err != nil {
		t.Fatal(err)
	}
	v3, err := builder.BuildOpenAPIV3(definition, "v1", builder.Options{})
	if err != nil {
		t.Fatal(err)
	}
	theirs := http.NewServeMux()
	handler.NewOpenAPIServiceLazy(cached.Static(must(Decoded(v2)), "tag")).RegisterOpenAPIVersionedService("/openapi/v2", theirs)
	service := handler3.NewOpenAPIService()
	service.UpdateGroupVersion("apis/example.com/v1", v3)
	theirs.HandleFunc("/openapi/v3/", service.HandleGroupVersion)
	ours := http.NewServeMux()
	ours.Handle("/openapi/v2", newSwaggerService(func() (*spec.Swagger, error) { return v2, nil }, (&Describer{}).descriptionsV2))
	custom := &described{definitions: map[string]*apiextensionsv1.CustomResourceDefinition{"": definition}, built: make(map[string]int)}
	ours.HandleFunc("/openapi/v3/", (&openAPIv3{extensions: custom}).serveDocument)

	for _, path := range []string{"/openapi/v2", "/openapi/v3/apis/example.com/v1"} {
		tag := strings.Trim(responseTo(ours, http.MethodGet, path, nil).Header().Get("Etag"), `"`)
		for _, query := range []string{"", "?hash=x", "?hash=" + tag} {
			for _, accept := range accepted() {
				for _, more := range []http.Header{
					nil, {"If-None-Match": {`"` + tag + `"`}}, {"If-None-Match": {`"x"`, `*`}}, {"Range": {"bytes=10-20"}}, {"Range": {"bytes=-20"}},
					{"Range": {"bytes=5-10,1-3"}}, {"Range": {"bytes=99999999-"}}, {"Accept-Encoding": {"gzip"}}, {"Accept-Encoding": {"gzip"}, "If-None-Match": {`"` + tag + `"`}}, {"If-Match": {`"x"`}},
					{"Accept-Encoding": {"deflate, gzip;q=0.5"}}, {"Accept-Encoding": {"gzip;q=0"}}, {"Accept-Encoding": {"*"}},
					{"Accept-Encoding": {"gzip"}, "If-Match": {`"x"`}}, {"Accept-Encoding": {"gzip"}, "If-Match": {`"` + tag + `"`}},
					{"Accept-Encoding": {"gzip"}, "If-Unmodified-Since": {"Mon, 02 Jan 2006 15:04:05 GMT"}},
					{"Accept-Encoding": {"gzip"}, "Range": {"bytes=99999999-"}}, {"Accept-Encoding": {"gzip"}, "Range": {"bytes=10-20"}},
				} {
					header := more.Clone()
					if header == nil {
						header = make(http.Header)
					}
					if accept != "" {
						header.Set("Accept", accept)
					}
					for _, method := range []string{http.MethodGet, http.MethodHead} {
						got, want := summary(t, responseTo(ours, method, path+query, header)), summary(t, responseTo(theirs, method, path+query, header))
						if got != want {
							t.Errorf("%s %s %v:\n got %.600s\nwant %.600s", method, path+query, header, got, want)
						}
					}
				}
			}
		}
	}
}

// TestSwaggerIsSentAsKept checks that clients that accept gzip receive the cached bytes.
func TestSwaggerIsSentAsKept(t *testing.T) {
	s := &swaggerService{builtIn: func() (*spec.Swagger, error) {
		return swaggerOf(definitionOf(t, "example.com", "v1", "Widget", plainSchema))
	}, others: (&Describer{}).descriptionsV2}
	h := gziphandler.GzipHandler(http.HandlerFunc(s.serve))
	for _, accept := range []string{"application/json", "application/com.github.proto-openapi.spec.v2@v1.0+protobuf"} {
		w := responseTo(h, http.MethodGet, "/openapi/v2", http.Header{"Accept-Encoding": {"gzip"}, "Accept": {accept}})
		kept := s.document().json
		if accept != "application/json" {
			kept = s.document().proto
		}
		if !bytes.Equal(w.Body.Bytes(), kept.data) {
			t.Errorf("%s: %d bytes are sent, %d others are kept", accept, w.Body.Len(), len(kept.data))
		}
	}
}

// accepted are Accept headers for documents.
func accepted() []string {
	list := []string{"", "*/*", "application/*", "application/json", "text/html", "application/json;q=0.1,application/*", "nonsense", "application/yaml, application/json"}
	for _, version := range []string{"v2", "v3"} {
		list = append(list, "application/com.github.proto-openapi.spec."+version+"@v1.0+protobuf", "application/com.github.proto-openapi.spec."+version+".v1.0+protobuf")
	}
	return list
}

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

func responseTo(h http.Handler, method, path string, header http.Header) *httptest.ResponseRecorder {
	r := httptest.NewRequest(method, path, nil)
	maps.Copy(r.Header, header)
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w
}

// summary is a response without its times.
func summary(t *testing.T, w *httptest.ResponseRecorder) string {
	t.Helper()
	body := w.Body.Bytes()
	if w.Header().Get("Content-Encoding") == "gzip" {
		z, err := gzip.NewReader(bytes.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		if body, err = io.ReadAll(z); err != nil {
			t.Fatal(err)
		}
	}
	head := w.Header().Clone()
	for _, name := range []string{"Last-Modified", "Expires"} {
		if head.Get(name) != "" {
			head.Set(name, "some")
		}
	}
	if kind, _, several := strings.Cut(head.Get("Content-Type"), "; boundary="); several {
		head.Set("Content-Type", kind)
		body = nil
	}
	return fmt.Sprintf("%d %v %d %s", w.Code, head, len(body), body)
}

// TestIndexFollowsCRDs checks that the index names each document by its hash. A document is built once for each state
// of the CRDs that it describes.
func TestIndexFollowsCRDs(t *testing.T) {
	custom := &described{definitions: make(map[string]*apiextensionsv1.CustomResourceDefinition), built: make(map[string]int)}
	s := &openAPIv3{builtIn: map[string]*document{"version": newDocument(inV3, func(w io.Writer) error {
		_, err := w.Write([]byte(`{}`))
		return err
	})}, extensions: custom}
	date := "" // of the previous index, as kubectl keeps it
	check := func(want ...string) {
		t.Helper()
		for range 2 {
			w := responseTo(http.HandlerFunc(s.serveIndex), http.MethodGet, "/openapi/v3", http.Header{"If-Modified-Since": {date}})
			date = w.Header().Get("Last-Modified")
			var index handler3.OpenAPIV3Discovery
			if err := json.Unmarshal(w.Body.Bytes(), &index); err != nil {
				t.Fatal(err)
			}
			if got := slices.Sorted(maps.Keys(index.Paths)); !slices.Equal(got, append(want, "version")) {
				t.Errorf("index %v", got)
			}
			for name, entry := range index.Paths {
				got := httptest.NewRecorder()
				s.serveDocument(got, httptest.NewRequest(http.MethodGet, entry.ServerRelativeURL, nil))
				if got.Code != http.StatusOK || got.Header().Get("Cache-Control") != "public, immutable" || got.Body.Len() == 0 {
					t.Errorf("%s: got %d, header %v; want 200 that may be cached", name, got.Code, got.Header())
				}
			}
		}
	}
	check()
	one, other := definitionOf(t, "a.io", "v1", "One", plainSchema), definitionOf(t, "b.io", "v1", "Other", plainSchema)
	custom.definitions["one"] = one
	check("apis/a.io/v1")
	custom.definitions["other"] = other
	check("apis/a.io/v1", "apis/b.io/v1")
	changed := one.DeepCopy()
	changed.Generation++
	custom.definitions["one"] = changed
	check("apis/a.io/v1", "apis/b.io/v1")
	delete(custom.definitions, "other")
	check("apis/a.io/v1")
	if gone := responseTo(http.HandlerFunc(s.serveDocument), http.MethodGet, "/openapi/v3/apis/b.io/v1", nil); gone.Code != http.StatusNotFound {
		t.Errorf("the document of a deleted CRD: %d", gone.Code)
	}
	if want := map[string]int{"ones.a.io 0": 1, "others.b.io 0": 1, "ones.a.io 1": 1}; !maps.Equal(custom.built, want) {
		t.Errorf("built %v", custom.built)
	}
}

// TestDocumentThatFails checks that a later request builds a document that could not be built before.
func TestDocumentThatFails(t *testing.T) {
	failing := true
	d := newDocument(inV3, func(w io.Writer) error {
		if _, err := io.WriteString(w, "{}"); err != nil || !failing {
			return err
		}
		return errors.New("not yet")
	})
	if _, err := d.in("json"); err == nil {
		t.Error("no error")
	}
	failing = false
	p, err := d.in("json")
	if err != nil {
		t.Fatal(err)
	}
	if data := must(p.unpack()); string(*data) != "{}" {
		t.Errorf("unpacked %q, want {}", *data)
	}
}
