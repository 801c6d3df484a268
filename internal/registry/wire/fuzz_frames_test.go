package wire_test

import (
	"bytes"
	"encoding/json"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/serializer/protobuf"

	"github.com/larder-io/larder/internal/registry/wire"
)

var frameEvents = []string{"ADDED", "MODIFIED", "DELETED", "BOOKMARK", "ERROR"}

// FuzzFramesProtobuf checks that upstream's framer splits a stream of protobuf frames into the original objects.
func FuzzFramesProtobuf(f *testing.F) {
	f.Add([]byte{10, 0}, []byte{}, uint8(2))
	f.Fuzz(func(t *testing.T, one, two []byte, kind uint8) {
		w, event := wire.Protobuf(statefulSets), frameEvents[int(kind)%len(frameEvents)]
		items := [][]byte{one, two}
		r := protobuf.LengthDelimitedFramer.NewFrameReader(&closing{Reader: bytes.NewReader(frames(w, event, items))})
		buffer := make([]byte, len(one)+len(two)+1<<10)
		for _, item := range items {
			n, err := r.Read(buffer)
			if err != nil {
				t.Fatal(err)
			}
			var got metav1.WatchEvent
			if err := got.Unmarshal(buffer[:n]); err != nil {
				t.Fatal(err)
			}
			if got.Type != event {
				t.Fatalf("event %q, want %q", got.Type, event)
			}
			same(t, "object", got.Object.Raw, w.AppendObject(nil, item))
		}
	})
}

// FuzzFramesJSON checks that a stream of JSON frames has one event on each line, for any objects.
func FuzzFramesJSON(f *testing.F) {
	for _, set := range seedObjects() {
		f.Add(must(json.Marshal(set)), []byte(`{}`), uint8(1), true)
	}
	f.Fuzz(func(t *testing.T, one, two []byte, kind uint8, partial bool) {
		w, items, ok := jsonItems(one, two, partial)
		if !ok {
			return
		}
		event := frameEvents[int(kind)%len(frameEvents)]
		lines := bytes.SplitAfter(frames(w, event, items), []byte{'\n'})
		if len(lines) != len(items)+1 || len(lines[len(items)]) != 0 {
			t.Fatalf("got %d lines for %d events", len(lines), len(items))
		}
		for i, item := range items {
			var got struct {
				Type   string
				Object json.RawMessage
			}
			if err := json.Unmarshal(lines[i], &got); err != nil || got.Type != event {
				t.Fatalf("%s: event %q, error %v", lines[i], got.Type, err)
			}
			same(t, "object", append(got.Object, '\n'), w.AppendObject(nil, item))
		}
	})
}

// FuzzListJSON checks that a JSON list can be split into its original items.
func FuzzListJSON(f *testing.F) {
	for _, set := range seedObjects() {
		f.Add(must(json.Marshal(set)), []byte(`{}`), int64(7), "next", true)
	}
	f.Fuzz(func(t *testing.T, one, two []byte, revision int64, next string, partial bool) {
		w, items, ok := jsonItems(one, two, partial)
		if !ok || revision <= 0 {
			return
		}
		meta := wire.ListMeta{Revision: revision, Continue: next}
		body := wire.AppendList(nil, w, meta, items)
		if n := w.ListSize(meta, 2, w.ItemSize(items[0])+w.ItemSize(items[1])); n != len(body) {
			t.Fatalf("list of %d bytes, ListSize %d", len(body), n)
		}
		var got struct {
			Kind, APIVersion string
			Metadata         metav1.ListMeta
			Items            []json.RawMessage
		}
		if err := json.Unmarshal(body, &got); err != nil {
			t.Fatalf("%v: %s", err, body)
		}
		want := metav1.ListMeta{ResourceVersion: string(must(json.Marshal(revision)))}
		if err := json.Unmarshal(must(json.Marshal(next)), &want.Continue); err != nil {
			t.Fatal(err)
		}
		if got.Kind != statefulSets.ListKind || got.APIVersion != statefulSets.APIVersion || got.Metadata != want || len(got.Items) != len(items) {
			t.Fatalf("got list %s %s %+v with %d items", got.APIVersion, got.Kind, got.Metadata, len(got.Items))
		}
		for i, item := range items {
			same(t, "item", got.Items[i], item)
		}
	})
}

// frames writes each item as a watch event.
func frames(w wire.Writer, event string, items [][]byte) (stream []byte) {
	for _, item := range items {
		stream = w.AppendFrame(stream, event, item)
	}
	return stream
}

// jsonItems returns one and two as compact items. ok is false if they are not JSON objects.
func jsonItems(one, two []byte, partial bool) (w wire.Writer, items [][]byte, ok bool) {
	for _, data := range [][]byte{one, two} {
		var compact bytes.Buffer
		if json.Compact(&compact, data) != nil || compact.Bytes()[0] != '{' {
			return nil, nil, false
		}
		items = append(items, compact.Bytes())
	}
	kind := statefulSets
	kind.Partial = partial
	return wire.JSON(kind), items, true
}

// closing is a reader with a Close method.
type closing struct{ *bytes.Reader }

// Close implements io.Closer.
func (*closing) Close() error { return nil }
