package servedjson

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"reflect"
	"strings"
	"testing"

	structuralschema "k8s.io/apiextensions-apiserver/pkg/apiserver/schema"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/defaulting"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/objectmeta"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/pruning"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

func kind() schema.GroupVersionKind {
	return schema.GroupVersionKind{Group: "example.com", Version: "v1", Kind: "Shelf"}
}

// upstream decodes data as apiextensions-apiserver pkg/apiserver/customresource_handler.go does.
func upstream(data []byte, s *structuralschema.Structural) (map[string]any, error) {
	obj, _, err := unstructured.UnstructuredJSONScheme.Decode(data, nil, nil)
	if err != nil {
		return nil, err
	}
	u, ok := obj.(*unstructured.Unstructured)
	if !ok {
		return nil, fmt.Errorf("%T", obj)
	}
	if u.GroupVersionKind() != kind() {
		return nil, fmt.Errorf("kind %v", u.GroupVersionKind())
	}
	for range 2 { // once after decoding, once after conversion
		meta, found, err := objectmeta.GetObjectMeta(u.Object, true)
		if err != nil {
			return nil, err
		}
		pruning.PruneWithOptions(u.Object, s, true, structuralschema.UnknownFieldPathOptions{})
		defaulting.PruneNonNullableNullsWithoutDefaults(u.Object, s)
		if err := objectmeta.Coerce(nil, u.Object, s, false, true); err != nil {
			return nil, err
		}
		if found {
			if meta.Generation == 0 {
				meta.Generation = 1
			}
			if err := objectmeta.SetObjectMeta(u.Object, meta); err != nil {
				return nil, err
			}
		}
		u.SetGroupVersionKind(kind())
		defaulting.PruneNonNullableNullsWithoutDefaults(u.Object, s)
		defaulting.Default(u.Object, s)
	}
	return u.Object, nil
}

// compare checks that a Document has what upstream decodes from data. It reports whether own recognizes data.
func compare(t *testing.T, data []byte, s *structuralschema.Structural, own *Schema) bool {
	t.Helper()
	d := own.Read(data)
	if d == nil {
		return false
	}
	want, err := upstream(data, s)
	if err != nil {
		t.Fatalf("%s: recognized, but upstream cannot decode it: %v", data, err)
	}
	got := d.Content()
	if !reflect.DeepEqual(got, want) {
		t.Fatalf("%s:\ncontent  %#v\nupstream %#v\nschema %+v\nroot %+v", data, got, want, *s, *own.root)
	}
	u := unstructured.Unstructured{Object: want}
	if d.Name() != u.GetName() || d.Namespace() != u.GetNamespace() || !reflect.DeepEqual(d.Labels(), u.GetLabels()) {
		t.Fatalf("%s: name %q, namespace %q, labels %q differ from upstream's", data, d.Name(), d.Namespace(), d.Labels())
	}
	u.SetResourceVersion("4711")
	encoded, err := json.Marshal(u.Object)
	if err != nil {
		t.Fatal(err)
	}
	if body := d.AppendRevision([]byte("x"), 4711); string(body) != "x"+string(encoded) {
		t.Fatalf("%s: with a revision:\n got %s\nwant %s", data, body[1:], encoded)
	}
	return true
}

// generator draws schemas and objects.
type generator struct{ *rand.Rand }

func (g generator) chance(percent int) bool { return g.IntN(100) < percent }

func (g generator) name() string {
	return []string{"a", "b", "ab", "spec", "é", "z", "A", "apiVersion", "metadata", "<x>", "n\"", "long name"}[g.IntN(12)]
}

func (g generator) schema(depth int) *structuralschema.Structural {
	s := &structuralschema.Structural{}
	s.Nullable = g.chance(20)
	s.XPreserveUnknownFields = g.chance(15)
	if depth <= 0 {
		return s
	}
	if g.chance(60) {
		s.Properties = map[string]structuralschema.Structural{}
		for range g.IntN(5) {
			p := g.schema(depth - 1)
			if g.chance(15) {
				p.Default.Object = g.value(p, 1)
			}
			s.Properties[g.name()] = *p
		}
	}
	if g.chance(25) {
		s.AdditionalProperties = &structuralschema.StructuralOrBool{Bool: true}
		if g.chance(70) {
			s.AdditionalProperties.Structural = g.schema(depth - 1)
		}
	}
	if g.chance(40) {
		s.Items = g.schema(depth - 1)
	}
	return s
}

func (g generator) value(s *structuralschema.Structural, depth int) any {
	if s == nil {
		s = &structuralschema.Structural{}
	}
	switch n := g.IntN(14); {
	case n < 5 && depth > 0:
		m := map[string]any{}
		for name := range s.Properties {
			p := s.Properties[name]
			if g.chance(70) {
				m[name] = g.value(&p, depth-1)
			}
		}
		for range g.IntN(3) {
			m[g.name()] = g.value(nil, depth-1)
		}
		return m
	case n < 7 && depth > 0:
		l := []any{}
		for range g.IntN(4) {
			l = append(l, g.value(s.Items, depth-1))
		}
		return l
	case n < 9:
		return g.text()
	case n < 10:
		return nil
	case n < 11:
		return g.chance(50)
	case n < 12:
		return []float64{0.5, 1e21, -1.5e-9, 1e20, 123456789012345680000, 0.000001, 1e-7, -0.25, 3e300}[g.IntN(9)]
	}
	return []int64{0, 1, -1, 42, 9223372036854775807, -9223372036854775808, 1234567}[g.IntN(7)]
}

func (g generator) text() string {
	return []string{"", "x", "plain text of some length", "\"quoted\" \\ back", "<b>&</b>", "größer 漏洞 \u2028\u2029\u007f", "tab\tnew\nline\r\b\f\x00\x1f", "\ufffd"}[g.IntN(8)] +
		strings.Repeat("y", g.IntN(20))
}

func (g generator) metadata() map[string]any {
	m := map[string]any{"name": "n" + g.text(), "uid": "u", "creationTimestamp": "2020-01-02T03:04:05Z", "generation": int64(1 + g.IntN(3))}
	optional := map[string]func() any{
		"namespace": func() any { return "ns" }, "generateName": func() any { return g.text() }, "selfLink": func() any { return "/x" },
		"labels": func() any { return map[string]any{"a": g.text(), "b/c": ""} }, "annotations": func() any { return map[string]any{"x": g.text()} },
		"finalizers": func() any { return []any{"f", g.text()} }, "deletionTimestamp": func() any { return "2020-01-02T03:04:05Z" },
		"deletionGracePeriodSeconds": func() any { return int64(g.IntN(2)) }, "resourceVersion": func() any { return g.text() },
		"ownerReferences": func() any {
			o := map[string]any{"apiVersion": "v1", "kind": "X", "name": g.text(), "uid": ""}
			if g.chance(50) {
				o["controller"] = g.chance(50)
			}
			return []any{o}
		},
		"managedFields": func() any {
			return []any{map[string]any{"apiVersion": "v1", "fieldsType": "FieldsV1", "manager": "m" + g.text(), "operation": "Update", "time": "2020-01-02T03:04:05Z",
				"fieldsV1": map[string]any{"f:a": map[string]any{}, "k:{\"name\":\"x\"}": map[string]any{".": map[string]any{}}}}}
		},
	}
	for name, value := range optional {
		if g.chance(30) {
			m[name] = value()
		}
	}
	return m
}

// spoil makes a change that decoding may undo.
func (g generator) spoil(metadata map[string]any) {
	odd := []any{nil, "", int64(0), int64(-3), 1.5, true, map[string]any{}, []any{}, []any{nil}, map[string]any{"a": nil}, map[string]any{"a": int64(1)}, "0001-01-01T00:00:00Z",
		"2020-01-02T03:04:05+01:00", "2020-01-02T03:04:05.5Z", []any{map[string]any{"uid": "x"}}, []any{map[string]any{"time": nil, "fieldsV1": nil}}, []any{map[string]any{"fieldsV1": "x"}}}
	names := []string{"name", "namespace", "generateName", "labels", "annotations", "generation", "creationTimestamp", "deletionTimestamp", "finalizers",
		"ownerReferences", "managedFields", "unheard", "deletionGracePeriodSeconds", "resourceVersion", "selfLink", "uid", "clusterName"}
	metadata[names[g.IntN(len(names))]] = odd[g.IntN(len(odd))]
}

func encode(t *testing.T, obj any) []byte {
	t.Helper()
	var b bytes.Buffer
	if err := json.NewEncoder(&b).Encode(obj); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// TestReadMatchesUpstream checks that Read returns what upstream decodes, for random schemas and objects: objects as
// they are stored, as an older CRD allowed, and as no server stores them. It recognizes nearly all objects that were
// decoded once.
func TestReadMatchesUpstream(t *testing.T) {
	rounds := 1000
	if testing.Short() {
		rounds = 300
	}
	var served, recognized, oldRecognized, spoiltRecognized int
	for seed := range uint64(rounds) {
		g := generator{rand.New(rand.NewPCG(seed, 1))}
		s := g.schema(3)
		s.Nullable = false
		if _, ok := s.Properties["metadata"]; ok { // the only property that may have a schema there is name or generateName
			name := *g.schema(0)
			if g.chance(50) {
				name.Default.Object = "x"
			}
			s.Properties["metadata"] = structuralschema.Structural{Properties: map[string]structuralschema.Structural{"generateName": name}}
		}
		own := New(s, kind())
		if own == nil {
			continue
		}
		object, ok := g.value(s, 4).(map[string]any)
		if !ok {
			object = map[string]any{"spec": g.value(nil, 4)}
		}
		object["apiVersion"], object["kind"], object["metadata"] = "example.com/v1", "Shelf", g.metadata()
		old := encode(t, object)
		if compare(t, old, s, own) {
			oldRecognized++
		}
		read, err := upstream(old, s)
		if err != nil {
			continue
		}
		stored := encode(t, read)
		served++
		if compare(t, stored, s, own) {
			recognized++
		} else if served-recognized < 5 {
			t.Logf("not recognized: %s", stored)
		}
		for range 3 {
			spoilt := bytes.Clone(stored)
			if g.chance(50) {
				var again map[string]any
				if json.Unmarshal(stored, &again) == nil {
					g.spoil(again["metadata"].(map[string]any))
					spoilt = encode(t, again)
				}
			} else {
				pieces := []string{"null", "{}", "[]", "\"\"", "1.0", "01", " ", ",", "\\u00e9", "\\/", "\xff", "1e5", "-0", "\\ud800", "\"a\":1,", "\\u003C", "\n", "}", "]"}
				at := g.IntN(len(spoilt))
				spoilt = append(append(bytes.Clone(spoilt[:at]), pieces[g.IntN(len(pieces))]...), spoilt[min(len(spoilt), at+g.IntN(4)):]...)
			}
			if compare(t, spoilt, s, own) {
				spoiltRecognized++
			}
		}
	}
	counts := fmt.Sprintf("recognized %d of %d served objects, %d old ones, %d spoilt ones", recognized, served, oldRecognized, spoiltRecognized)
	t.Log(counts)
	if recognized < served*9/10 || oldRecognized == 0 || spoiltRecognized == 0 {
		t.Error(counts + "; want 90% of served ones, and some of the others")
	}
}

// TestStringsAndNumbers checks that values are recognized if encoding/json writes them the same way.
func TestStringsAndNumbers(t *testing.T) {
	s := &structuralschema.Structural{Extensions: structuralschema.Extensions{XPreserveUnknownFields: true}}
	own := New(s, kind())
	object := func(value string) []byte {
		return []byte(`{"apiVersion":"example.com/v1","kind":"Shelf","metadata":{"creationTimestamp":"2020-01-02T03:04:05Z","generation":1,"name":"n"},"x":` + value + `}`)
	}
	for c := range 0x110 {
		for _, text := range []string{string(rune(c)), "12345678" + string(rune(c)) + "12345678"} {
			data, err := json.Marshal(text)
			if err != nil {
				t.Fatal(err)
			}
			if !compare(t, object(string(data)), s, own) {
				t.Errorf("%s is not recognized", data)
			}
		}
		for _, escape := range []string{fmt.Sprintf(`"\u%04x"`, c), fmt.Sprintf(`"\u%04X"`, c), fmt.Sprintf(`"\%c"`, c), fmt.Sprintf("\"1234567%c\"", byte(c))} {
			compare(t, object(escape), s, own)
		}
	}
	for _, number := range []string{"0", "-0", "1", "-1", "01", "-01", "+1", "1.", ".1", "1.5", "1.50", "1e5", "1E5", "1e21", "1e+21", "1e-7", "1e-07", "1.0", "--1", "1-1", "-", "",
		"9223372036854775807", "9223372036854775808", "-9223372036854775808", "-9223372036854775809", "12345678901234567000", "100000000000000000000", "1e400", "0.1e1", "5e-324"} {
		compare(t, object(number), s, own)
	}
	for _, number := range []string{"0", "-1", "1.5", "1e+21", "1e-7", "9223372036854775807", "-9223372036854775808", "5e-324"} {
		if !compare(t, object(number), s, own) {
			t.Errorf("%s is not recognized", number)
		}
	}
	deep := strings.Repeat("[", 1000) + strings.Repeat("]", 1000)
	if compare(t, object(deep), s, own) {
		t.Error("an object nested 1000 deep is recognized")
	}
}

// shelves is a schema with defaults, and with fields that are pruned and that are kept.
func shelves() *structuralschema.Structural {
	one := structuralschema.Structural{Properties: map[string]structuralschema.Structural{
		"a": {Generic: structuralschema.Generic{Default: structuralschema.JSON{Object: int64(5)}}},
		"b": {Items: &structuralschema.Structural{Extensions: structuralschema.Extensions{XPreserveUnknownFields: true}}},
	}}
	return &structuralschema.Structural{Properties: map[string]structuralschema.Structural{
		"spec":     one,
		"rows":     {Items: &one},
		"metadata": {Properties: map[string]structuralschema.Structural{"name": {}}},
		"named":    {AdditionalProperties: &structuralschema.StructuralOrBool{Structural: &one}},
		"x":        {Extensions: structuralschema.Extensions{XPreserveUnknownFields: true}, Properties: map[string]structuralschema.Structural{"m": one}},
	}}
}

// TestNestedValuesAreRead checks that field values are recognized if reading would not change them. No prefix or suffix
// of an object is recognized.
func TestNestedValuesAreRead(t *testing.T) {
	s := shelves()
	own := New(s, kind())
	wide := strings.Repeat("[],{},", maxDepth) + "[]"
	for _, test := range []struct {
		fields     string
		recognized bool
	}{
		{``, true},
		{`,"spec":{"a":1,"b":[{"c":null}]}`, true},
		{`,"spec":{"b":[]}`, false},
		{`,"spec":{}`, false},
		{`,"spec":{"a":01}`, false},
		{`,"spec":{"a":1,"c":2}`, false},
		{`,"spec":{"a":[[1,null],["x"]]}`, true},
		{`,"spec":{"a":[[{"c":1}]]}`, false},
		{`,"rows":[{"a":1},{"a":2}]`, true},
		{`,"rows":[{"a":1},{"b":[]}]`, false},
		{`,"rows":[1,]`, false},
		{`,"named":{"z":{"a":1}}`, true},
		{`,"named":{"z":{}}`, false},
		{`,"x":{"a":1,"m":{"a":1}}`, true},
		{`,"x":{"a":1,"m":{}}`, false},
		{`,"x":{"\u003cx\u003e":1,"A":2,"m\"":{}}`, true},
		{`,"x":{"A":2,"\u003cx\u003e":1}`, false},
		{`,"x":[` + wide + `]`, true},
		{`,"x":` + strings.Repeat(`{"x":`, maxDepth+1) + `1` + strings.Repeat(`}`, maxDepth+1), false},
	} {
		data := []byte(`{"apiVersion":"example.com/v1","kind":"Shelf","metadata":{"generation":1,"name":"n"}` + test.fields + "}")
		if recognized := compare(t, data, s, own); recognized != test.recognized {
			t.Errorf("%.200s: recognized %v, want %v", data, recognized, test.recognized)
		}
		for i := range data[:min(len(data), 200)] {
			if own.Read(data[:i:i]) != nil || own.Read(data[i+1:]) != nil {
				t.Errorf("a part of %s is recognized: its bytes before or after byte %d", data, i)
			}
		}
	}
}

// TestSchemasWhoseObjectsMustBeDecoded checks that New returns nil for embedded resources and defaults in metadata.
func TestSchemasWhoseObjectsMustBeDecoded(t *testing.T) {
	embeds := structuralschema.Structural{Extensions: structuralschema.Extensions{XEmbeddedResource: true}}
	property := func(name string, p structuralschema.Structural) *structuralschema.Structural {
		return &structuralschema.Structural{Properties: map[string]structuralschema.Structural{name: p}}
	}
	for _, s := range []*structuralschema.Structural{
		nil,
		property("spec", embeds),
		property("spec", structuralschema.Structural{Items: &embeds}),
		property("metadata", *property("name", structuralschema.Structural{Generic: structuralschema.Generic{Default: structuralschema.JSON{Object: "x"}}})),
		{AdditionalProperties: &structuralschema.StructuralOrBool{Bool: true}},
	} {
		if New(s, kind()) != nil {
			t.Errorf("New made a Schema of %+v", s)
		}
	}
}

// FuzzRead checks that if Read recognizes data, it returns what upstream decodes.
func FuzzRead(f *testing.F) {
	f.Add([]byte(`{"apiVersion":"example.com/v1","kind":"Shelf","metadata":{"creationTimestamp":"2020-01-02T03:04:05Z","generation":1,"labels":{"a":"b"},"name":"n","uid":"u"},"spec":{"a":1,"b":[{"c":null}]}}`))
	f.Add([]byte(`{"apiVersion":"example.com/v1","kind":"Shelf","metad\u0061ta":{"name":"n"}}`))
	f.Add([]byte(`{"apiVersion":"example.com/v1","kind":"Shelf","metadata":null}`))
	f.Add([]byte(`{"apiVersion":"example.com/v1","kind":"Shelf","Metadata":{},"metadata":{},"metadata":{"name":"x"}}`))
	s := shelves()
	own := New(s, kind())
	f.Fuzz(func(t *testing.T, data []byte) { compare(t, data, s, own) })
}
