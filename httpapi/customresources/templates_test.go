// These tests use one goroutine, and take the race detector a minute.

//go:build !race

package customresources

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/version"
	"k8s.io/kube-openapi/pkg/spec3"
	"k8s.io/kube-openapi/pkg/validation/spec"

	"github.com/larder-io/larder/httpapi/openapi"
	"github.com/larder-io/larder/internal/registry/registrytest"
)

// schemas returns schemas that upstream's OpenAPI builder treats specially.
func schemas() map[string]string {
	return map[string]string{
		"none":       ``,
		"empty":      `{"type":"object"}`,
		"open":       `{"type":"object","x-kubernetes-preserve-unknown-fields":true}`,
		"open below": `{"type":"object","properties":{"spec":{"type":"object","x-kubernetes-preserve-unknown-fields":true,"properties":{"known":{"type":"string"}}},"list":{"type":"array","x-kubernetes-preserve-unknown-fields":true,"items":{"type":"object","x-kubernetes-preserve-unknown-fields":true}}}}`,
		"texts":      `{"type":"object","description":"a <thing> & \"more\" – größer","required":["spec"],"properties":{"spec":{"type":"object","description":"zqplural Zqkind v7zq","properties":{"size":{"type":"integer","format":"int64","minimum":1,"maximum":1000000000000000000000,"exclusiveMinimum":true,"multipleOf":0.5,"default":3},"name":{"type":"string","template":"^[a-z<>&]+$","maxLength":10,"enum":["a","b",""],"default":"a"}}}}}`,
		"union":      `{"type":"object","properties":{"port":{"x-kubernetes-int-or-string":true},"other":{"x-kubernetes-int-or-string":true,"anyOf":[{"type":"integer"},{"type":"string"}],"default":"x"}}}`,
		"nullable":   `{"type":"object","required":["a","b"],"properties":{"a":{"type":"object","nullable":true,"properties":{"x":{"type":"string"}}},"b":{"type":"array","items":{"type":"string","nullable":true}},"c":{"type":"object","additionalProperties":{"type":"string","nullable":true}}}}`,
		"embedded":   `{"type":"object","properties":{"one":{"type":"object","x-kubernetes-embedded-resource":true,"required":["kind","spec"],"properties":{"spec":{"type":"object"}}},"free":{"type":"object","x-kubernetes-embedded-resource":true,"x-kubernetes-preserve-unknown-fields":true},"many":{"type":"array","items":{"type":"object","x-kubernetes-embedded-resource":true,"properties":{"data":{"type":"string"}}}},"named":{"type":"object","additionalProperties":{"type":"object","x-kubernetes-embedded-resource":true,"properties":{"data":{"type":"string"}}}}}}`,
		"metadata":   `{"type":"object","description":"own","properties":{"apiVersion":{"type":"string"},"kind":{"type":"string"},"metadata":{"type":"object","properties":{"name":{"type":"string","maxLength":8}}},"status":{"type":"object"}}}`,
		"logic":      `{"type":"object","properties":{"v":{"type":"object","properties":{"a":{"type":"string"},"b":{"type":"string"}},"oneOf":[{"required":["a"]},{"required":["b"]}],"not":{"required":["c"]},"allOf":[{"properties":{"a":{"minLength":2}}}]}}}`,
		"rules":      `{"type":"object","properties":{"m":{"type":"array","maxItems":4,"x-kubernetes-list-type":"map","x-kubernetes-list-map-keys":["k"],"items":{"type":"object","required":["k"],"properties":{"k":{"type":"string"}},"x-kubernetes-map-type":"atomic"}},"r":{"type":"integer","x-kubernetes-validations":[{"rule":"self < 10","message":"<10","reason":"FieldValueInvalid","fieldPath":".r"}]}}}`,
		"defaults":   `{"type":"object","properties":{"d":{"type":"object","default":{"x":{"y":[1,2.5,"<",null]}},"properties":{"x":{"type":"object","x-kubernetes-preserve-unknown-fields":true}}}}}`,
		"not formed": `{"type":"object","properties":{"loose":{"properties":{"x":{"type":"string"}}}}}`,
		"extras":     `{"type":"object","title":"a title","externalDocs":{"description":"d","url":"https://example.com/x"},"properties":{"e":{"type":"string","title":"t","example":{"a":"b"},"externalDocs":{"url":"https://example.com"}}}}`,
	}
}

// crd returns a CRD whose versions have the same schema.
func crd(t *testing.T, group, kind, schema string, change ...func(*apiextensionsv1.CustomResourceDefinition)) *apiextensionsv1.CustomResourceDefinition {
	t.Helper()
	plural := strings.ToLower(kind) + "s"
	d := &apiextensionsv1.CustomResourceDefinition{ObjectMeta: metav1.ObjectMeta{Name: plural + "." + group, UID: types.UID(plural + group), Generation: 1}}
	d.Spec.Group, d.Spec.Scope = group, apiextensionsv1.NamespaceScoped
	d.Spec.Names = apiextensionsv1.CustomResourceDefinitionNames{Plural: plural, Kind: kind, ListKind: kind + "List"}
	v := apiextensionsv1.CustomResourceDefinitionVersion{Name: "v1", Served: true, Storage: true}
	if schema != "" {
		v.Schema = new(apiextensionsv1.CustomResourceValidation)
		if err := json.Unmarshal([]byte(`{"openAPIV3Schema":`+schema+`}`), v.Schema); err != nil {
			t.Fatal(err)
		}
	}
	d.Spec.Versions = []apiextensionsv1.CustomResourceDefinitionVersion{v}
	for _, fn := range change {
		fn(d)
	}
	d.Status.AcceptedNames = d.Spec.Names
	d.Status.Conditions = []apiextensionsv1.CustomResourceDefinitionCondition{{Type: apiextensionsv1.Established, Status: apiextensionsv1.ConditionTrue}}
	return d
}

func cluster(d *apiextensionsv1.CustomResourceDefinition) {
	d.Spec.Scope = apiextensionsv1.ClusterScoped
}

func loose(d *apiextensionsv1.CustomResourceDefinition) { d.Spec.PreserveUnknownFields = true }

func subresourced(status, scale bool) func(*apiextensionsv1.CustomResourceDefinition) {
	return func(d *apiextensionsv1.CustomResourceDefinition) {
		s := new(apiextensionsv1.CustomResourceSubresources)
		if status {
			s.Status = new(apiextensionsv1.CustomResourceSubresourceStatus)
		}
		if scale {
			s.Scale = &apiextensionsv1.CustomResourceSubresourceScale{SpecReplicasPath: ".spec.replicas", StatusReplicasPath: ".status.replicas"}
		}
		d.Spec.Versions[0].Subresources = s
	}
}

// versionsOf adds copies of the first version. The last copy is not served.
func versionsOf(names ...string) func(*apiextensionsv1.CustomResourceDefinition) {
	return func(d *apiextensionsv1.CustomResourceDefinition) {
		for i, name := range names {
			v := d.Spec.Versions[0]
			v.Name, v.Storage, v.Served = name, false, i < len(names)-1
			d.Spec.Versions = append(d.Spec.Versions, v)
		}
	}
}

func listed(listKind string) func(*apiextensionsv1.CustomResourceDefinition) {
	return func(d *apiextensionsv1.CustomResourceDefinition) { d.Spec.Names.ListKind = listKind }
}

// serves returns an Extensions that serves CRDs without informers and controllers.
func serves(crds ...*apiextensionsv1.CustomResourceDefinition) *Extensions {
	e := &Extensions{templatesV2: newTemplatesV2(), templatesV3: newTemplatesV3()}
	var servings index
	for _, d := range crds {
		servings = servings.with(resourceOf(d), newServing(e, d, nil))
	}
	e.servings.Store(&servings)
	return e
}

// plainly is an Extensions without templates: upstream's builder builds all documents.
type plainly struct{ *Extensions }

func (p plainly) OpenAPIV2() []openapi.Description[spec.Swagger] {
	return without(p.Extensions.OpenAPIV2())
}

func (p plainly) OpenAPIV3() []openapi.Description[spec3.OpenAPI] {
	return without(p.Extensions.OpenAPIV3())
}

func without[T any](list []openapi.Description[T]) []openapi.Description[T] {
	for i := range list {
		list[i].Variants = nil
	}
	return list
}

type counted struct {
	*Extensions
	built map[string]bool
}

func (c counted) OpenAPIV2() []openapi.Description[spec.Swagger] {
	return counting(c.built, c.Extensions.OpenAPIV2())
}

func (c counted) OpenAPIV3() []openapi.Description[spec3.OpenAPI] {
	return counting(c.built, c.Extensions.OpenAPIV3())
}

func counting[T any](built map[string]bool, list []openapi.Description[T]) []openapi.Description[T] {
	for i := range list {
		name, build := list[i].Name, list[i].Build
		list[i].Build = func() (*T, error) {
			built[name] = true
			return build()
		}
	}
	return list
}

// documentsOf serves the OpenAPI documents of a server with the extensions.
func documentsOf(t *testing.T, e openapi.Extensions) *http.ServeMux {
	t.Helper()
	mux := http.NewServeMux()
	d := &openapi.Describer{
		Models: openapi.NewModels(), Groups: registrytest.New(t, nil).Registry.Groups(),
		Version: &version.Info{Major: "1", Minor: "36", EmulationMajor: "1", EmulationMinor: "36"}, Extensions: e,
	}
	d.Install(prefixes{mux})
	return mux
}

// prefixes makes a ServeMux a router of OpenAPI handlers.
type prefixes struct{ *http.ServeMux }

func (p prefixes) HandlePrefix(path string, h http.Handler) { p.Handle(path, h) }

func read(mux *http.ServeMux, path string) string {
	w := httptest.NewRecorder()
	r := httptest.NewRequest(http.MethodGet, path, nil)
	r.Header.Set("Accept", "application/json")
	mux.ServeHTTP(w, r)
	return fmt.Sprint(w.Code, w.Body.String())
}

// TestTemplatesMatchUpstream checks that documents built from templates equal upstream's, byte by byte.
func TestTemplatesMatchUpstream(t *testing.T) {
	var crds []*apiextensionsv1.CustomResourceDefinition
	for i, name := range slices.Sorted(maps.Keys(schemas())) {
		text := schemas()[name]
		of := []*apiextensionsv1.CustomResourceDefinition{
			crd(t, "example.com", fmt.Sprintf("Widget%d", i), text),
			crd(t, "3d.zoo-keeper.k8s.io", fmt.Sprintf("Item%ds", i), text, cluster, subresourced(true, false), listed(fmt.Sprintf("Stock%d", i)), versionsOf("v1beta1", "v2alpha1")),
			crd(t, "one", fmt.Sprintf("Owner%d", i), text, subresourced(true, true), versionsOf("v1-x", "v2")),
			crd(t, "scale.example.com", fmt.Sprintf("Scale%d", i), text, subresourced(false, true), loose),
		}
		if testing.Short() {
			of = of[i%4 : i%4+1] // every schema and every group is still tested
		}
		crds = append(crds, of...)
	}
	upstreamAlone := map[string]bool{}
	for _, d := range []*apiextensionsv1.CustomResourceDefinition{
		crd(t, "core.api.k8s.io", "Pod", schemas()["texts"]),                         // a CRD of that name is built in
		crd(t, "lower.example.com", "collectionwidget", schemas()["texts"], cluster), // its operation IDs begin with another verb
		crd(t, "dash.example.com", "Some-Thing", schemas()["texts"]),
		crd(t, "field.example.com", "Picked", schemas()["texts"], func(d *apiextensionsv1.CustomResourceDefinition) {
			d.Spec.Versions[0].SelectableFields = []apiextensionsv1.SelectableField{{JSONPath: ".spec.name"}}
		}),
	} {
		crds = append(crds, d)
		upstreamAlone[d.Name], upstreamAlone["apis/"+d.Spec.Group+"/v1"] = true, true
	}
	built := make(map[string]bool)
	fast, slow := documentsOf(t, counted{serves(crds...), built}), documentsOf(t, plainly{serves(crds...)})
	paths := []string{"/openapi/v2"}
	for _, d := range crds {
		for _, v := range d.Spec.Versions {
			if path := "/openapi/v3/apis/" + d.Spec.Group + "/" + v.Name; v.Served && !slices.Contains(paths, path) {
				paths = append(paths, path)
			}
		}
	}
	for _, path := range paths {
		got, want := read(fast, path), read(slow, path)
		if got == want && len(got) > 1000 {
			continue
		}
		at := 0
		for at < min(len(got), len(want)) && got[at] == want[at] {
			at++
		}
		t.Errorf("%s: at %d of %d, %d:\n got %.500s\nwant %.500s", path, at, len(got), len(want), got[max(0, at-200):], want[max(0, at-200):])
	}
	for name, want := range upstreamAlone {
		if built[name] != want {
			t.Errorf("%s was built by upstream's builder: %t, want %t", name, built[name], want)
		}
		delete(built, name)
	}
	for name := range built {
		t.Errorf("%s was built by upstream's builder", name)
	}
}

// TestConflictsOfKindsMatchUpstream checks that if two CRDs of a group have conflicting kinds, the documents contain
// neither, as upstream's.
func TestConflictsOfKindsMatchUpstream(t *testing.T) {
	crds := []*apiextensionsv1.CustomResourceDefinition{
		crd(t, "twice.example.com", "Thing", ""), crd(t, "twice.example.com", "ThingList", ""),
	}
	built := make(map[string]bool)
	const path = "/openapi/v3/apis/twice.example.com/v1"
	got, want := read(documentsOf(t, counted{serves(crds...), built}), path), read(documentsOf(t, plainly{serves(crds...)}), path)
	if got != want || strings.Contains(got, "{") || !built["apis/twice.example.com/v1"] {
		t.Errorf("got %.300s, want %.300s; upstream's builder built %v", got, want, built)
	}
}
