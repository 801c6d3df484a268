package patches

import (
	"encoding/json"
	"strings"
	"testing"

	jsonpatch "gopkg.in/evanphx/json-patch.v4"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"pgregory.net/rapid"

	"github.com/larder-io/larder/internal/proctest"
)

func nested(depth int) string {
	return strings.Repeat(`{"a":`, depth) + `"}{"` + strings.Repeat("}", depth)
}

func TestOnlyDeepPatchesAreRefused(t *testing.T) {
	const merge, operations = types.MergePatchType, types.JSONPatchType
	for _, test := range []struct {
		name    string
		kind    types.PatchType
		body    string
		refused bool
	}{
		{name: "flat", kind: merge, body: `{"data":{"k":"v"}}`},
		{name: "empty", kind: merge},
		{name: "deepest", kind: merge, body: nested(MaxDepth)},
		{name: "too deep", kind: merge, body: nested(MaxDepth + 1), refused: true},
		{name: "brackets", kind: merge, body: strings.Repeat("[", MaxDepth+1), refused: true},
		{name: "brackets in a string", kind: merge, body: `{"a":"\"` + strings.Repeat("[", 1000) + `"}`},
		{name: "string without end", kind: merge, body: `{"a":"\`},
		{name: "another type", kind: types.StrategicMergePatchType, body: nested(1000)},
		{name: "deepest value", kind: operations, body: `[{"op":"add","path":"/a","value":` + nested(MaxDepth) + `}]`},
		{name: "deep value", kind: operations, body: `[{"op":"add","path":"/a","value":` + nested(MaxDepth+1) + `}]`, refused: true},
		{name: "deepest path", kind: operations, body: `[{"op":"remove","path":"` + strings.Repeat("/a", MaxDepth) + `"}]`},
		{name: "deep path", kind: operations, body: `[{"op":"remove","path":"` + strings.Repeat("/a", MaxDepth+1) + `"}]`, refused: true},
		{name: "deep source", kind: operations, body: `[{"op":"copy","from":"` + strings.Repeat("/a", MaxDepth+1) + `","path":"/a"}]`, refused: true},
		{name: "moves", kind: operations, body: `[` + strings.Repeat(`{"op":"move","from":"/a","path":"/a/b/c"},`, 166) + `{"op":"test","path":"/a","value":1}]`},
		{name: "many moves", kind: operations, body: `[` + strings.Repeat(`{"op":"move","from":"/a","path":"/a/b/c"},`, 167) + `{"op":"test","path":"/a","value":1}]`, refused: true},
		{name: "more operations than upstream applies", kind: operations, body: `[` + strings.Repeat(`{"op":"move","from":"/a","path":"/b"},`, maxOperations) + `{"op":"move"}]`},
		{name: "no patch", kind: operations, body: `"` + strings.Repeat("/", 1000) + `"`},
	} {
		t.Run(test.name, func(t *testing.T) {
			var err error
			if check := Check(test.kind); check != nil {
				err = check([]byte(test.body))
			}
			if apierrors.IsBadRequest(err) != test.refused || (err != nil) != test.refused {
				t.Errorf("got error %v, want a bad request: %t", err, test.refused)
			}
		})
	}
}

// TestDepthMatchesEncodingJSON compares the depth with that of the value that encoding/json decodes.
func TestDepthMatchesEncodingJSON(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		text, err := json.Marshal(draw(t, rapid.IntRange(0, 6).Draw(t, "depth")))
		if err != nil {
			t.Fatal(err)
		}
		var decoded any
		if err := json.Unmarshal(text, &decoded); err != nil {
			t.Fatal(err)
		}
		depth := depthOf(decoded)
		if deeper(text, depth) || depth > 0 && !deeper(text, depth-1) {
			t.Fatalf("deeper reports another depth than %d of %s", depth, text)
		}
	})
}

func draw(t *rapid.T, depth int) any {
	if depth == 0 {
		return rapid.SampledFrom([]any{nil, 1, true, `"`, `\`, `{[`, `]}\"`}).Draw(t, "scalar")
	}
	if rapid.Bool().Draw(t, "list") {
		return []any{draw(t, depth-1), draw(t, depth/2)}
	}
	return map[string]any{rapid.SampledFrom([]string{"a", `{"`, `\`}).Draw(t, "key"): draw(t, depth-1), "b": draw(t, depth/2)}
}

func depthOf(v any) int {
	depth := -1
	switch v := v.(type) {
	case []any:
		for _, element := range v {
			depth = max(depth, depthOf(element))
		}
	case map[string]any:
		for _, member := range v {
			depth = max(depth, depthOf(member))
		}
	}
	return depth + 1
}

// TestAcceptedPatchesTakeLinearTime checks that an accepted merge patch is applied in time linear in its size, even at the
// maximum depth.
func TestAcceptedPatchesTakeLinearTime(t *testing.T) {
	proctest.OfProcess.CheckGrowth(t, 5000, func(n int) func() {
		patch := strings.Repeat(`{"a":`, MaxDepth) + `"` + strings.Repeat("v", n) + `"` + strings.Repeat("}", MaxDepth)
		if err := checkMergePatch([]byte(patch)); err != nil {
			t.Fatal(err)
		}
		return func() {
			if _, err := jsonpatch.MergePatch([]byte(`{}`), []byte(patch)); err != nil {
				t.Fatal(err)
			}
		}
	})
}
