package crdvalidate

import (
	"math"
	"math/rand/v2"
	"strings"
	"testing"

	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/validation"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/cel/common"
	celopenapi "k8s.io/apiserver/pkg/cel/openapi"
)

// generator draws schemas and values.
type generator struct{ *rand.Rand }

func (g generator) chance(percent int) bool { return g.IntN(100) < percent }

func pick[T any](g generator, from ...T) T { return from[g.IntN(len(from))] }

func (g generator) name() string { return pick(g, "a", "b", "c", "kind", "apiVersion", "") }

func (g generator) schema(depth int) *apiextensions.JSONSchemaProps {
	s := &apiextensions.JSONSchemaProps{Nullable: g.chance(20)}
	if g.chance(90) {
		s.Type = pick(g, "string", "string", "integer", "number", "boolean", "object", "object", "object", "array")
		if depth <= 0 {
			s.Type = pick(g, "string", "integer", "number", "boolean")
		}
	} else if g.chance(30) {
		s.XIntOrString = true
		s.AnyOf = []apiextensions.JSONSchemaProps{{Type: "integer"}, {Type: "string"}}
	}
	if g.chance(20) {
		s.Format = pick(g, "int32", "int64", "double", "float", "date-time", "ipv4", "uuid", "unheard", "byte")
	}
	g.bound(s)
	if depth <= 0 {
		return s
	}
	if s.Type == "object" || g.chance(5) {
		s.Properties = map[string]apiextensions.JSONSchemaProps{}
		for range g.IntN(4) {
			s.Properties[g.name()] = *g.schema(depth - 1)
		}
		if g.chance(30) {
			s.Required = []string{g.name()}
		}
		if g.chance(20) {
			s.AdditionalProperties = &apiextensions.JSONSchemaPropsOrBool{Allows: true}
			if g.chance(80) {
				s.AdditionalProperties.Schema = g.schema(depth - 1)
			}
		}
	}
	if s.Type == "array" || g.chance(5) {
		s.Items = &apiextensions.JSONSchemaPropsOrArray{Schema: g.schema(depth - 1)}
	}
	if g.chance(10) {
		parts := []apiextensions.JSONSchemaProps{*g.schema(depth - 2), *g.schema(depth - 2)}
		*pick(g, &s.AllOf, &s.AnyOf, &s.AnyOf, &s.OneOf) = parts
	}
	if g.chance(2) {
		s.Not = g.schema(depth - 2)
	}
	return s
}

// bound adds bounds of all kinds.
func (g generator) bound(s *apiextensions.JSONSchemaProps) {
	if g.chance(15) {
		s.Minimum, s.ExclusiveMinimum = new(pick(g, 0, -1, 1.5, 42, 1e300, -1e19)), g.chance(30)
	}
	if g.chance(15) {
		s.Maximum, s.ExclusiveMaximum = new(pick(g, 0, 1, 0.5, 42, 1e18, 1e19)), g.chance(30)
	}
	if g.chance(5) {
		s.MultipleOf = new(pick(g, 0.5, 2, 7))
	}
	for _, bound := range []**int64{&s.MinLength, &s.MaxLength, &s.MinItems, &s.MaxItems, &s.MinProperties, &s.MaxProperties} {
		if g.chance(8) {
			*bound = new(g.Int64N(4))
		}
	}
	s.UniqueItems = g.chance(3)
	if g.chance(8) {
		s.Pattern = pick(g, "^x", "[0-9]+", "é", "(")
	}
	if g.chance(8) {
		s.Enum = []apiextensions.JSON{"x", "12", pick[any](g, "y", int64(1), nil, true, 1.5)}
	}
}

// value draws a value that is mostly as s asks.
func (g generator) value(s *apiextensions.JSONSchemaProps, depth int) any {
	kind := s.Type
	if kind == "" || g.chance(3) {
		kind = pick(g, "string", "integer", "number", "boolean", "object", "array", "null")
	}
	switch kind {
	case "string":
		return pick(g, "", "x", "xx", "12", "y", "été", "\xff", "2020-01-02T03:04:05Z", "10.0.0.1", "YWJj", strings.Repeat("x", 5))
	case "integer":
		return pick[int64](g, 0, 1, -1, 7, 42, math.MaxInt32+1, math.MaxInt64, math.MinInt64)
	case "number":
		return pick[any](g, 0.5, 1.5, -2.0, 42.0, 1e300, int64(3), math.MaxFloat64)
	case "boolean":
		return g.chance(50)
	case "object":
		m := map[string]any{}
		for name, property := range s.Properties {
			if g.chance(60) {
				m[name] = g.value(&property, depth-1)
			}
		}
		if more := s.AdditionalProperties; more != nil && more.Schema != nil && depth > 0 {
			m[g.name()] = g.value(more.Schema, depth-1)
		} else if g.chance(20) {
			m[g.name()] = pick[any](g, nil, "x", int64(1), map[string]any{})
		}
		return m
	case "array":
		l := []any{}
		for range g.IntN(4) {
			if s.Items != nil && s.Items.Schema != nil && depth > 0 {
				l = append(l, g.value(s.Items.Schema, depth-1))
			}
		}
		return l
	}
	return nil
}

// TestProvenObjectsAreValidUpstream draws schemas and values. Upstream's validation must find no error in a proven
// object, whatever it was before, and most valid objects must be proven.
func TestProvenObjectsAreValidUpstream(t *testing.T) {
	rounds := 40000
	if testing.Short() {
		rounds = 10000
	}
	var valid, proved, invalid int
	for seed := range uint64(rounds) {
		g := generator{rand.New(rand.NewPCG(seed, 7))}
		props := g.schema(3)
		upstream, schema, err := validation.NewSchemaValidator(props)
		if err != nil {
			continue
		}
		var stored apiextensionsv1.JSONSchemaProps
		if err := apiextensionsv1.Convert_apiextensions_JSONSchemaProps_To_v1_JSONSchemaProps(props, &stored, nil); err != nil {
			t.Fatal(err)
		}
		own := New(&stored)
		for range 4 {
			v, old := g.value(props, 4), g.value(props, 4)
			if g.chance(30) {
				old = runtime.DeepCopyJSONValue(v)
			}
			isValid := upstream.Validate(v).IsValid() &&
				upstream.ValidateUpdate(v, old, validation.WithRatcheting(common.NewCorrelatedObject(v, old, &celopenapi.Schema{Schema: schema}))).IsValid()
			switch isProved := own != nil && own.Valid(v); {
			case isProved && !isValid:
				t.Fatalf("seed %d: %#v is proved, but upstream finds: %v\nschema %+v", seed, v, upstream.Validate(v).Errors, schema)
			case isProved:
				proved++
				valid++
			case isValid && own != nil:
				valid++
			case !isValid:
				invalid++
			}
		}
	}
	if proved < valid*19/20 || invalid < rounds/2 {
		t.Errorf("recognized %d of %d valid values, want 95 %%; %d values are invalid, want %d", proved, valid, invalid, rounds/2)
	}
}

// TestSchemasWithOneOfOrNotAreLeftToUpstream checks that such schemas are not used. Upstream ignores errors of
// unchanged fields, which may make two branches of a oneOf match.
func TestSchemasWithOneOfOrNotAreLeftToUpstream(t *testing.T) {
	short := apiextensionsv1.JSONSchemaProps{Type: "string", MaxLength: new(int64(3))}
	branch := []apiextensionsv1.JSONSchemaProps{short}
	for name, s := range map[string]*apiextensionsv1.JSONSchemaProps{
		"oneOf": {OneOf: branch}, "not": {Not: &short},
		"oneOf below":  {Properties: map[string]apiextensionsv1.JSONSchemaProps{"a": {OneOf: branch}}},
		"not in anyOf": {AnyOf: []apiextensionsv1.JSONSchemaProps{{Not: &short}}},
	} {
		if New(s) != nil {
			t.Errorf("a schema with %s is used", name)
		}
	}
}

// TestChangesOfKinds checks that a value of each kind is recognized exactly where the schema has that kind.
func TestChangesOfKinds(t *testing.T) {
	values := map[string]any{"string": "x", "boolean": true, "integer": int64(1), "number": 1.5, "object": map[string]any{}, "array": []any{}}
	for asked := range values {
		s := New(&apiextensionsv1.JSONSchemaProps{Type: asked})
		for kind, v := range values {
			want := kind == asked || asked == "number" && kind == "integer"
			if got := s.Valid(v); got != want {
				t.Errorf("a value of type %s for a schema of type %s: recognized %t, want %t", kind, asked, got, want)
			}
		}
		if s.Valid(nil) || s.Valid(int32(1)) {
			t.Errorf("null or an int32 is recognized as of type %s", asked)
		}
	}
}
