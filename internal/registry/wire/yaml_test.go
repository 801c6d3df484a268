package wire_test

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"
	"unicode"

	"pgregory.net/rapid"
	"sigs.k8s.io/yaml"

	"github.com/larder-io/larder/internal/registry/wire"
)

// oddStrings returns strings that YAML quotes, folds, indents, writes as blocks, or cannot have.
func oddStrings() []string {
	return []string{
		"", " ", "a", "  lead", "\tlead", "\n", "\n\n", " \n", "\n a", "trail\n", "trail\n\n\n", "trail \nb", "\ttab\nline", "  two\nlines\n",
		"- ", "- a\n- b", "---", "--- a\nb", "...", "# a", "a # b", "a: b", "a:", "? a", "| a", "> a", "{a: b}", "[a]", "&a", "*a", "!a", "%a", "@a",
		"'a'", `"a"`, `\`, "a\r\nb\r\n", "\r", "null", "~", "yes", "1", "0x1f", "1e3", "12:30:45", "2001-01-01", "<<", "=", "\x00", "\x1b[0m\n",
		"\u0085", "a\u0085b\nc", "\u2028\n", "\ufeff", "\u00fc\U0001F600\n x", "\u3000\u00a0", strings.Repeat("long words ", 40), strings.Repeat("x", 300) + " y",
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

// sameYAML converts body in pieces of some size, and compares the result with that of the whole body.
func sameYAML(t failer, body []byte, size int) {
	t.Helper()
	want, wantErr := yaml.JSONToYAML(body)
	var got bytes.Buffer
	for _, out := range []io.Writer{&got, io.Discard} {
		y := wire.YAMLWriterOf(out, size)
		var err error
		for p := range slices.Chunk(body, size) {
			if _, err = y.Write(p); err != nil {
				break
			}
		}
		if err = cmp.Or(err, y.Close()); (err == nil) != (wantErr == nil) { // of several errors, each may return another one
			t.Errorf("%q to %T: %v, whole %v", body, out, err, wantErr)
		}
	}
	if wantErr == nil {
		same(t, fmt.Sprintf("%q in pieces of %d", body, size), got.Bytes(), want)
	}
}

// TestYAMLInPiecesIsThatOfTheWhole converts lists of random values, and of objects with a Go type.
func TestYAMLInPiecesIsThatOfTheWhole(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		items := [][]byte{}
		for range rapid.IntRange(0, 6).Draw(rt, "items") {
			items = append(items, must(json.Marshal(map[string]any{drawString(rt): drawJSON(rt, 4), "metadata": drawJSON(rt, 3)})))
		}
		if rapid.IntRange(0, 3).Draw(rt, "typed") == 0 {
			items = append(items, must(json.Marshal(drawSet(rt))))
		}
		remaining := int64(3)
		meta := wire.ListMeta{Revision: 5, Continue: drawString(rt), Remaining: &remaining}
		w := rapid.SampledFrom([]func(wire.Kind) wire.Writer{wire.JSON, wire.Unstructured}).Draw(rt, "writer")
		body := wire.AppendList(nil, w(statefulSets), meta, items)
		if rapid.Bool().Draw(rt, "table") {
			body = fmt.Appendf(nil, `{"kind":"Table","apiVersion":"v1","metadata":{},"columnDefinitions":[{"name":"a\nb"}],"rows":[%s]}`, bytes.Join(items, []byte(",")))
		}
		sameYAML(rt, body, rapid.IntRange(2, 300).Draw(rt, "size"))
	})
}

// TestYAMLOfEachOddString has each string as the last of a piece, as a name, and in lists of lists.
func TestYAMLOfEachOddString(t *testing.T) {
	for _, s := range append(oddStrings(), strings.Repeat("name", 256), strings.Repeat("name", 257)) {
		items := []any{map[string]any{s: s}, s, []any{[]any{s, map[string]any{"a": s}}}, map[string]any{"a": map[string]any{"b": []any{s}}}}
		body := must(json.Marshal(map[string]any{"apiVersion": "v1", "items": items, "metadata": s}))
		for _, size := range []int{19, 30, 60, len(body) / 3} { // the first of 19 ends before the list
			sameYAML(t, body, size)
		}
	}
}

// TestYAMLOfDeepValues has values in so many others that YAML has an error, and in one fewer.
func TestYAMLOfDeepValues(t *testing.T) {
	for depth := range 2 {
		deep := strings.Repeat("[", 9997+depth) + strings.Repeat("]", 9997+depth)
		sameYAML(t, fmt.Appendf(nil, `{"apiVersion":"v1","items":[{"a":1},{"a":%s},{"a":1}]}`, deep), 64)
	}
}

// TestYAMLErrors has one item that cannot be YAML among others that can. Some of these have the character that begins a line.
// The error is that of the whole, also if nothing but errors is wanted.
func TestYAMLErrors(t *testing.T) {
	for _, value := range []string{`"\/"`, `"\ud83d\ude00"`, `"\uD83D\uDE00"`, "\"\xff\"", "\"\x7f\"", "\"\ufffe\"", "\"\u0085\\/\"", `{"` + strings.Repeat("a", 1025) + `":1}`} {
		for _, before := range []string{`,{"a":"b"}`, ",{\"a\":\"\u0085\u0085\"}"} {
			body := `{"apiVersion":"v1","items":[{"a":1}` + strings.Repeat(before, 20) + `,{"a":` + value + `}` + strings.Repeat(`,{"a":"b"}`, 20) + `]}`
			_, want := yaml.JSONToYAML([]byte(body))
			for _, out := range []io.Writer{new(bytes.Buffer), io.Discard} {
				y := wire.YAMLWriterOf(out, 40)
				var err error
				for p := range slices.Chunk([]byte(body), 30) {
					if _, err = y.Write(p); err != nil {
						break
					}
				}
				if err == nil || fmt.Sprint(err) != fmt.Sprint(want) {
					t.Errorf("%.20q behind %s, to %T: error %v, want %v", value, before, out, err, want)
				}
			}
		}
	}
}

// TestConvertibleCharacters converts names and strings of all characters that certainly cause no error. These include the
// full-width space of Chinese and Japanese, and the joiner of emoji, because the conversion of whole lists takes long.
func TestConvertibleCharacters(t *testing.T) {
	var all []rune
	for r := ' '; r <= unicode.MaxRune; r++ {
		if r != '"' && r != '\\' && wire.Convertible([]byte(`"`+string(r)+`"`)) {
			all = append(all, r)
		}
	}
	for some := range slices.Chunk(all, 200) {
		body := fmt.Sprintf(`{"%s":"%s"}`, string(some), string(some))
		if _, err := yaml.JSONToYAML([]byte(body)); err != nil {
			t.Errorf("%s: %v", body, err)
		}
	}
	for _, r := range "\u00a0\u200d\u3000ü世\ue000\U0001F600" {
		if !slices.Contains(all, r) {
			t.Errorf("%q must be converted", r)
		}
	}
}

// TestYAMLIsWrittenInPieces checks that no piece of a large list or table is long.
func TestYAMLIsWrittenInPieces(t *testing.T) {
	for _, name := range []string{"items", "rows"} {
		body := fmt.Appendf(nil, `{"kind":"List","apiVersion":"v1","metadata":{},%q:[{"a":"b"}%s]}`, name, strings.Repeat(`,{"a":"b"}`, 10000))
		var out pieces
		y := wire.YAMLWriterOf(&out, 500)
		for p := range slices.Chunk(body, 300) {
			must(y.Write(p))
		}
		if err := y.Close(); err != nil || out.longest > 1000 || out.sum != len(must(yaml.JSONToYAML(body))) {
			t.Errorf("%s: the longest piece has %d of %d bytes, want 1000 at most: %v", name, out.longest, out.sum, err)
		}
	}
}

// TestYAMLOfLists converts lists that have their members in another order than those of the server.
func TestYAMLOfLists(t *testing.T) {
	sameYAML(t, []byte(`{"items":[{"a":1},{"b":2}],"kind":"List"}`), 12)
	sameYAML(t, []byte(`{"spec":{"items":[{"a":1},{"b":2}]},"rows":[{"c":3}]}`), 24)
	y := wire.YAMLWriterOf(io.Discard, 12)
	must(y.Write([]byte(`{"apiVersion":"v1","items":[{"a":1},{"b":2}],"a":1}`)))
	if err := y.Close(); err == nil {
		t.Error("got no error of a member that belongs before the items, which are written")
	}
}

type pieces struct{ longest, sum int }

func (p *pieces) Write(b []byte) (int, error) {
	p.longest, p.sum = max(p.longest, len(b)), p.sum+len(b)
	return len(b), nil
}

// FuzzYAML converts any JSON of a list.
func FuzzYAML(f *testing.F) {
	for _, s := range oddStrings() {
		f.Add(must(json.Marshal([]any{map[string]any{s: s}, s})), byte(9))
	}
	f.Fuzz(func(t *testing.T, items []byte, size byte) {
		var value any
		if json.Unmarshal(items, &value) == nil { // as an encoder writes it
			sameYAML(t, fmt.Appendf(nil, `{"apiVersion":"v1","items":%s,"kind":"List"}`, must(json.Marshal(value))), int(size)+1)
		}
	})
}
