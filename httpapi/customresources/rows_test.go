package customresources_test

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/http"
	"testing"
	"time"

	"github.com/larder-io/larder/internal/proctest"
)

// printed is a CRD with columns of all types. Some values do not have their column's type.
const printed = `
metadata: {name: shelves.example.com}
spec:
  group: example.com
  scope: Namespaced
  names: {plural: shelves, singular: shelf, kind: Shelf, listKind: ShelfList}
  versions:
  - name: v1
    served: true
    storage: true
    schema: {openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}}
    additionalPrinterColumns:
    - {name: Text, type: string, jsonPath: .spec.any, description: what it is}
    - {name: Number, type: number, format: double, jsonPath: .spec.any}
    - {name: Whole, type: integer, jsonPath: .spec.any, priority: 1}
    - {name: Yes, type: boolean, jsonPath: .spec.any}
    - {name: Age, type: date, jsonPath: .metadata.creationTimestamp}
    - {name: Any, type: date, jsonPath: .spec.any}
    - {name: When, type: date, jsonPath: .spec.when, priority: 7}
    - {name: Parts, type: string, jsonPath: '.spec.parts[*].id'}
    - {name: First, type: date, jsonPath: '.spec.parts[*].at'}
    - {name: Map, type: string, jsonPath: .spec}
    - {name: Label, type: string, jsonPath: '.metadata.labels.a\.b/c'}
`

// TestRowsMatchUpstream compares Tables from cached rows with those of upstream's handler.
func TestRowsMatchUpstream(t *testing.T) {
	s := newServer(t)
	s.define(t, printed)
	random := rand.New(rand.NewPCG(3, 4))
	const objects = 60
	for i := range objects {
		data, err := json.Marshal(map[string]any{
			"apiVersion": "example.com/v1", "kind": "Shelf", "metadata": map[string]any{"name": fmt.Sprintf("s%02d", i), "labels": map[string]any{"a.b/c": "x"}},
			"spec": map[string]any{"any": anything(random), "when": anything(random), "parts": []any{map[string]any{"id": anything(random), "at": anything(random)}, map[string]any{"id": "second"}}},
		})
		must(t, err)
		s.do(t, http.MethodPost, shelvesV1, "application/json", string(data))
	}
	const table = "application/json;as=Table;v=v1;g=meta.k8s.io,application/json"
	for _, include := range []string{"", "?includeObject=None", "?includeObject=Metadata", "?includeObject=Object"} {
		for _, path := range []string{shelvesV1, shelvesV1 + "/s07"} {
			c := call{method: http.MethodGet, path: path + include, accept: table}
			for deadline := time.Now().Add(proctest.Patience); ; {
				// Ages only grow, so a response that is equal before and after did not change in between.
				before, got, after := s.upstream(t, c), s.send(t, c), s.upstream(t, c)
				if before.body == after.body {
					if got.code != after.code || got.body != after.body {
						t.Errorf("%s:\n got %d %s\nwant %d %s", c.path, got.code, got.body, after.code, after.body)
					}
					break
				}
				if time.Now().After(deadline) {
					t.Fatal("the ages changed during every comparison")
				}
			}
		}
	}
	r := s.registry.CustomResource(shelvesResource())
	decodes := r.Codec().Decodes()
	s.send(t, call{method: http.MethodGet, path: shelvesV1, accept: table})
	if n := r.Codec().Decodes() - decodes; n >= objects {
		t.Errorf("%d objects were decoded for cached rows", n)
	}
}

// anything returns a random value for a column.
func anything(random *rand.Rand) any {
	now := time.Now().UTC()
	list := []any{
		nil, true, 1, -2.5, 1e30, "", "text", "null", "<unknown>", "\"quoted\" & <more>", []any{"a", 1}, map[string]any{"b": []any{1}},
		now.Add(-3 * time.Hour).Format(time.RFC3339), now.Add(-50 * time.Hour).Format(time.RFC3339Nano), now.Add(48 * time.Hour).Format(time.RFC3339),
		"2001-02-03T04:05:06+07:00", "0001-01-01T00:00:00Z", "2026-13-01T00:00:00Z", "1969-12-31T23:59:59.5Z",
	}
	return list[random.IntN(len(list))]
}
