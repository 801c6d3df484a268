package customresources_test

import (
	"encoding/pem"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	apidiscoveryv2 "k8s.io/api/apidiscovery/v2"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/storage"
	"sigs.k8s.io/yaml"

	"github.com/larder-io/larder/httpapi/patches"
	"github.com/larder-io/larder/internal/proctest"
	"github.com/larder-io/larder/kv"
)

func deleteNow() metav1.DeleteOptions { return metav1.DeleteOptions{} }

func deleteOptions() *metav1.DeleteOptions { return new(metav1.DeleteOptions) }

func everythingRecursive() storage.ListOptions {
	return storage.ListOptions{Recursive: true, Predicate: storage.Everything}
}

func justGet() storage.GetOptions { return storage.GetOptions{} }

func everythingBelow(key string) kv.RangeOptions { return kv.RangeOptions{Prefix: key} }

// certificateOf returns the PEM certificate of a test server, which is also its CA.
func certificateOf(server *httptest.Server) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})
}

// TestUnknownPathsAreNotFound checks that unknown groups, versions, resources and paths are not found.
func TestUnknownPathsAreNotFound(t *testing.T) {
	s := newServer(t)
	s.define(t, shelves)
	for _, path := range []string{
		"/apis/nobody.example.com/v1/things", "/apis/nobody.example.com/v1", "/apis/nobody.example.com", "//apis/example.com", "//apis/example.com/v1", "/apis/example.com/v3/shelves",
		"/apis/example.com/v1/boxes", "/apis/example.com/v1/shelves/x", "/apis/example.com/v9", "/apis/example.com/v1/namespaces/ns/shelves/x/y/z",
	} {
		for _, method := range []string{http.MethodGet, http.MethodPut, http.MethodDelete} {
			if a := s.send(t, call{method: method, path: path}); a.code != http.StatusNotFound {
				t.Errorf("%s %s: got %s, want 404", method, path, a)
			}
		}
	}
}

// TestDiscoveryFollowsCRDs checks that a CRD is in discovery until it is deleted.
func TestDiscoveryFollowsCRDs(t *testing.T) {
	s := newServer(t)
	s.define(t, shelves)
	s.eventually(t, call{method: http.MethodGet, path: "/apis/example.com/v1"}, func(a response) bool { return a.code == http.StatusOK })
	contains(t, s.get(t, "/apis/example.com/v1").body, `"name":"shelves"`, `"kind":"Shelf"`, `"storageVersionHash"`)
	contains(t, s.get(t, "/apis/example.com").body, `"preferredVersion":{"groupVersion":"example.com/v2","version":"v2"}`)
	const whole = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"
	var list apidiscoveryv2.APIGroupDiscoveryList
	must(t, yaml.Unmarshal([]byte(s.send(t, call{method: http.MethodGet, path: "/apis", accept: whole}).body), &list))
	last := list.Items[len(list.Items)-1]
	if last.Name != "example.com" || len(last.Versions) != 2 || last.Versions[0].Version != "v2" {
		t.Errorf("aggregated discovery ends with %+v", last)
	}
	must(t, s.crds.ApiextensionsV1().CustomResourceDefinitions().Delete(t.Context(), "shelves.example.com", deleteNow()))
	for _, path := range []string{"/apis/example.com/v1", "/apis/example.com"} {
		s.eventually(t, call{method: http.MethodGet, path: path}, func(a response) bool { return a.code == http.StatusNotFound })
	}
	lacks(t, s.send(t, call{method: http.MethodGet, path: "/apis", accept: whole}).body, `"example.com"`)
}

// TestDiscoveryKeepsCRDsApart checks that discovery survives a status that claims the name of another CRD's resource,
// until the status is corrected.
func TestDiscoveryKeepsCRDsApart(t *testing.T) {
	s := newServer(t)
	s.define(t, shelves)
	boards := s.define(t, shelves, func(d *apiextensionsv1.CustomResourceDefinition) {
		d.Name, d.Spec.Scope = "boards.example.com", apiextensionsv1.ClusterScoped
		d.Spec.Names = apiextensionsv1.CustomResourceDefinitionNames{Plural: "boards", Singular: "board", Kind: "Board", ListKind: "BoardList"}
		d.Spec.Versions[0].Subresources = &apiextensionsv1.CustomResourceSubresources{Status: new(apiextensionsv1.CustomResourceSubresourceStatus)}
	})
	shows := func(a response) bool { return strings.Contains(a.body, `"boards/status"`) }
	s.eventually(t, call{method: http.MethodGet, path: "/apis/example.com/v1"}, shows)
	for {
		boards.Status.AcceptedNames.Plural = "shelves"
		_, err := s.crds.ApiextensionsV1().CustomResourceDefinitions().UpdateStatus(t.Context(), boards, metav1.UpdateOptions{})
		if err == nil {
			break
		}
		if !apierrors.IsConflict(err) {
			t.Fatal(err)
		}
		boards, err = s.crds.ApiextensionsV1().CustomResourceDefinitions().Get(t.Context(), boards.Name, metav1.GetOptions{})
		must(t, err)
	}
	proctest.Eventually(t, "the status is corrected", func() error {
		d, err := s.crds.ApiextensionsV1().CustomResourceDefinitions().Get(t.Context(), boards.Name, metav1.GetOptions{})
		if err == nil && d.Status.AcceptedNames.Plural != "boards" {
			err = fmt.Errorf("%+v", d.Status)
		}
		return err
	})
	s.eventually(t, call{method: http.MethodGet, path: "/apis/example.com/v1"}, shows)
}

// TestCRDsInBuiltInGroupsComeAndGo checks that a CRD may be in a built-in group, and even have the name of a built-in
// resource. Discovery has its versions, but requests go to the built-in group, as in kube-apiserver. The CRD can be
// deleted.
func TestCRDsInBuiltInGroupsComeAndGo(t *testing.T) {
	s := newServer(t)
	const whole = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"
	before := s.send(t, call{method: http.MethodGet, path: "/apis", accept: whole}).body
	for _, name := range []string{"shelves.storage.k8s.io", "networkpolicies.networking.k8s.io"} {
		resource, group, _ := strings.Cut(name, ".")
		t.Run(name, func(t *testing.T) {
			s.define(t, shelves, func(d *apiextensionsv1.CustomResourceDefinition) {
				d.Name, d.Spec.Group, d.Spec.Names.Plural = name, group, resource
				d.Annotations = map[string]string{apiextensionsv1.KubeAPIApprovedAnnotation: "unapproved, a test"}
			})
			s.eventually(t, call{method: http.MethodGet, path: "/apis", accept: whole}, func(a response) bool {
				var list apidiscoveryv2.APIGroupDiscoveryList
				must(t, yaml.Unmarshal([]byte(a.body), &list))
				at := slices.IndexFunc(list.Items, func(g apidiscoveryv2.APIGroupDiscovery) bool { return g.Name == group })
				return slices.ContainsFunc(list.Items[at].Versions, func(v apidiscoveryv2.APIVersionDiscovery) bool { return v.Version == "v2" })
			})
			for path, want := range map[string]int{
				"/apis/" + group + "/v2/" + resource: http.StatusNotFound, "/apis/" + group + "/v2": http.StatusNotFound,
				"/apis/" + group + "/v1": http.StatusOK,
			} {
				if a := s.get(t, path); a.code != want {
					t.Errorf("%s: got %s, want %d", path, a, want)
				}
			}
			if n := strings.Count(s.send(t, call{method: http.MethodGet, path: "/apis", accept: whole}).body, `"name":"`+group+`"`); n != 1 {
				t.Errorf("/apis has the group %d times, want once", n)
			}
			client := s.crds.ApiextensionsV1().CustomResourceDefinitions()
			must(t, client.Delete(t.Context(), name, deleteNow()))
			proctest.Eventually(t, "the CRD is deleted", func() error {
				if _, err := client.Get(t.Context(), name, metav1.GetOptions{}); !apierrors.IsNotFound(err) {
					return fmt.Errorf("get: error %v, want not found", err)
				}
				return nil
			})
			s.eventually(t, call{method: http.MethodGet, path: "/apis", accept: whole}, func(a response) bool { return a.body == before })
		})
	}
}

// TestEstablishedCRDsAreServedImmediately checks that a CRD is served as soon as a client sees that it is established,
// even if the server's informer has not seen it yet.
func TestEstablishedCRDsAreServedImmediately(t *testing.T) {
	s := newServer(t)
	for i := range 20 {
		name := string(rune('a' + i))
		s.define(t, shelves, func(d *apiextensionsv1.CustomResourceDefinition) {
			d.Name = name + "shelves.example.com"
			d.Spec.Names = apiextensionsv1.CustomResourceDefinitionNames{Plural: name + "shelves", Singular: name + "shelf", Kind: "Shelf" + name, ListKind: "Shelf" + name + "List"}
		})
		if a := s.get(t, "/apis/example.com/v1/"+name+"shelves"); a.code != http.StatusOK {
			t.Fatalf("%sshelves: got %s, want 200", name, a)
		}
	}
}

// TestStatusAndScaleAreServed checks the status and scale subresources.
func TestStatusAndScaleAreServed(t *testing.T) {
	s := newServer(t)
	s.define(t, shelves, func(d *apiextensionsv1.CustomResourceDefinition) {
		v := &d.Spec.Versions[0]
		v.Schema.OpenAPIV3Schema.Properties["status"] = apiextensionsv1.JSONSchemaProps{
			Type: "object", Properties: map[string]apiextensionsv1.JSONSchemaProps{"books": {Type: "integer"}},
		}
		v.Subresources = &apiextensionsv1.CustomResourceSubresources{
			Status: &apiextensionsv1.CustomResourceSubresourceStatus{},
			Scale:  &apiextensionsv1.CustomResourceSubresourceScale{SpecReplicasPath: ".spec.width", StatusReplicasPath: ".status.books"},
		}
	})
	const js, merge = "application/json", "application/merge-patch+json"
	s.do(t, http.MethodPost, shelvesV1, js, `{"apiVersion":"example.com/v1","kind":"Shelf","metadata":{"name":"a"},"status":{"books":9}}`)
	lacks(t, s.get(t, shelvesV1+"/a").body, "books")
	s.do(t, http.MethodPatch, shelvesV1+"/a/status", merge, `{"status":{"books":3},"spec":{"width":1}}`)
	contains(t, s.get(t, shelvesV1+"/a").body, `"books":3`, `"width":80`, `"generation":1`)
	contains(t, s.get(t, shelvesV1+"/a/scale").body, `"kind":"Scale"`, `"replicas":80`, `"replicas":3`)
	s.do(t, http.MethodPatch, shelvesV1+"/a/scale", merge, `{"spec":{"replicas":5}}`)
	contains(t, s.get(t, shelvesV1+"/a").body, `"width":5`, `"generation":2`)
	if a := s.get(t, shelvesV2+"/a/scale"); a.code != http.StatusNotFound {
		t.Errorf("scale of a version without it: %s", a)
	}
}

// TestDeepPatchesAreRejected checks that patches of custom resources have the same limits as others.
func TestDeepPatchesAreRejected(t *testing.T) {
	s := newServer(t)
	s.define(t, shelves)
	s.do(t, http.MethodPost, shelvesV1, "application/json", `{"apiVersion":"example.com/v1","kind":"Shelf","metadata":{"name":"a"}}`)
	for levels, code := range map[int]int{patches.MaxDepth: http.StatusOK, patches.MaxDepth + 1: http.StatusBadRequest} {
		body := strings.Repeat(`{"a":`, levels) + "1" + strings.Repeat("}", levels)
		a := s.send(t, call{method: http.MethodPatch, path: shelvesV1 + "/a", kind: "application/merge-patch+json", body: body})
		if a.code != code {
			t.Errorf("patch with %d levels: %s, want %d", levels, a, code)
		}
	}
}

// TestApplyUsesTheSchema checks that server-side apply merges lists of type map by their keys.
func TestApplyUsesTheSchema(t *testing.T) {
	s := newServer(t)
	s.define(t, shelves, func(d *apiextensionsv1.CustomResourceDefinition) {
		kind := "map"
		d.Spec.Versions[0].Schema.OpenAPIV3Schema.Properties["books"] = apiextensionsv1.JSONSchemaProps{
			Type: "array", XListType: &kind, XListMapKeys: []string{"name"},
			Items: &apiextensionsv1.JSONSchemaPropsOrArray{Schema: &apiextensionsv1.JSONSchemaProps{
				Type: "object", Required: []string{"name"},
				Properties: map[string]apiextensionsv1.JSONSchemaProps{"name": {Type: "string"}, "pages": {Type: "integer"}},
			}},
		}
	})
	const apply = "application/apply-patch+yaml"
	head := "apiVersion: example.com/v1\nkind: Shelf\nmetadata: {name: a}\n"
	s.do(t, http.MethodPatch, shelvesV1+"/a?fieldManager=one", apply, head+"books: [{name: p, pages: 1}]\n")
	a := s.do(t, http.MethodPatch, shelvesV1+"/a?fieldManager=two", apply, head+"books: [{name: q, pages: 2}]\n")
	contains(t, compact(t, a.body), `"books":[{"name":"p","pages":1},{"name":"q","pages":2}]`)
	conflict := s.send(t, call{method: http.MethodPatch, path: shelvesV1 + "/a?fieldManager=two", kind: apply, body: head + "books: [{name: p, pages: 3}]\n"})
	if conflict.code != http.StatusConflict {
		t.Errorf("conflict: %s", conflict)
	}
	// JSON with duplicate keys.
	object := `{"apiVersion":"example.com/v1","kind":"Shelf","metadata":{"name":"a"},"books":[{"name":"q","pages":%s}]}`
	applied := func(pages, directive string) response {
		return s.send(t, call{method: http.MethodPatch, path: shelvesV1 + "/a?fieldManager=two" + directive, kind: apply, body: fmt.Sprintf(object, pages)})
	}
	for _, directive := range []string{"", "&fieldValidation=Strict", "&fieldValidation=Warn", "&fieldValidation=Ignore"} {
		if a := applied("7", directive); a.code != http.StatusOK || a.header.Get("Warning") != "" {
			t.Errorf("%s: %s, warning %q", directive, a, a.header.Get("Warning"))
		}
		a := applied(`7,"pages":8`, directive)
		strict, warned := directive == "&fieldValidation=Strict", directive == "" || directive == "&fieldValidation=Warn"
		if (a.code == http.StatusBadRequest) != strict || strings.Contains(a.header.Get("Warning"), "already set") != warned {
			t.Errorf("%s, with a duplicate key: %s, warning %q", directive, a, a.header.Get("Warning"))
		}
	}
}
