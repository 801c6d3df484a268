package crds

import (
	"fmt"

	"github.com/larder-io/larder/bench"
)

// prefix begins the name of each resource.
const prefix = "kinds"

func plural(i int) string { return fmt.Sprintf("%s%d", prefix, i) }

// groups is how many groups there are.
func (c *Config) groups() int { return (c.Count + c.PerGroup - 1) / c.PerGroup }

func (c *Config) groupName(g int) string { return fmt.Sprintf("g%d.bench.example.com", g) }

// group is the group of the i-th CRD.
func (c *Config) group(i int) string { return c.groupName(i / c.PerGroup) }

// crd is the i-th CRD as JSON. It has fields like most CRDs: strings, numbers, lists and objects with
// descriptions, some with bounds or defaults.
func (c *Config) crd(i int) []byte {
	fields := make(map[string]any, c.Fields)
	for f := range c.Fields {
		field := map[string]any{"description": fmt.Sprintf("field%d of kind %d says what the controller shall do about it.", f, i)}
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
	return bench.EncodeJSON(bench.CRD(c.group(i), plural(i), fmt.Sprintf("Kind%d", i), map[string]any{"type": "object", "properties": map[string]any{
		"spec":   map[string]any{"type": "object", "properties": fields},
		"status": map[string]any{"type": "object", "properties": map[string]any{"phase": map[string]any{"type": "string"}}},
	}}, nil))
}

// object is an object of the i-th CRD as JSON.
func (c *Config) object(i int) []byte {
	return bench.EncodeJSON(map[string]any{
		"apiVersion": c.group(i) + "/v1", "kind": fmt.Sprintf("Kind%d", i), "metadata": map[string]any{"name": "one"},
		"spec": map[string]any{"field0": "text"},
	})
}
