package crdvalidate

import (
	"math"
	"regexp"
	"slices"
	"unicode/utf8"

	"k8s.io/kube-openapi/pkg/validation/spec"
	"k8s.io/kube-openapi/pkg/validation/strfmt"
	"k8s.io/kube-openapi/pkg/validation/validate"
)

// Schema is a schema that recognizes valid values.
type Schema struct {
	upstream *spec.Schema // asks upstream's validators if this is not nil; nothing below is set then

	nullable bool
	kinds    kinds

	all, any []*Schema

	properties map[string]*Schema
	others     *Schema // of properties that are not in properties; nil allows anything
	required   []string
	items      *Schema
	enum       map[string]bool // nil allows anything
	pattern    *regexp.Regexp
	format     string
	int32      bool

	sizes, lengths, counts limits // of maps, texts and lists
	min, max               *float64
	above, below           bool // the bound itself is excluded
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
	n := &Schema{nullable: s.Nullable || len(s.Type) == 0}
	if !n.addParts(s) {
		return nil
	}
	if !n.addTypes(s) || !n.addBounds(s) || !n.addTexts(s) || s.UniqueItems || s.MultipleOf != nil {
		return &Schema{upstream: s}
	}
	n.required = s.Required
	n.sizes, n.counts = limitsOf(s.MinProperties, s.MaxProperties), limitsOf(s.MinItems, s.MaxItems)
	return n
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
	switch {
	case s.Format == "":
		return true
	case len(s.Type) != 1:
		return false
	}
	switch s.Type[0] {
	case "string":
		n.format = s.Format
		return true
	case "integer":
		n.int32 = s.Format == "int32"
		return n.int32 || s.Format == "int64"
	case "number":
		return s.Format == "double"
	}
	return false
}

// addBounds adds the bounds of numbers. It reports whether upstream has nothing to say about
// the bounds themselves.
func (n *Schema) addBounds(s *spec.Schema) bool {
	n.min, n.max, n.above, n.below = s.Minimum, s.Maximum, s.ExclusiveMinimum, s.ExclusiveMaximum
	kind := ""
	if len(s.Type) == 1 {
		kind = s.Type[0]
	}
	for _, bound := range []*float64{n.min, n.max} {
		if bound != nil && validate.IsValueValidAgainstRange(*bound, kind, s.Format, "", "") != nil {
			return false
		}
	}
	return true
}

// addTexts adds the constraints of strings. It reports whether it knows all of them.
func (n *Schema) addTexts(s *spec.Schema) bool {
	n.lengths = limitsOf(s.MinLength, s.MaxLength)
	if s.Pattern != "" {
		var err error
		if n.pattern, err = regexp.Compile(s.Pattern); err != nil {
			return false
		}
	}
	if n.format != "" && !strfmt.Default.ContainsName(n.format) {
		n.format = "" // upstream ignores it
	}
	if len(s.Enum) == 0 {
		return true
	}
	n.enum = make(map[string]bool, len(s.Enum))
	for _, value := range s.Enum {
		text, ok := value.(string)
		if !ok {
			return false
		}
		n.enum[text] = true
	}
	return true
}

// Valid reports whether v is certainly valid.
func (n *Schema) Valid(v any) bool {
	if n.upstream != nil {
		return validate.NewSchemaValidator(n.upstream, nil, "", strfmt.Default).Validate(v).IsValid()
	}
	if v == nil {
		return n.nullable && n.enum == nil
	}
	if !n.validKind(v) || n.enum != nil && !n.lists(v) {
		return false
	}
	for _, part := range n.all {
		if !part.Valid(v) {
			return false
		}
	}
	return len(n.any) == 0 || slices.ContainsFunc(n.any, func(part *Schema) bool { return part.Valid(v) })
}

// lists reports whether v is one of the enum's strings.
func (n *Schema) lists(v any) bool {
	text, ok := v.(string)
	return ok && n.enum[text]
}

// validKind reports whether v satisfies the constraints of its type.
func (n *Schema) validKind(v any) bool {
	switch v := v.(type) {
	case string:
		return n.kinds&texts != 0 && n.validText(v)
	case bool:
		return n.kinds&booleans != 0
	case int64:
		return n.kinds&integers != 0 && n.validInteger(v)
	case float64:
		return n.kinds&floats != 0 && n.validFloat(v)
	case map[string]any:
		return n.kinds&maps != 0 && n.validMap(v)
	case []any:
		return n.kinds&lists != 0 && n.validList(v)
	}
	return false
}

func (n *Schema) validText(v string) bool {
	if n.lengths.min > math.MinInt64 || n.lengths.max < math.MaxInt64 {
		if !n.lengths.allow(utf8.RuneCountInString(v)) {
			return false
		}
	}
	if n.pattern != nil && !n.pattern.MatchString(v) {
		return false
	}
	return n.format == "" || strfmt.Default.Validates(n.format, v)
}

func (n *Schema) validInteger(v int64) bool {
	if n.int32 && int64(int32(v)) != v {
		return false
	}
	if n.min != nil && validate.MinimumNativeType("", "", v, *n.min, n.above) != nil {
		return false
	}
	return n.max == nil || validate.MaximumNativeType("", "", v, *n.max, n.below) == nil
}

func (n *Schema) validFloat(v float64) bool {
	if n.min != nil && validate.Minimum("", "", v, *n.min, n.above) != nil {
		return false
	}
	return n.max == nil || validate.Maximum("", "", v, *n.max, n.below) == nil
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
