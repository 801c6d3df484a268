package customresources_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"

	"k8s.io/apiextensions-apiserver/pkg/apihelpers"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/larder-io/larder/internal/proctest"
)

// crates is a CRD. One of its property names shows everywhere which state of the CRD is served.
const crates = `
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata:
  name: crates.example.k8s.io
  annotations: {api-approved.kubernetes.io: "https://github.com/kubernetes/kubernetes/pull/1"}
spec:
  group: example.k8s.io
  scope: Cluster
  names: {plural: crates, singular: crate, kind: Crate, shortNames: [one]}
  versions:
  - name: v1
    served: true
    storage: true
    additionalPrinterColumns: [{name: one, type: string, jsonPath: .one}]
    schema: {openAPIV3Schema: {type: object, properties: {one: {type: string}}}}
`

// TestGenerationGoesBack checks that everything derived from a CRD follows its content: OpenAPI documents, discovery,
// schemas, Tables and conditions. After a reset, or in a restored etcd, a generation may recur with other content.
func TestGenerationGoesBack(t *testing.T) {
	s := newServer(t)
	s.define(t, crates)
	const name, key = "crates.example.k8s.io", "/registry/apiextensions.k8s.io/customresourcedefinitions/crates.example.k8s.io"
	client := s.crds.ApiextensionsV1().CustomResourceDefinitions()
	first, _, _, err := s.store.Get(t.Context(), key)
	must(t, err)
	// changeTo changes the CRD. The property shows which state is served.
	changeTo := func(property string) {
		s.change(t, name, func(d *apiextensionsv1.CustomResourceDefinition) {
			d.Annotations[apiextensionsv1.KubeAPIApprovedAnnotation] = "unapproved, test"
			d.Spec.Names.ShortNames = []string{property}
			d.Spec.Versions[0].AdditionalPrinterColumns[0].Name, d.Spec.Versions[0].AdditionalPrinterColumns[0].JSONPath = property, "."+property
			d.Spec.Versions[0].Schema.OpenAPIV3Schema.Properties = map[string]apiextensionsv1.JSONSchemaProps{property: {Type: "string"}}
		})
	}
	properties := []string{"one", "two", "three"}
	showsAlone := func(property string) func(response) bool {
		return func(a response) bool {
			for _, p := range properties {
				if strings.Contains(a.body, `"`+p+`"`) != (p == property) {
					return false
				}
			}
			return a.code < 300
		}
	}
	condition := func(kind apiextensionsv1.CustomResourceDefinitionConditionType, reason string) {
		t.Helper()
		proctest.Eventually(t, reason, func() error {
			d, err := client.Get(t.Context(), name, metav1.GetOptions{})
			must(t, err)
			if c := apihelpers.FindCRDCondition(d, kind); c == nil && reason != "" || c != nil && c.Reason != reason {
				return fmt.Errorf("%s is %v", kind, c)
			}
			return nil
		})
	}
	expect := func(property string, generation int64, reason string) {
		t.Helper()
		d, err := client.Get(t.Context(), name, metav1.GetOptions{})
		must(t, err)
		if d.Generation != generation {
			t.Fatalf("%s has generation %d", property, d.Generation)
		}
		condition(apiextensionsv1.KubernetesAPIApprovalPolicyConformant, reason)
		for _, path := range []string{"/openapi/v3/apis/example.k8s.io/v1", "/apis/example.k8s.io/v1"} {
			s.eventually(t, call{method: http.MethodGet, path: path}, showsAlone(property))
		}
		s.eventually(t, call{method: http.MethodGet, path: "/apis", accept: "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"}, showsAlone(property))
		s.eventually(t, call{method: http.MethodGet, path: "/apis/example.k8s.io/v1/crates", accept: "application/json;as=Table;v=v1;g=meta.k8s.io"}, showsAlone(property))
		swagger := s.get(t, "/openapi/v2").body // describes all kinds, which may use the property names
		swagger = swagger[strings.Index(swagger, `"io.k8s.example.v1.Crate"`):]
		if at := strings.Index(swagger, `"`+property+`":{"type":"string"}`); at < 0 || at > 2_000 {
			t.Errorf("%s is not in the OpenAPI definition: %.1000s", property, swagger)
		}
		made := s.do(t, http.MethodPost, "/apis/example.k8s.io/v1/crates", "application/json",
			`{"apiVersion":"example.k8s.io/v1","kind":"Crate","metadata":{"generateName":"c-"},"one":"1","two":"2","three":"3"}`)
		for _, p := range properties {
			if strings.Contains(made.body, `"`+p+`":"`) != (p == property) {
				t.Errorf("created with property %s: %s", property, made.body)
			}
		}
	}
	expect("one", 1, "ApprovedAnnotation")
	first, _, _, err = s.store.Get(t.Context(), key) // has all conditions
	must(t, err)
	changeTo("two")
	expect("two", 2, "UnapprovedAnnotation")
	s.put(t, key, string(first.Value)) // no client reads documents between the changes
	s.eventually(t, call{method: http.MethodGet, path: "/apis/example.k8s.io/v1"}, showsAlone("one"))
	changeTo("three")
	expect("three", 2, "UnapprovedAnnotation")

	// Today's API rejects this non-structural schema, but the store may have it from before.
	faulty := func(generation int64) string {
		d, err := client.Get(t.Context(), name, metav1.GetOptions{})
		must(t, err)
		d.Generation, d.Spec.PreserveUnknownFields, d.ResourceVersion = generation, true, ""
		d.APIVersion, d.Kind = "apiextensions.k8s.io/v1", "CustomResourceDefinition"
		raw, err := json.Marshal(d)
		must(t, err)
		return string(raw)
	}
	condition(apiextensionsv1.NonStructuralSchema, "")
	last, earlier := faulty(7), faulty(5)
	s.put(t, key, last)
	condition(apiextensionsv1.NonStructuralSchema, "Violations")
	s.put(t, key, string(first.Value))
	condition(apiextensionsv1.NonStructuralSchema, "")
	s.put(t, key, earlier)
	condition(apiextensionsv1.NonStructuralSchema, "Violations")
}

// TestConditionIsWrittenOncePerState checks that a condition set by another writer, such as a server of another
// version, stays until the specification changes.
func TestConditionIsWrittenOncePerState(t *testing.T) {
	s := newServer(t)
	client := s.crds.ApiextensionsV1().CustomResourceDefinitions()
	w, err := client.Watch(t.Context(), metav1.ListOptions{})
	must(t, err)
	defer w.Stop()
	const name = "crates.example.k8s.io"
	// reasons waits until the CRD has the property, and its condition the reason last. It returns all reasons that the
	// condition had until then.
	reasons := func(property, last string) []string {
		t.Helper()
		var seen []string
		for event := range w.ResultChan() {
			crd, ok := event.Object.(*apiextensionsv1.CustomResourceDefinition)
			if !ok {
				t.Fatalf("watch of CRDs: event %v", event)
			}
			c := apihelpers.FindCRDCondition(crd, apiextensionsv1.KubernetesAPIApprovalPolicyConformant)
			if crd.Name != name || c == nil {
				continue
			}
			seen = slices.Compact(append(seen, c.Reason))
			if c.Reason == last && slices.Contains(crd.Spec.Names.ShortNames, property) {
				return seen
			}
		}
		t.Fatal("the watch of CRDs ended")
		return nil
	}
	s.define(t, crates)
	reasons("one", "ApprovedAnnotation")
	crd, err := client.Get(t.Context(), name, metav1.GetOptions{})
	must(t, err)
	apihelpers.SetCRDCondition(crd, apiextensionsv1.CustomResourceDefinitionCondition{
		Type: apiextensionsv1.KubernetesAPIApprovalPolicyConformant, Status: apiextensionsv1.ConditionFalse, Reason: "Foreign",
	})
	_, err = client.UpdateStatus(t.Context(), crd, metav1.UpdateOptions{})
	must(t, err)
	reasons("one", "Foreign")
	const other = "boxes.example.k8s.io" // when it has its condition, the controller has handled the earlier event
	s.define(t, strings.NewReplacer("crates", "boxes", "crate", "box", "Crate", "Box", "[one]", "[b]").Replace(crates))
	proctest.Eventually(t, "the second CRD gets its condition", func() error {
		d, err := client.Get(t.Context(), other, metav1.GetOptions{})
		must(t, err)
		if apihelpers.FindCRDCondition(d, apiextensionsv1.KubernetesAPIApprovalPolicyConformant) == nil {
			return errors.New("no condition")
		}
		return nil
	})
	s.change(t, name, func(d *apiextensionsv1.CustomResourceDefinition) { d.Spec.Names.ShortNames = []string{"two"} })
	if got, want := reasons("two", "ApprovedAnnotation"), []string{"Foreign", "ApprovedAnnotation"}; !slices.Equal(got, want) {
		t.Errorf("reasons after another writer's condition and a change: %q", got)
	}
}
