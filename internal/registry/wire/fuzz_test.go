package wire_test

import (
	"bytes"
	"encoding/json"
	"reflect"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/larder-io/larder/internal/registry/wire"
)

func seedObjects() []*appsv1.StatefulSet {
	set := &appsv1.StatefulSet{ObjectMeta: metav1.ObjectMeta{Name: "a", Namespace: "b", ResourceVersion: "12", Labels: map[string]string{"k": "v"}}}
	set.Spec.Template.ObjectMeta = metav1.ObjectMeta{ResourceVersion: "7"}
	return []*appsv1.StatefulSet{{}, set}
}

// FuzzRevisionProtobuf checks that a splice that succeeds changes only the revision, and can be undone.
func FuzzRevisionProtobuf(f *testing.F) {
	for _, set := range seedObjects() {
		f.Add(must(set.Marshal()), int64(99))
	}
	f.Add([]byte{10, 3, 0x32, 1, '5', 0x12, 0}, int64(1))
	f.Fuzz(func(t *testing.T, msg []byte, revision int64) {
		if revision <= 0 {
			return
		}
		before := bytes.Clone(msg)
		got, err := wire.AppendRevisionProtobuf(nil, msg, revision)
		same(t, "input", msg, before)
		if err != nil {
			return
		}
		if r, err := wire.RevisionProtobuf(got); err != nil || r != revision {
			t.Fatalf("revision %d, %v, want %d", r, err, revision)
		}
		again, err := wire.AppendRevisionProtobuf(nil, got, revision)
		if err != nil {
			t.Fatal(err)
		}
		same(t, "repeated", again, got)
		var was, is appsv1.StatefulSet
		if was.Unmarshal(msg) != nil || bytes.Count(msg, []byte{10}) > 1 {
			return // not an object, or an object that may have metadata in two parts
		}
		if err := is.Unmarshal(got); err != nil {
			t.Fatalf("spliced object does not decode: %v", err)
		}
		was.ResourceVersion, is.ResourceVersion = "", ""
		if !reflect.DeepEqual(was, is) {
			t.Fatalf("more than the revision changed:\n%v\n%v", was, is)
		}
	})
}

// FuzzRevisionJSON checks that a splice that succeeds changes only the revision.
func FuzzRevisionJSON(f *testing.F) {
	for _, set := range seedObjects() {
		f.Add(must(json.Marshal(set)), int64(99))
	}
	f.Add([]byte(`{ "a" : [ "]" , {"metadata":{}} ] , "metadata" : { "x" : "\"" , "resourceVersion" : "" } }`), int64(3))
	f.Fuzz(func(t *testing.T, object []byte, revision int64) {
		if revision <= 0 {
			return
		}
		before := bytes.Clone(object)
		got, err := wire.AppendRevisionJSON(nil, object, revision)
		same(t, "input", object, before)
		if err != nil || !json.Valid(object) {
			return
		}
		var was, is map[string]any
		if json.Unmarshal(object, &was) != nil || duplicates(object) {
			return
		}
		if err := json.Unmarshal(got, &is); err != nil {
			t.Fatalf("spliced object does not decode: %v\n%s", err, got)
		}
		meta, ok := is["metadata"].(map[string]any)
		if !ok || meta["resourceVersion"] != string(must(json.Marshal(revision))) {
			t.Fatalf("no revision in %s", got)
		}
		old := was["metadata"].(map[string]any)
		meta["resourceVersion"] = old["resourceVersion"]
		if !reflect.DeepEqual(was, is) {
			t.Fatalf("more than the revision changed:\n%s\n%s", object, got)
		}
	})
}

// duplicates reports whether a name may occur twice, or in another case. Decoders use the last of two, the splice uses
// the first.
func duplicates(object []byte) bool {
	lower := bytes.ToLower(object)
	return bytes.Count(lower, []byte("metadata")) > 1 || bytes.Count(lower, []byte("resourceversion")) > 1 || bytes.Contains(object, []byte(`\u`))
}

// FuzzListProtobuf checks that a list can be split into its original items.
func FuzzListProtobuf(f *testing.F) {
	f.Add([]byte{10, 0}, []byte{}, int64(7), "next")
	f.Fuzz(func(t *testing.T, one, two []byte, revision int64, next string) {
		if revision <= 0 {
			return
		}
		w := wire.Protobuf(statefulSets)
		meta := wire.ListMeta{Revision: revision, Continue: next}
		body := wire.AppendList(nil, w, meta, [][]byte{one, two})
		if n := w.ListSize(meta, 2, w.ItemSize(one)+w.ItemSize(two)); n != len(body) {
			t.Fatalf("list of %d bytes, ListSize %d", len(body), n)
		}
		raw, apiVersion, kind, ok := wire.Unenvelope(body)
		if !ok || apiVersion != statefulSets.APIVersion || kind != statefulSets.ListKind {
			t.Fatalf("envelope: ok %v, apiVersion %q, kind %q", ok, apiVersion, kind)
		}
		var want bytes.Buffer
		list := metav1.ListMeta{ResourceVersion: string(must(json.Marshal(revision))), Continue: next}
		for _, part := range []struct {
			tag  byte
			data []byte
		}{{10, must(list.Marshal())}, {18, one}, {18, two}} {
			want.WriteByte(part.tag)
			for n := len(part.data); ; n >>= 7 {
				if n < 0x80 {
					want.WriteByte(byte(n))
					break
				}
				want.WriteByte(byte(n) | 0x80)
			}
			want.Write(part.data)
		}
		same(t, "list", raw, want.Bytes())
	})
}

// FuzzUnenvelope checks that Unenvelope finds what upstream decodes from an envelope.
func FuzzUnenvelope(f *testing.F) {
	for _, set := range seedObjects() {
		f.Add(wire.Protobuf(statefulSets).AppendObject(nil, must(set.Marshal())))
	}
	f.Fuzz(func(t *testing.T, value []byte) {
		raw, apiVersion, kind, ok := wire.Unenvelope(value)
		if !ok {
			return
		}
		var unknown runtime.Unknown
		if err := unknown.Unmarshal(value[4:]); err != nil {
			return // upstream rejects more messages
		}
		if !bytes.Equal(raw, unknown.Raw) {
			t.Fatalf("raw %q, want %q", raw, unknown.Raw)
		}
		if bytes.Count(value, []byte{10}) <= 2 && (apiVersion != unknown.APIVersion || kind != unknown.Kind) {
			t.Fatalf("%q %q, want %q %q", apiVersion, kind, unknown.APIVersion, unknown.Kind)
		}
	})
}
