package crdvalidate

import (
	"math"
	"slices"

	"k8s.io/kube-openapi/pkg/validation/spec"
	"k8s.io/kube-openapi/pkg/validation/strfmt"
	"k8s.io/kube-openapi/pkg/validation/validate"
)

// Schema is a schema that recognizes valid values.
type Schema struct {
	upstream *validate.SchemaValidator // validates alone if it is not nil; nothing below is set then

	nullable bool
	kinds    kinds
	int32    bool

	all, any []*Schema

	properties map[string]*Schema
	others     *Schema // of properties that are not in properties; nil allows anything
	required   []string
	items      *Schema

	sizes, counts limits // of maps and lists
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

// limits are how large something is at least and at most.
type limits struct{ min, max int64 }

func (l limits) allow(n int) bool { return int64(n) >= l.min && int64(n) <= l.max }

func limitsOf(low, high *int64) limits {
	l := limits{math.MinInt64, math.MaxInt64}
	if low != nil {
		l.min = *low
	}
	if high != nil {
		l.max = *high
	}
	return l
}

// New returns the Schema of s, nil if it can recognize no value.
func New(s *spec.Schema) *Schema {
	if s == nil || len(s.OneOf) > 0 || s.Not != nil || s.Ref.String() != "" || len(s.Dependencies) > 0 || len(s.PatternProperties) > 0 {
		return nil
	}
	n := &Schema{nullable: s.Nullable || len(s.Type) == 0, required: s.Required}
	if !n.addParts(s) {
		return nil
	}
	if constrains(s) || !n.addTypes(s) {
		return &Schema{upstream: validate.NewSchemaValidator(s, nil, "", strfmt.Default)}
	}
	n.sizes, n.counts = limitsOf(s.MinProperties, s.MaxProperties), limitsOf(s.MinItems, s.MaxItems)
	return n
}

// constrains reports whether s has constraints of single values, or of items, beside their type.
func constrains(s *spec.Schema) bool {
	return s.Minimum != nil || s.Maximum != nil || s.MultipleOf != nil || s.MinLength != nil || s.MaxLength != nil ||
		s.Pattern != "" || len(s.Enum) > 0 || s.UniqueItems
}

// addParts adds the schemas below s. It reports whether all of them may be used.
func (n *Schema) addParts(s *spec.Schema) bool {
	add := func(to **Schema, part *spec.Schema) bool {
		*to = New(part)
		return *to != nil
	}
	var ok = true
	for i := range s.AllOf {
		n.all = append(n.all, nil)
		ok = ok && add(&n.all[i], &s.AllOf[i])
	}
	for i := range s.AnyOf {
		n.any = append(n.any, nil)
		ok = ok && add(&n.any[i], &s.AnyOf[i])
	}
	if len(s.Properties) > 0 {
		n.properties = make(map[string]*Schema, len(s.Properties))
	}
	for name, property := range s.Properties {
		n.properties[name] = New(&property)
		ok = ok && n.properties[name] != nil
	}
	if more := s.AdditionalProperties; more != nil {
		ok = ok && more.Allows
		if more.Schema != nil {
			ok = ok && add(&n.others, more.Schema)
		}
	}
	if s.Items != nil {
		ok = ok && len(s.Items.Schemas) == 0
		if s.Items.Schema != nil {
			ok = ok && add(&n.items, s.Items.Schema)
		}
	}
	return ok && s.AdditionalItems == nil
}

// addTypes adds the types. It reports whether it knows them and the format.
func (n *Schema) addTypes(s *spec.Schema) bool {
	for _, name := range s.Type {
		switch name {
		case "string":
			n.kinds |= texts
		case "boolean":
			n.kinds |= booleans
		case "integer":
			n.kinds |= integers
		case "number":
			n.kinds |= integers | floats
		case "object":
			n.kinds |= maps
		case "array":
			n.kinds |= lists
		default:
			return false
		}
	}
	if len(s.Type) == 0 {
		n.kinds = texts | booleans | integers | floats | maps | lists
	}
	n.int32 = s.Format == "int32"
	return s.Format == "" || len(s.Type) == 1 && s.Type[0] == "integer" && (n.int32 || s.Format == "int64")
}

// Valid reports whether v is certainly valid.
func (n *Schema) Valid(v any) bool {
	if n.upstream != nil {
		return n.upstream.Validate(v).IsValid()
	}
	if v == nil {
		return n.nullable
	}
	if !n.validKind(v) {
		return false
	}
	for _, part := range n.all {
		if !part.Valid(v) {
			return false
		}
	}
	return len(n.any) == 0 || slices.ContainsFunc(n.any, func(part *Schema) bool { return part.Valid(v) })
}

// validKind reports whether v satisfies the constraints of its type.
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
		return n.kinds&lists != 0 && n.validList(v)
	}
	return false
}

func (n *Schema) validMap(v map[string]any) bool {
	if !n.sizes.allow(len(v)) {
		return false
	}
	for _, name := range n.required {
		if _, ok := v[name]; !ok {
			return false
		}
	}
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

func (n *Schema) validList(v []any) bool {
	if !n.counts.allow(len(v)) {
		return false
	}
	if n.items == nil {
		return true
	}
	for _, item := range v {
		if !n.items.Valid(item) {
			return false
		}
	}
	return true
}
