package aggregator

import (
	"testing"

	"k8s.io/kube-openapi/pkg/validation/spec"
)

// TestRemovedServersLeaveNoKinds checks that a definition that two servers share has the kinds of both, and those of
// one after the other is gone.
func TestRemovedServersLeaveNoKinds(t *testing.T) {
	const kinds = "x-kubernetes-group-version-kind"
	s := &swagger{known: make(map[string]*swaggerOf)}
	for _, version := range []string{"v1", "v2"} {
		options := spec.Schema{VendorExtensible: spec.VendorExtensible{Extensions: spec.Extensions{
			kinds: []any{map[string]any{"group": "example.com", "version": version, "kind": "Options"}},
		}}}
		s.known[version] = new(swaggerOf)
		s.known[version].current.Store(&swaggerState{version, &spec.Swagger{SwaggerProps: spec.SwaggerProps{
			Paths:       &spec.Paths{Paths: map[string]spec.PathItem{"/apis/example.com/" + version: {}}},
			Definitions: spec.Definitions{"Options": options},
		}}})
	}
	for want := 2; want > 0; want-- {
		built, err := s.describe()[0].Build()
		if err != nil {
			t.Fatal(err)
		}
		if list, _ := built.Definitions["Options"].Extensions[kinds].([]any); len(list) != want {
			t.Errorf("kinds %v, want %d", list, want)
		}
		s.RemoveAPIService("v2")
	}
}
