package wire

import (
	"bytes"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer/json"
	"pgregory.net/rapid"
)

// TestUnstructuredMatchesUpstream compares lists and objects of kinds without a Go type with those of upstream's
// serializer.
func TestUnstructuredMatchesUpstream(t *testing.T) {
	serializer := json.NewSerializerWithOptions(json.DefaultMetaFactory, nil, nil, json.SerializerOptions{StreamingCollectionsEncoding: true})
	encode := func(t *rapid.T, obj runtime.Object) []byte {
		var out bytes.Buffer
		if err := serializer.Encode(obj, &out); err != nil {
			t.Fatal(err)
		}
		return out.Bytes()
	}
	kind := Kind{APIVersion: "example.com/v1", Kind: "Foo", ListKind: "FooList"}
	w := Unstructured(kind)
	rapid.Check(t, func(t *rapid.T) {
		list := &unstructured.UnstructuredList{}
		list.SetAPIVersion(kind.APIVersion)
		list.SetKind(kind.ListKind)
		meta := ListMeta{Revision: rapid.Int64Range(1, 1<<40).Draw(t, "revision"), Continue: rapid.String().Draw(t, "continue")}
		if rapid.Bool().Draw(t, "more") {
			remaining := rapid.Int64Range(0, 1<<20).Draw(t, "remaining")
			meta.Remaining = &remaining
		}
		meta.Shard = rapid.SampledFrom([]string{"", "shard"}).Draw(t, "shard") // upstream's UnstructuredList has no field for it
		list.SetContinue(meta.Continue)
		list.SetRemainingItemCount(meta.Remaining)
		list.SetResourceVersion(string(appendRevisionString(nil, meta.Revision)))
		var items [][]byte
		size := 0
		for range rapid.IntRange(0, 3).Draw(t, "items") {
			u := unstructured.Unstructured{Object: map[string]any{
				rapid.StringMatching(`[A-Za-z<&]{1,9}`).Draw(t, "field"): rapid.String().Draw(t, "value"),
			}}
			u.SetAPIVersion(kind.APIVersion)
			u.SetKind(kind.Kind)
			u.SetResourceVersion("7")
			list.Items = append(list.Items, u)
			body := encode(t, &u)
			item := bytes.TrimSuffix(body, []byte("\n"))
			items = append(items, item)
			size += w.ItemSize(item)
			if got := w.AppendObject(nil, item); !bytes.Equal(got, body) || len(got) != w.ObjectSize(item) {
				t.Fatalf("object: got %s (%d), want %s", got, w.ObjectSize(item), body)
			}
			again, err := w.AppendRevision(nil, item, 8)
			u.SetResourceVersion("8")
			if want := bytes.TrimSuffix(encode(t, &u), []byte("\n")); err != nil || !bytes.Equal(again, want) {
				t.Fatalf("revision: got %s, want %s, error %v", again, want, err)
			}
			u.SetResourceVersion("7")
		}
		want := encode(t, list)
		if got := AppendList(nil, w, meta, items); !bytes.Equal(got, want) || len(got) != w.ListSize(meta, len(items), size) {
			t.Fatalf("list: got %s (%d), want %s", got, w.ListSize(meta, len(items), size), want)
		}
	})
}
