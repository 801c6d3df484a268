package servedjson

import (
	"encoding/json"
	"math"
	"math/rand/v2"
	"reflect"
	"testing"

	utiljson "k8s.io/apimachinery/pkg/util/json"
)

// encodes checks that Encode writes what encoding/json writes, and that decoding the data restores the object if same
// is true.
func encodes(t *testing.T, object map[string]any) (same, ok bool) {
	t.Helper()
	got, same, ok := Encode(object, 100)
	if !ok {
		return false, false
	}
	want, err := json.Marshal(object)
	if err != nil {
		t.Fatalf("%#v: error of encoding/json: %v", object, err)
	}
	if string(got) != string(want) {
		t.Fatalf("%#v:\ngot  %s\nwant %s", object, got, want)
	}
	var again map[string]any
	if err := utiljson.Unmarshal(want, &again); err != nil {
		t.Fatal(err)
	}
	if same && !reflect.DeepEqual(again, object) {
		t.Fatalf("%#v decodes to %#v", object, again)
	}
	return same, true
}

// TestEncodeMatchesEncodingJSON encodes random objects, and strings and numbers of all kinds.
func TestEncodeMatchesEncodingJSON(t *testing.T) {
	rounds, same := 3000, 0
	for seed := range uint64(rounds) {
		g := generator{rand.New(rand.NewPCG(seed, 3))}
		object, ok := g.value(g.schema(3), 4).(map[string]any)
		if !ok {
			object = map[string]any{"spec": g.value(nil, 4)}
		}
		object["metadata"] = g.metadata()
		is, ok := encodes(t, object)
		if !ok {
			t.Fatalf("%#v was not encoded", object)
		}
		if is {
			same++
		}
	}
	if same < rounds/4 || same == rounds {
		t.Errorf("same is true for %d of %d objects, want a quarter or more, but not all", same, rounds)
	}
	for c := range rune(0x2100) {
		for _, text := range []string{string(c), "1234567" + string(c) + "123456789"} {
			if is, ok := encodes(t, map[string]any{text: text}); !is || !ok {
				t.Errorf("%q: same %v, ok %v, want true for both", text, is, ok)
			}
		}
	}
	for c := range 0x100 {
		for _, text := range []string{string([]byte{byte(c)}), "123\xe2" + string([]byte{byte(c), 0x80}) + "123456789", "1234567\xf0\x9f" + string([]byte{byte(c)})} {
			encodes(t, map[string]any{"a": text})
		}
	}
	random := rand.New(rand.NewPCG(1, 1))
	for range 20000 {
		encodes(t, map[string]any{"a": math.Float64frombits(random.Uint64()), "b": float64(random.Int64N(1 << 60)), "c": random.NormFloat64()})
	}
	for _, f := range []float64{0, math.Copysign(0, -1), 1, 0.5, 1e20, 1e21, 1e-6, 1e-7, 123456789.25, math.MaxFloat64, math.SmallestNonzeroFloat64} {
		encodes(t, map[string]any{"a": f})
	}
	if same, _ := encodes(t, map[string]any{"a": 1.0}); same {
		t.Error("same is true for float64(1), which decodes to an integer")
	}
}

// TestEncodeRejectsOtherTypes checks that Encode returns false for types that decoding does not produce.
func TestEncodeRejectsOtherTypes(t *testing.T) {
	deep := any(map[string]any{})
	for range maxDepth {
		deep = []any{deep}
	}
	for _, v := range []any{1, int32(1), float32(1), []string{"a"}, map[string]string{}, json.RawMessage("1"), math.NaN(), math.Inf(1), []any(nil), map[string]any(nil), deep, struct{}{}} {
		for _, object := range []map[string]any{{"a": v}, {"a": []any{v}}, {"a": map[string]any{"b": v}}} {
			if _, _, ok := Encode(object, 100); ok {
				t.Errorf("%#v was encoded", object)
			}
		}
	}
	wide := []any{}
	for range maxDepth {
		wide = append(wide, []any{}, map[string]any{})
	}
	if _, ok := encodes(t, map[string]any{"a": wide}); !ok {
		t.Error("a wide object was not encoded")
	}
	if _, _, ok := Encode(nil, 100); ok {
		t.Error("nil was encoded")
	}
}

func BenchmarkEncode(b *testing.B) {
	g := generator{rand.New(rand.NewPCG(1, 3))}
	list := []any{}
	for range 500 {
		list = append(list, map[string]any{"id": "CVE-2020-12345", "severity": "HIGH", "score": 7.5, "line": int64(33), "title": "a the of in an to and is was by for", "description": g.text() + " remote attacker crafted request allows overflow buffer", "links": []any{"https://example.com/a?b=c&d=e"}, "cvss": map[string]any{"nvd": map[string]any{"score": 1.5, "vector": "CVSS:3.1/AV:N/AC:L/PR:N/UI:N/S:U/C:H/I:H/A:H"}}})
	}
	object := map[string]any{"spec": list}
	b.Run("own", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			e, _, _ := Encode(object, 100)
			b.SetBytes(int64(len(e)))
		}
	})
	b.Run("encoding/json", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			d, _ := json.Marshal(object)
			b.SetBytes(int64(len(d)))
		}
	})
}
