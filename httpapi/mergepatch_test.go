package httpapi_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	original "github.com/evanphx/json-patch"
	jsonpatch "gopkg.in/evanphx/json-patch.v4"
	"pgregory.net/rapid"
)

// checkMergePatch holds the merge of a patch against the library's, byte by byte.
func checkMergePatch(t interface{ Fatalf(string, ...any) }, doc, patch []byte) {
	want, wantErr := original.MergePatch(doc, patch)
	docBefore, patchBefore := bytes.Clone(doc), bytes.Clone(patch)
	got, err := jsonpatch.MergePatch(doc, patch)
	if !errors.Is(err, wantErr) || !bytes.Equal(got, want) {
		t.Fatalf("%q patched with %q: got %q, %v, want %q, %v", doc, patch, got, err, want, wantErr)
	}
	if !bytes.Equal(doc, docBefore) || !bytes.Equal(patch, patchBefore) {
		t.Fatalf("%q patched with %q changed its arguments to %q, %q", docBefore, patchBefore, doc, patch)
	}
}

// mergeSeeds are documents and patches of interest.
var mergeSeeds = []string{
	`{}`, `null`, `[]`, `1`, `"a"`, `tru`, ``, ` `, `{`, `{"a":1}}`, `[1,2`,
	`{"a":1}`, ` { "a" : 1 , "b" : [ 1 , null , { "c" : null , "d":1 } ] } `,
	`{"a":null}`, `{"a":{"b":null,"c":{"d":null,"a":[]}}}`, `{"a":[null,{"x":null}]}`, `{"a":{"b":[{"z":null,"a":1}]}}`,
	`{"a":{"z":1,"b":{"z":1,"y":2}},"\u0061":2}`, `{"a":1,"a":null}`, `{"a":null,"a":{"b":1}}`,
	`{"<&>":"<&>","\u2028":" \u2029","\\":"\\","é":"é"}`, "{\"\u2028\":\"\u2028\u2029\u202a\",\"\xff\":\"\xff\"}", "{\"\x7f\":\"a b\"}",
	`[null,{"a":null},[null,[{"b":null}]]]`, `{"a":-1.5e+10,"b":true,"c":false,"d":"{[\"]}"}`,
	strings.Repeat(`{"a":`, 60) + `null` + strings.Repeat(`}`, 60),
	strings.Repeat(`{"a":`, 59) + `{"b":null,"a":[{"c":null}]}` + strings.Repeat(`}`, 59),
	strings.Repeat(`{"a":[`, 40) + `null` + strings.Repeat(`]}`, 40),
	`{"apiVersion":"v1","data":{"a":"1"},"metadata":{"annotations":{"x":"<y>"},"name":"n"}}`, `{"data":{"generation":"1"},"metadata":{"annotations":null}}`,
}

func TestMergePatch(t *testing.T) {
	for _, doc := range mergeSeeds {
		for _, patch := range mergeSeeds {
			checkMergePatch(t, []byte(doc), []byte(patch))
		}
	}
}

func FuzzMergePatch(f *testing.F) {
	for i, doc := range mergeSeeds {
		f.Add([]byte(doc), []byte(mergeSeeds[(i+7)%len(mergeSeeds)]))
	}
	f.Fuzz(func(t *testing.T, doc, patch []byte) {
		if len(doc)+len(patch) > 1<<12 {
			return // the library takes the square of it
		}
		checkMergePatch(t, doc, patch)
	})
}

// TestMergePatchProperty merges documents that have much in common.
func TestMergePatchProperty(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		doc, patch := drawJSON(t, 5), drawJSON(t, 5)
		checkMergePatch(t, []byte(doc), []byte(patch))
	})
}

// drawJSON draws a text nested at most depth deep.
func drawJSON(t *rapid.T, depth int) string {
	space := func() string { return rapid.SampledFrom([]string{"", "", "", " ", "\n\t"}).Draw(t, "space") }
	kinds := 7
	if depth == 0 {
		kinds = 5
	}
	switch rapid.IntRange(0, kinds).Draw(t, "kind") {
	case 0, 1:
		return "null"
	case 2:
		return rapid.SampledFrom([]string{"1", "-0.5e7", "true", "false"}).Draw(t, "scalar")
	case 3, 4, 5:
		return rapid.SampledFrom([]string{`""`, `"a"`, `"<\u003c\\\"{[,:"`, "\"\u2029é\"", "\"\xfe\""}).Draw(t, "string")
	case 6:
		elements := make([]string, rapid.IntRange(0, 3).Draw(t, "length"))
		for i := range elements {
			elements[i] = space() + drawJSON(t, depth-1) + space()
		}
		return "[" + strings.Join(elements, ",") + "]"
	}
	members := make([]string, rapid.IntRange(0, 4).Draw(t, "size"))
	for i := range members {
		key := rapid.SampledFrom([]string{`"a"`, `"b"`, `"\u0061"`, `"c d"`, `"<"`, "\"\xff\"", `"é"`}).Draw(t, "key")
		members[i] = space() + key + space() + ":" + space() + drawJSON(t, depth-1) + space()
	}
	return "{" + strings.Join(members, ",") + "}"
}

// TestMergePatchDeep merges what is nested as deep as JSON may be: the outcome is known,
// and the library would take minutes for it.
func TestMergePatchDeep(t *testing.T) {
	const deep = 9990
	nested := func(inner string) string {
		return strings.Repeat(`{"a":`, deep) + inner + strings.Repeat("}", deep)
	}
	large := `"` + strings.Repeat("x", 1<<20) + `"`
	for name, test := range map[string]struct{ doc, patch, want string }{
		"new":     {`{"b":1}`, nested(large), `{"a":` + nested(large)[len(`{"a":`):len(nested(large))-1] + `,"b":1}`},
		"merged":  {nested(`{"c":1,"b":` + large + `}`), nested(`{"c":null}`), nested(`{"b":` + large + `}`)},
		"removed": {nested(large), `{"a":null}`, `{}`},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := jsonpatch.MergePatch([]byte(test.doc), []byte(test.patch))
			if err != nil || string(got) != test.want {
				t.Errorf("got %d bytes, %v, want %d", len(got), err, len(test.want))
			}
		})
	}
}

func BenchmarkMergePatch(b *testing.B) {
	doc, _ := json.Marshal(map[string]any{
		"apiVersion": "v1", "kind": "ConfigMap",
		"metadata": map[string]any{"name": "bench", "managedFields": []any{map[string]any{"fieldsV1": map[string]any{"f:data": map[string]any{".": map[string]any{}, "f:a": map[string]any{}}}}}},
		"data":     map[string]any{"settings": strings.Repeat("listen=:8080 log.format=json shutdown.grace=20s ", 16)},
	})
	deep := strings.Repeat(`{"x":`, 9000) + "1" + strings.Repeat("}", 9000)
	merges := map[string]func(doc, patch []byte) ([]byte, error){"library": original.MergePatch, "linear": jsonpatch.MergePatch}
	for _, name := range slices.Sorted(maps.Keys(merges)) {
		for _, patch := range []string{`{"data":{"generation":"1"}}`, deep} {
			b.Run(fmt.Sprintf("%s/%dB", name, len(patch)), func(b *testing.B) {
				for b.Loop() {
					if _, err := merges[name](doc, []byte(patch)); err != nil {
						b.Fatal(err)
					}
				}
			})
		}
	}
}
