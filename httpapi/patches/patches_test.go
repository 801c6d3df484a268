package patches

import (
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	jsonpatch "gopkg.in/evanphx/json-patch.v4"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"pgregory.net/rapid"

	"github.com/larder-io/larder/internal/proctest"
)

// read returns what a handler reads of a body.
func read(t *testing.T, method, kind string, body io.Reader) (string, error) {
	t.Helper()
	var got []byte
	var err error
	h := Bounded(http.HandlerFunc(func(_ http.ResponseWriter, req *http.Request) { got, err = io.ReadAll(req.Body) }))
	req := httptest.NewRequest(method, "/", body)
	req.Header.Set("Content-Type", kind)
	h.ServeHTTP(httptest.NewRecorder(), req)
	return string(got), err
}

func nested(depth int) string {
	return strings.Repeat(`{"a":`, depth) + `"}{"` + strings.Repeat("}", depth)
}

func TestOnlyDeepPatchesAreRefused(t *testing.T) {
	const merge, operations = "application/merge-patch+json", "application/json-patch+json"
	for _, test := range []struct {
		name, method, kind, body string
		refused                  bool
	}{
		{name: "flat", kind: merge, body: `{"data":{"k":"v"}}`},
		{name: "empty", kind: merge},
		{name: "deepest", kind: merge, body: nested(MaxDepth)},
		{name: "too deep", kind: merge, body: nested(MaxDepth + 1), refused: true},
		{name: "too deep, with a parameter", kind: merge + "; charset=utf-8", body: nested(MaxDepth + 1), refused: true},
		{name: "brackets", kind: merge, body: strings.Repeat("[", MaxDepth+1), refused: true},
		{name: "brackets in a string", kind: merge, body: `{"a":"\"` + strings.Repeat("[", 1000) + `"}`},
		{name: "string without end", kind: merge, body: `{"a":"\`},
		{name: "another type", kind: "application/strategic-merge-patch+json", body: nested(1000)},
		{name: "another method", method: http.MethodPut, kind: merge, body: nested(1000)},
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
			method := test.method
			if method == "" {
				method = http.MethodPatch
			}
			got, err := read(t, method, test.kind, strings.NewReader(test.body))
			if test.refused {
				if !apierrors.IsBadRequest(err) || got != "" {
					t.Errorf("got %.100q, %v, want a bad request", got, err)
				}
				return
			}
			if err != nil || got != test.body {
				t.Errorf("got %.100q, %v", got, err)
			}
		})
	}
}

func TestErrorsOfTheBodyPass(t *testing.T) {
	broken := errors.New("broken")
	reader, writer := io.Pipe()
	go func() {
		_, _ = writer.Write([]byte(`{"a":`))
		writer.CloseWithError(broken)
	}()
	if got, err := read(t, http.MethodPatch, "application/merge-patch+json", reader); !errors.Is(err, broken) {
		t.Errorf("got %q, %v, want %v", got, err, broken)
	}
}

// TestDepthIsThatOfJSON compares with the depth of what encoding/json decodes.
func TestDepthIsThatOfJSON(t *testing.T) {
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
			t.Fatalf("%s is nested %d deep", text, depth)
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

// TestPassedPatchesAreCheap: what passes is applied in time linear in its size, however it is
// nested.
func TestPassedPatchesAreCheap(t *testing.T) {
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
