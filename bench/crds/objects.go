package crds

import (
	"fmt"

	"github.com/larder-io/larder/bench"
)

const (
	prefix   = "kinds" // prefix of the names of resources
	perGroup = 10      // CRDs in a group
	perCRD   = 20      // fields in a spec
)

func plural(i int) string { return fmt.Sprintf("%s%d", prefix, i) }

// groups returns the number of groups.
func (c *Config) groups() int { return (c.Count + perGroup - 1) / perGroup }

func groupName(g int) string { return fmt.Sprintf("g%d.bench.example.com", g) }

// group returns the group of the i-th CRD.
func group(i int) string { return groupName(i / perGroup) }

// crd returns the i-th CRD as JSON. It has fields like most CRDs: strings, numbers, lists and objects with
// descriptions, some with limits or defaults.
func crd(i int) []byte {
	fields := make(map[string]any, perCRD)
	for f := range perCRD {
		field := map[string]any{"description": fmt.Sprintf("field%d of kind %d configures the controller.", f, i)}
		switch f % 5 {
		case 0:
			field["type"], field["maxLength"] = "string", 200
		case 1:
			field["type"], field["minimum"], field["default"] = "integer", 0, f
		case 2:
			field["type"], field["items"] = "array", map[string]any{"type": "string"}
		case 3:
			field["type"], field["properties"] = "object", map[string]any{"name": map[string]any{"type": "string"}, "key": map[string]any{"type": "string"}}
		case 4:
			field["type"], field["enum"] = "string", []string{"Always", "Never"}
		}
		fields[fmt.Sprintf("field%d", f)] = field
	}
	return bench.EncodeJSON(bench.CRD(group(i), plural(i), fmt.Sprintf("Kind%d", i), map[string]any{"type": "object", "properties": map[string]any{
		"spec":   map[string]any{"type": "object", "properties": fields},
		"status": map[string]any{"type": "object", "properties": map[string]any{"phase": map[string]any{"type": "string"}}},
	}}, nil))
}

// object returns an object of the i-th CRD as JSON.
func object(i int) []byte {
	return bench.EncodeJSON(map[string]any{
		"apiVersion": group(i) + "/v1", "kind": fmt.Sprintf("Kind%d", i), "metadata": map[string]any{"name": "one"},
		"spec": map[string]any{"field0": "text"},
	})
}
