package crdvalidate

import (
	"encoding/json"
	"math"
	"slices"
	"unicode/utf8"

	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/validation"
	"k8s.io/utils/ptr"
)

// Schema is a schema that recognizes valid values.
type Schema struct {
	nullable bool
	kinds    kinds
	int32    bool

	properties map[string]*Schema
	others     *Schema // of properties that are not in properties; nil allows anything
	items      *Schema

	more *constraints // nil if there are none
}

// kinds are types of values.
type kinds uint8

const (
	texts kinds = 1 << iota
	booleans
	integers
	floats
	maps
	lists
)

// constraints are the constraints beside the type. Most schemas have none.
type constraints struct {
	upstream validation.SchemaCreateValidator // validates alone if it is not nil; nothing below is set then

	all, any               []*Schema
	required, enum         []string
	low, high              float64 // of numbers
	lengths, sizes, counts limits  // of texts, maps and lists
}

// limits are how large something is at least and at most.
type limits struct{ min, max int64 }

func (l limits) allow(n int) bool { return int64(n) >= l.min && int64(n) <= l.max }

func limitsOf(low, high *int64) limits {
	return limits{ptr.Deref(low, math.MinInt64), ptr.Deref(high, math.MaxInt64)}
}

// New returns the Schema of s, nil if it can recognize no value.
func New(s *apiextensionsv1.JSONSchemaProps) *Schema {
	if s == nil || len(s.OneOf) > 0 || s.Not != nil || s.Ref != nil || len(s.Dependencies) > 0 || len(s.PatternProperties) > 0 {
		return nil
	}
	n, c := &Schema{nullable: s.Nullable || s.Type == "" && !s.XIntOrString}, &constraints{required: s.Required}
	if !n.addParts(c, s) {
		return nil
	}
	if !n.addTypes(s) || !c.addBounds(s) {
		return upstream(s)
	}
	if len(s.AllOf) > 0 || len(s.AnyOf) > 0 || len(s.Required) > 0 || constrains(s) {
		n.more = c
	}
	return n
}

// upstream returns a Schema that validates values by upstream's validator.
func upstream(s *apiextensionsv1.JSONSchemaProps) *Schema {
	var props apiextensions.JSONSchemaProps
	if err := apiextensionsv1.Convert_v1_JSONSchemaProps_To_apiextensions_JSONSchemaProps(s, &props, nil); err != nil {
		return nil
	}
	validator, _, err := validation.NewSchemaValidator(&props)
	if err != nil {
		return nil
	}
	return &Schema{more: &constraints{upstream: validator}}
}

// constrains reports whether s has constraints of values beside their type.
func constrains(s *apiextensionsv1.JSONSchemaProps) bool {
	return s.Minimum != nil || s.Maximum != nil || s.MinLength != nil || s.MaxLength != nil || len(s.Enum) > 0 ||
		s.MinProperties != nil || s.MaxProperties != nil || s.MinItems != nil || s.MaxItems != nil
}

// addParts adds the schemas below s. It reports whether all of them may be used.
func (n *Schema) addParts(c *constraints, s *apiextensionsv1.JSONSchemaProps) bool {
	ok := s.AdditionalItems == nil
	made := func(part *apiextensionsv1.JSONSchemaProps) (p *Schema) {
		if ok {
			p = New(part)
			ok = p != nil
		}
		return p
	}
	for i := range s.AllOf {
		c.all = append(c.all, made(&s.AllOf[i]))
	}
	for i := range s.AnyOf {
		c.any = append(c.any, made(&s.AnyOf[i]))
	}
	if len(s.Properties) > 0 {
		n.properties = make(map[string]*Schema, len(s.Properties))
	}
	for name, property := range s.Properties {
		n.properties[name] = made(&property)
	}
	if more := s.AdditionalProperties; more != nil {
		ok = ok && more.Allows
		if more.Schema != nil {
			n.others = made(more.Schema)
		}
	}
	if s.Items != nil {
		ok = ok && len(s.Items.JSONSchemas) == 0
		if s.Items.Schema != nil {
			n.items = made(s.Items.Schema)
		}
	}
	return ok
}

// addTypes adds the types. It reports whether it knows them and the format.
func (n *Schema) addTypes(s *apiextensionsv1.JSONSchemaProps) bool {
	switch {
	case s.XIntOrString:
		n.kinds = integers | texts
	case s.Type == "string":
		n.kinds = texts
	case s.Type == "boolean":
		n.kinds = booleans
	case s.Type == "integer":
		n.kinds = integers
	case s.Type == "number":
		n.kinds = integers | floats
	case s.Type == "object":
		n.kinds = maps
	case s.Type == "array":
		n.kinds = lists
	case s.Type == "":
		n.kinds = texts | booleans | integers | floats | maps | lists
	default:
		return false
	}
	n.int32 = s.Format == "int32"
	return s.Format == "" || n.kinds == integers && (n.int32 || s.Format == "int64")
}

// addBounds adds the constraints of values. It reports whether it knows them.
func (c *constraints) addBounds(s *apiextensionsv1.JSONSchemaProps) bool {
	for _, value := range s.Enum {
		var text *string
		if err := json.Unmarshal(value.Raw, &text); err != nil || text == nil {
			return false
		}
		c.enum = append(c.enum, *text)
	}
	c.low, c.high = ptr.Deref(s.Minimum, math.Inf(-1)), ptr.Deref(s.Maximum, math.Inf(1))
	if s.ExclusiveMinimum {
		c.low = math.Nextafter(c.low, math.Inf(1))
	}
	if s.ExclusiveMaximum {
		c.high = math.Nextafter(c.high, math.Inf(-1))
	}
	c.lengths, c.sizes, c.counts = limitsOf(s.MinLength, s.MaxLength), limitsOf(s.MinProperties, s.MaxProperties), limitsOf(s.MinItems, s.MaxItems)
	return s.MultipleOf == nil && s.Pattern == "" && !s.UniqueItems && exact(s.Minimum) && exact(s.Maximum)
}

// exact reports whether a bound is the same for integers and other numbers: upstream truncates it for integers.
func exact(bound *float64) bool {
	return bound == nil || *bound == math.Trunc(*bound) && math.Abs(*bound) < 1<<53
}

// Valid reports whether v is certainly valid.
func (n *Schema) Valid(v any) bool {
	c := n.more
	switch {
	case c == nil:
		return v == nil && n.nullable || n.validKind(v)
	case c.upstream != nil:
		return c.upstream.Validate(v).IsValid()
	case v == nil:
		return n.nullable && len(c.enum) == 0
	case !n.validKind(v) || !c.allow(v):
		return false
	}
	for _, part := range c.all {
		if !part.Valid(v) {
			return false
		}
	}
	return len(c.any) == 0 || slices.ContainsFunc(c.any, func(part *Schema) bool { return part.Valid(v) })
}

// allow reports whether v satisfies the constraints of single values.
func (c *constraints) allow(v any) bool {
	text, isText := v.(string)
	if len(c.enum) > 0 && (!isText || !slices.Contains(c.enum, text)) {
		return false
	}
	switch v := v.(type) {
	case string:
		return c.lengths.allow(utf8.RuneCountInString(v))
	case int64:
		return c.low <= float64(v) && float64(v) <= c.high
	case float64:
		return c.low <= v && v <= c.high
	case map[string]any:
		return c.sizes.allow(len(v)) && !slices.ContainsFunc(c.required, func(name string) bool {
			_, has := v[name]
			return !has
		})
	case []any:
		return c.counts.allow(len(v))
	}
	return true
}

// validKind reports whether v and the values in it have the right types.
func (n *Schema) validKind(v any) bool {
	switch v := v.(type) {
	case string:
		return n.kinds&texts != 0
	case bool:
		return n.kinds&booleans != 0
	case int64:
		return n.kinds&integers != 0 && (!n.int32 || int64(int32(v)) == v)
	case float64:
		return n.kinds&floats != 0
	case map[string]any:
		return n.kinds&maps != 0 && n.validMap(v)
	case []any:
		return n.kinds&lists != 0 && (n.items == nil || !slices.ContainsFunc(v, func(item any) bool { return !n.items.Valid(item) }))
	}
	return false
}

func (n *Schema) validMap(v map[string]any) bool {
	if n.properties == nil && n.others == nil {
		return true
	}
	for name, value := range v {
		part, ok := n.properties[name]
		if !ok {
			part = n.others
		}
		if part != nil && !part.Valid(value) {
			return false
		}
	}
	return true
}
