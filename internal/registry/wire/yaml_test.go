package wire_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"pgregory.net/rapid"
	"sigs.k8s.io/yaml"

	"github.com/larder-io/larder/internal/registry/wire"
)

// oddStrings returns strings that YAML quotes, folds, indents, writes as blocks, or cannot represent.
func oddStrings() []string {
	return []string{
		"", " ", "a", "  lead", "\tlead", "\n", "\n\n", " \n", "\n a", "trail\n", "trail\n\n\n", "trail \nb", "\ttab\nline", "  two\nlines\n",
		"- ", "- a\n- b", "---", "--- a\nb", "...", "# a", "a # b", "a: b", "a:", "? a", "| a", "> a", "{a: b}", "[a]", "&a", "*a", "!a", "%a", "@a",
		"'a'", `"a"`, `\`, "a\r\nb\r\n", "\r", "null", "~", "yes", "1", "0x1f", "1e3", "12:30:45", "2001-01-01", "<<", "=", "\x00", "\x1b[0m\n",
		"\u0085", "a\u0085b\nc", "\u2028\n", "\ufeff", "\u00fc\U0001F600\n x", strings.Repeat("long words ", 40), strings.Repeat("x", 300) + " y",
		strings.Repeat("long words ", 40) + "\nb", "\nitems:\n- 0\n", "items", "rows", "\x7f", "\u0080", "\ufffe",
	}
}

// drawJSON draws a JSON value of strings, numbers and containers.
func drawJSON(t *rapid.T, depth int) any {
	switch kind := rapid.IntRange(0, 7).Draw(t, "kind"); {
	case kind < 2 && depth > 0:
		list := []any{}
		for range rapid.IntRange(0, 3).Draw(t, "length") {
			list = append(list, drawJSON(t, depth-1))
		}
		return list
	case kind < 5 && depth > 0:
		object := map[string]any{}
		for range rapid.IntRange(0, 3).Draw(t, "members") {
			object[drawString(t)] = drawJSON(t, depth-1)
		}
		return object
	case kind == 5:
		return rapid.OneOf(rapid.Just[any](nil), rapid.Just[any](true), rapid.Just[any](1e30), rapid.Map(rapid.Int64(), func(n int64) any { return n }),
			rapid.Map(rapid.Float64(), func(n float64) any { return n })).Draw(t, "scalar")
	default:
		return drawString(t)
	}
}

func drawString(t *rapid.T) string {
	return rapid.OneOf(rapid.SampledFrom(oddStrings()[:len(oddStrings())-3]), rapid.SampledFrom(oddStrings()),
		rapid.StringOf(rapid.RuneFrom([]rune("ab -:#\n\t'\"")))).Draw(t, "string")
}

// sameYAML compares the YAML of body, made in pieces of at least size bytes, with the YAML of the whole body.
func sameYAML(t failer, body []byte, size int) {
	t.Helper()
	want, wantErr := yaml.JSONToYAML(body)
	got, err := wire.YAMLInPieces(body, size)
	if (err == nil) != (wantErr == nil) { // if body has several errors, the two may return different ones
		t.Errorf("%q: error %v, error of the whole %v", body, err, wantErr)
	}
	same(t, fmt.Sprintf("%q in pieces of %d", body, size), got, want)
}

// TestYAMLInPiecesEqualsTheWhole converts lists of random values with members in random order.
func TestYAMLInPiecesEqualsTheWhole(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		items := drawJSON(rt, 4) // in a custom resource, items may be no list
		if rapid.IntRange(0, 7).Draw(rt, "list") > 0 {
			list := []any{}
			for range rapid.IntRange(0, 6).Draw(rt, "items") {
				list = append(list, drawJSON(rt, 4))
			}
			items = list
		}
		name := rapid.SampledFrom([]string{"items", "rows"}).Draw(rt, "name")
		members := rapid.Permutation([]string{
			`"apiVersion":"v1"`, `"kind":"PodList"`, `"metadata":{"resourceVersion":"1"}`, `"columnDefinitions":[{"name":"a\nb"}]`,
			fmt.Sprintf("%q:%s", name, must(json.Marshal(items))),
		}).Draw(rt, "members")
		body := "{" + strings.Join(members, ",") + "}\n"
		sameYAML(rt, []byte(body), rapid.IntRange(2, 200).Draw(rt, "size"))
	})
}

// TestYAMLOfOddStrings converts each string as the last value of a piece, as a name, and in nested lists.
func TestYAMLOfOddStrings(t *testing.T) {
	for _, s := range oddStrings() {
		items := []any{s, map[string]any{s: s}, []any{[]any{s, map[string]any{"a": s}}}, map[string]any{"a": map[string]any{"b": []any{s}}}}
		body := must(json.Marshal(map[string]any{"apiVersion": s, "items": items}))
		for _, size := range []int{1, len(body) / 3} {
			sameYAML(t, body, size)
		}
	}
}

// FuzzYAML converts lists of arbitrary JSON.
func FuzzYAML(f *testing.F) {
	for _, s := range oddStrings() {
		f.Add(must(json.Marshal([]any{s, map[string]any{s: s}})), byte(9))
	}
	f.Fuzz(func(t *testing.T, items []byte, size byte) {
		var out bytes.Buffer
		if json.Compact(&out, items) != nil || bytes.ContainsAny(items, "\u2028\u2029") { // json.Marshal escapes these
			return
		}
		sameYAML(t, fmt.Appendf(nil, `{"apiVersion":"v1","items":%s,"kind":"List"}`, out.Bytes()), int(size)+1)
	})
}
