package patches

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"reflect"
	"strings"
	"testing"
	"unicode/utf8"

	"k8s.io/apimachinery/pkg/runtime/serializer/cbor/direct"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/yaml"

	"github.com/larder-io/larder/internal/proctest"
)

// TestUniqueFieldsNeedNoStrictYAML tries random JSON, and text that is almost JSON. If the fields of the data are
// unique, strict YAML finds no error that lenient YAML does not find.
func TestUniqueFieldsNeedNoStrictYAML(t *testing.T) {
	t.Parallel()
	var clean, neither, twice int
	rounds := proctest.Iterations(20000)
	for seed := range uint64(rounds) {
		r := rand.New(rand.NewPCG(seed, 1))
		data := drawJSON(r, 4)
		if r.IntN(3) == 0 {
			at := r.IntN(len(data))
			odd := []string{"\\", "\"", "<<", ",", "{", "}", ":", "# ", "\n", "\t", "\\u0061", "é", "!!", "&a ", "*a", "---\n", "1.0", "[", "]"}
			data = data[:at] + odd[r.IntN(len(odd))] + data[min(len(data), at+r.IntN(2)):]
		}
		var loose, strict map[string]any
		err, strictErr := yaml.Unmarshal([]byte(data), &loose), yaml.UnmarshalStrict([]byte(data), &strict)
		switch _, unique, _ := Applied(types.ApplyYAMLPatchType, []byte(data)); {
		case unique && fmt.Sprint(err) != fmt.Sprint(strictErr):
			t.Fatalf("%s: the fields are unique, but strict YAML returns %v, and lenient YAML %v", data, strictErr, err)
		case unique && err == nil:
			clean++
		case !unique && err == nil && strictErr == nil:
			neither++
		case strictErr != nil && err == nil:
			twice++
		}
	}
	if clean < rounds/7 || twice < rounds/20 || neither > clean {
		t.Errorf("%d texts have unique fields, %d duplicate ones, %d unique ones that Applied does not recognize; want fewer of these", clean, twice, neither)
	}
}

// drawJSON returns a random object, which may have duplicate keys.
func drawJSON(r *rand.Rand, depth int) string {
	var members []string
	for range r.IntN(5) {
		members = append(members, fmt.Sprintf("%q:%s", []string{"a", "b", "c", "d", "e", "name", "a b", "true", "1"}[r.IntN(9)], drawValue(r, depth-1)))
	}
	return "{" + strings.Join(members, []string{",", ", ", " , "}[r.IntN(3)]) + "}"
}

func drawValue(r *rand.Rand, depth int) string {
	switch n := r.IntN(8); {
	case n < 3 && depth > 0:
		return drawJSON(r, depth)
	case n < 5 && depth > 0:
		var items []string
		for range r.IntN(4) {
			items = append(items, drawValue(r, depth-1))
		}
		return "[" + strings.Join(items, ",") + "]"
	case n < 7:
		return []string{`"a"`, `"a: b"`, `"{\"a\":1,\"a\":2}"`, `"\\"`, `""`}[r.IntN(5)]
	}
	return []string{"1", "1.5", "null", "true", "-3", "0", "-0", "1e3", "123456789012345678", "1234567890123456789012", "false"}[r.IntN(11)]
}

// checkApplied checks that Applied decodes data as YAML does. It reports whether Applied used the JSON decoder.
func checkApplied(t testing.TB, data []byte) bool {
	t.Helper()
	got, unique, err := Applied(types.ApplyYAMLPatchType, data)
	if !unique || !isPlain(data) {
		return false
	}
	var want map[string]any
	wantErr := yaml.Unmarshal(data, &want)
	if err != nil || wantErr != nil || !reflect.DeepEqual(got, want) {
		t.Fatalf("%q: got %#v, error %v; YAML decodes %#v, error %v", data, got, err, want, wantErr)
	}
	if err := CheckApplied(data); err != nil {
		t.Fatalf("%q: CheckApplied returns %v", data, err)
	}
	return true
}

// TestPlainJSONIsDecodedAsYAML checks that the fast path for JSON decodes applied configurations as YAML does.
func TestPlainJSONIsDecodedAsYAML(t *testing.T) {
	t.Parallel()
	plain, others := 0, 0
	rounds := proctest.Iterations(20000)
	for seed := range uint64(rounds) {
		r := rand.New(rand.NewPCG(seed, 2))
		data := drawJSON(r, 4)
		if r.IntN(2) == 0 {
			at := r.IntN(len(data))
			odd := []string{"\\", "\"", "\\n", "\\t", "\\/", "\\u0061", "é", "\n", "\t", "\r", " ", "~", "\x7f", "#", "'", "0", ".", "- ", "? ", "| ", "> ", "%", "@"}
			data = data[:at] + odd[r.IntN(len(odd))] + data[at:]
		}
		if checkApplied(t, []byte(data)) {
			plain++
		} else {
			others++
		}
	}
	for _, key := range []int{1, maxPlainKey - 2, maxPlainKey, 2000} {
		for _, text := range []string{"x", strings.Repeat("word ", 500), "null", "true", "2001-01-01", "<<", "0x1F", "1:30", "- a", "!!int 3", "&a", "*a", "", " ", "a\\nb\\tc\\\"d"} {
			checkApplied(t, fmt.Appendf(nil, "{\n  \"%s\": {\"k\":[\"%s\" , -12,null ]}\n}\n", strings.Repeat("k", key), text))
		}
	}
	if plain < rounds/7 || others < rounds/7 {
		t.Errorf("%d configurations were decoded as JSON, %d as YAML; want enough of both", plain, others)
	}
}

func FuzzApplied(f *testing.F) {
	f.Add([]byte(`{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"a"},"data":{"k":"v","n":"1"},"l":[1,-2,true,null]}`))
	f.Add([]byte("{\n\"a\" : \"b\\n\\\"\",\n\"c\":[ ]}\n"))
	f.Fuzz(func(t *testing.T, data []byte) { checkApplied(t, data) })
}

// TestPatchesBecomeJSON checks that ToJSON returns valid JSON or nil, and JSON as it is.
func TestPatchesBecomeJSON(t *testing.T) {
	cbor, err := direct.Marshal(map[string]any{"a": int64(1)})
	if err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		kind       types.PatchType
		data, want string
	}{
		{types.MergePatchType, `{"b": 1, "a":2}`, `{"b": 1, "a":2}`},
		{types.MergePatchType, `a: b`, ""},
		{types.JSONPatchType, `[`, ""},
		{types.MergePatchType, "{\"a\":\"\xff\"}", ""},
		{types.ApplyYAMLPatchType, "{\"a\":\"\xff\"}", ""},
		{types.ApplyYAMLPatchType, `{"b": 1.0, "a":2}`, `{"b": 1.0, "a":2}`},
		{types.ApplyYAMLPatchType, "b: 1\na: [x]", `{"a":["x"],"b":1}`},
		{types.ApplyYAMLPatchType, "{a: b}", `{"a":"b"}`},
		{types.ApplyYAMLPatchType, "a: .nan", ""},
		{types.ApplyYAMLPatchType, "a: &a x\nb: [*a, *a]", ""},
		{types.ApplyYAMLPatchType, "a: b: c", ""},
		{types.ApplyCBORPatchType, string(cbor), `{"a":1}`},
		{types.ApplyCBORPatchType, `{"a":1}`, ""},
	} {
		if got := ToJSON(test.kind, []byte(test.data)); string(got) != test.want || (got == nil) != (test.want == "") {
			t.Errorf("%s %q: %q, want %q", test.kind, test.data, got, test.want)
		}
	}
}

// FuzzToJSON checks that ToJSON, whose result is part of audit events, returns only JSON in UTF-8.
func FuzzToJSON(f *testing.F) {
	for _, data := range []string{`{"a":1}`, "{a: b}", "a: [x]\n? [b]\n: c", "a: .inf", "<<: {a: b}", "\xff", "--- 1\n--- 2"} {
		f.Add(data)
	}
	f.Fuzz(func(t *testing.T, data string) {
		for _, kind := range []types.PatchType{types.MergePatchType, types.ApplyYAMLPatchType, types.ApplyCBORPatchType} {
			if got := ToJSON(kind, []byte(data)); got != nil && (!json.Valid(got) || !utf8.Valid(got)) {
				t.Errorf("%s %q: got %q, want JSON in UTF-8", kind, data, got)
			}
		}
	})
}
