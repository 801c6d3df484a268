package aggregator

import (
	"encoding/json"
	"testing"

	"k8s.io/kube-openapi/pkg/validation/spec"
)

// swaggerOfVersions returns a swagger with a server of each version. Each server has a definition named Options.
func swaggerOfVersions(t *testing.T, options map[string]string) *swagger {
	s := &swagger{known: make(map[string]*swaggerOf)}
	for version, definition := range options {
		document := new(spec.Swagger)
		text := `{"paths":{"/apis/example.com/` + version + `":{}},"definitions":{"Options":` + definition + `}}`
		if err := json.Unmarshal([]byte(text), document); err != nil {
			t.Fatal(err)
		}
		s.known[version] = new(swaggerOf)
		s.known[version].current.Store(&swaggerState{version, document})
	}
	return s
}

// TestMergedDefinitions checks the number of kinds of a definition that servers share, and the number of servers in the
// document.
func TestMergedDefinitions(t *testing.T) {
	const one, other = `{"x-kubernetes-group-version-kind":[{"version":"v1"}]}`, `{"x-kubernetes-group-version-kind":[{"version":"v2"}]}`
	for name, test := range map[string]struct {
		options      map[string]string
		kinds, paths int
		left         int // kinds once the server of v2 is gone
	}{
		"one server":                    {map[string]string{"v1": one}, 1, 1, 1},
		"two servers":                   {map[string]string{"v1": one, "v2": other}, 2, 2, 1},
		"a server without kinds":        {map[string]string{"v1": `{}`, "v2": other}, 1, 2, 0},
		"a server with malformed kinds": {map[string]string{"v1": one, "v2": `{"x-kubernetes-group-version-kind":{}}`}, 1, 1, 1},
	} {
		t.Run(name, func(t *testing.T) {
			s := swaggerOfVersions(t, test.options)
			for _, kinds := range []int{test.kinds, test.left} {
				built, err := s.describe()[0].Build()
				if err != nil {
					t.Fatal(err)
				}
				if list, _ := built.Definitions["Options"].Extensions["x-kubernetes-group-version-kind"].([]any); len(list) != kinds {
					t.Errorf("kinds %v, want %d", list, kinds)
				}
				if len(built.Paths.Paths) != min(test.paths, len(s.known)) {
					t.Errorf("paths %v, want %d", built.Paths.Paths, test.paths)
				}
				s.RemoveAPIService("v2")
			}
		})
	}
}
