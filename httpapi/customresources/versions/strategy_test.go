package versions

import (
	"context"
	"fmt"
	"testing"

	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/validation"
	"k8s.io/apiextensions-apiserver/pkg/registry/customresource"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/json"
)

// shelves returns a CRD with a schema and a scale subresource.
func shelves(t *testing.T, text string) *apiextensionsv1.CustomResourceDefinition {
	t.Helper()
	var props apiextensionsv1.JSONSchemaProps
	if err := json.Unmarshal([]byte(text), &props); err != nil {
		t.Fatal(err)
	}
	crd := &apiextensionsv1.CustomResourceDefinition{}
	crd.Spec = apiextensionsv1.CustomResourceDefinitionSpec{Group: "example.com", Scope: apiextensionsv1.NamespaceScoped,
		Versions: []apiextensionsv1.CustomResourceDefinitionVersion{{
			Name: "v1", Served: true, Storage: true, Schema: &apiextensionsv1.CustomResourceValidation{OpenAPIV3Schema: &props},
			Subresources: &apiextensionsv1.CustomResourceSubresources{Scale: &apiextensionsv1.CustomResourceSubresourceScale{SpecReplicasPath: ".spec.replicas", StatusReplicasPath: ".status.replicas"}},
		}}}
	crd.Status.AcceptedNames.Kind = "Shelf"
	return crd
}

// upstreamOf returns upstream's strategy and Larder's checks for a CRD.
func upstreamOf(t *testing.T, crd *apiextensionsv1.CustomResourceDefinition) (upstreamStrategy, *checks) {
	t.Helper()
	schemas, err := SchemasOf(crd)
	if err != nil {
		t.Fatal(err)
	}
	s := schemas["v1"]
	props, err := PropsOf(crd.Spec.Versions[0].Schema)
	if err != nil {
		t.Fatal(err)
	}
	validator, _, err := validation.NewSchemaValidator(props)
	if err != nil {
		t.Fatal(err)
	}
	kind := schema.GroupVersionKind{Group: "example.com", Version: "v1", Kind: "Shelf"}
	scale := &apiextensions.CustomResourceSubresourceScale{SpecReplicasPath: ".spec.replicas", StatusReplicasPath: ".status.replicas"}
	return customresource.NewStrategy(nil, true, kind, validator, nil, s, nil, scale, nil), checksOf(kind, true, schemaOf(&crd.Spec.Versions[0]), s, scale)
}

// TestProvedObjectsMatchUpstream checks that validation errors equal upstream's, for objects that are proved valid and
// for others.
func TestProvedObjectsMatchUpstream(t *testing.T) {
	t.Parallel()
	metadata := `"apiVersion":"example.com/v1","kind":"Shelf","metadata":{"name":"a","namespace":"b","uid":"u","resourceVersion":"1"}`
	for name, c := range map[string]struct {
		schema  string
		objects []string // members besides metadata; objects with even indexes are valid
	}{
		"plain":     {`{"type":"object","properties":{"spec":{"type":"object","properties":{"n":{"type":"string","maxLength":3}}}}}`, []string{`"spec":{"n":"abc"}`, `"spec":{"n":"abcd"}`, `"spec":{}`, `"spec":[]`}},
		"scale":     {`{"type":"object","properties":{"spec":{"type":"object","properties":{"replicas":{"type":"integer"}}}}}`, []string{`"spec":{"replicas":3}`, `"spec":7`, `"spec":{"replicas":-1}`}},
		"set":       {`{"type":"object","properties":{"spec":{"type":"array","x-kubernetes-list-type":"set","items":{"type":"string"}}}}`, []string{`"spec":["a","b"]`, `"spec":[1]`, `"spec":["a","a"]`}},
		"map":       {`{"type":"object","properties":{"spec":{"type":"array","x-kubernetes-list-type":"map","x-kubernetes-list-map-keys":["k"],"items":{"type":"object","required":["k"],"properties":{"k":{"type":"string"}}}}}}`, []string{`"spec":[{"k":"a"}]`, `"spec":[{}]`, `"spec":[{"k":"a"},{"k":"a"}]`}},
		"rule":      {`{"type":"object","properties":{"spec":{"type":"object","properties":{"n":{"type":"integer","x-kubernetes-validations":[{"rule":"self > 3"}]}}}}}`, []string{`"spec":{"n":4}`, `"spec":{"n":"x"}`, `"spec":{"n":2}`}},
		"old rule":  {`{"type":"object","x-kubernetes-validations":[{"rule":"self.spec.n >= oldSelf.spec.n"}],"properties":{"spec":{"type":"object","properties":{"n":{"type":"integer"}}}}}`, []string{`"spec":{"n":4}`, `"spec":7`, `"spec":{"n":2}`}},
		"embedded":  {`{"type":"object","properties":{"spec":{"type":"object","x-kubernetes-embedded-resource":true,"x-kubernetes-preserve-unknown-fields":true}}}`, []string{`"spec":{"apiVersion":"v1","kind":"X","metadata":{"name":"x"}}`, `"spec":7`, `"spec":{"kind":"X"}`}},
		"forgiving": {`{"type":"object","properties":{"spec":{"type":"string","oneOf":[{"maxLength":3},{"minLength":2}]}}}`, []string{}},
	} {
		crd := shelves(t, c.schema)
		upstream, made := upstreamOf(t, crd)
		own := &strategy{upstream, func() *checks { return made }}
		if len(c.objects) == 0 && made.schema != nil {
			t.Errorf("%s: checks exist, want none", name)
		}
		objects := []*unstructured.Unstructured{}
		for _, members := range append(c.objects, `"metadata":{"name":"A_B","namespace":"b","resourceVersion":"1"}`) {
			u := &unstructured.Unstructured{}
			if err := json.Unmarshal([]byte("{"+metadata+","+members+"}"), &u.Object); err != nil {
				t.Fatal(err)
			}
			objects = append(objects, u)
		}
		for i, u := range objects {
			if proved := made.prove(u); i < len(c.objects) && proved != (i%2 == 0) {
				t.Errorf("%s: %v is proved: %v", name, u.Object, proved)
			}
			if got, want := own.Validate(context.Background(), u), upstream.Validate(context.Background(), u); fmt.Sprint(got) != fmt.Sprint(want) {
				t.Errorf("%s: %v: got %v, want %v", name, u.Object, got, want)
			}
			for _, old := range objects {
				got, want := own.ValidateUpdate(context.Background(), u, old), upstream.ValidateUpdate(context.Background(), u, old)
				if fmt.Sprint(got) != fmt.Sprint(want) {
					t.Errorf("%s: %v after %v: got %v, want %v", name, u.Object, old.Object, got, want)
				}
			}
		}
	}
}
