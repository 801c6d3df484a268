package wire_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	kjson "k8s.io/apimachinery/pkg/runtime/serializer/json"
	"k8s.io/apimachinery/pkg/runtime/serializer/protobuf"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/framer"
	"pgregory.net/rapid"

	"github.com/larder-io/larder/internal/registry/wire"
)

var statefulSets = wire.Kind{APIVersion: "apps/v1", Kind: "StatefulSet", ListKind: "StatefulSetList"}

// text draws strings that encoders treat differently.
var text = rapid.OneOf(
	rapid.SampledFrom([]string{"", "a", "<&>\u2028", `"\`, `"metadata":{"resourceVersion":"1"}`, "é\x00\n", "k8s\x00"}),
	rapid.String(),
)

func drawMeta(t *rapid.T, label string) metav1.ObjectMeta {
	m := metav1.ObjectMeta{
		Name:            text.Draw(t, label+" name"),
		GenerateName:    text.Draw(t, label+" generateName"),
		Namespace:       text.Draw(t, label+" namespace"),
		UID:             types.UID(text.Draw(t, label+" uid")),
		ResourceVersion: rapid.SampledFrom([]string{"1", "42", "9223372036854775807"}).Draw(t, label+" resourceVersion"),
		Generation:      rapid.Int64Range(0, 300).Draw(t, label+" generation"),
		Labels:          rapid.MapOfN(text, text, 0, 3).Draw(t, label+" labels"),
		Annotations:     rapid.MapOfN(text, text, 0, 3).Draw(t, label+" annotations"),
		Finalizers:      rapid.SliceOfN(text, 0, 2).Draw(t, label+" finalizers"),
	}
	if rapid.Bool().Draw(t, label+" managed") {
		m.ManagedFields = []metav1.ManagedFieldsEntry{{Manager: "m", FieldsV1: metav1.NewFieldsV1(`{"f:metadata":{}}`)}}
	}
	return m
}

// drawSet draws an object that contains other objects' metadata.
func drawSet(t *rapid.T) *appsv1.StatefulSet {
	set := &appsv1.StatefulSet{ObjectMeta: drawMeta(t, "object")}
	set.Spec.Template.ObjectMeta = drawMeta(t, "template")
	for range rapid.IntRange(0, 2).Draw(t, "claims") {
		set.Spec.VolumeClaimTemplates = append(set.Spec.VolumeClaimTemplates, corev1.PersistentVolumeClaim{ObjectMeta: drawMeta(t, "claim")})
	}
	return set
}

// media is one media type: Larder's writer, upstream's encoder, and how items are made.
type media struct {
	name   string
	writer wire.Writer
	encode func(t testing.TB, obj runtime.Object) []byte
	item   func(t testing.TB, obj *appsv1.StatefulSet) []byte
	frame  func(body []byte) []byte
}

func medias() []media {
	scheme := runtime.NewScheme()
	encodeJSON := kjson.NewSerializerWithOptions(kjson.DefaultMetaFactory, scheme, scheme, kjson.SerializerOptions{StreamingCollectionsEncoding: true})
	encodeProto := protobuf.NewSerializerWithOptions(scheme, scheme, protobuf.SerializerOptions{StreamingCollectionsEncoding: true})
	encode := func(e runtime.Encoder) func(testing.TB, runtime.Object) []byte {
		return func(t testing.TB, obj runtime.Object) []byte {
			var out bytes.Buffer
			if err := e.Encode(obj, &out); err != nil {
				t.Fatal(err)
			}
			return out.Bytes()
		}
	}
	return []media{{
		name:   "json",
		writer: wire.JSON(statefulSets),
		encode: encode(encodeJSON),
		item: func(t testing.TB, obj *appsv1.StatefulSet) []byte {
			return must(json.Marshal(obj))
		},
		frame: func(body []byte) []byte { return body },
	}, {
		name:   "protobuf",
		writer: wire.Protobuf(statefulSets),
		encode: encode(encodeProto),
		item: func(t testing.TB, obj *appsv1.StatefulSet) []byte {
			return must(obj.Marshal())
		},
		frame: func(body []byte) []byte {
			var out bytes.Buffer
			must(framer.NewLengthDelimitedFrameWriter(&out).Write(body))
			return out.Bytes()
		},
	}}
}

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

// typed sets the kind that upstream's encoders write.
func typed(obj *appsv1.StatefulSet) *appsv1.StatefulSet {
	out := obj.DeepCopy()
	out.Kind, out.APIVersion = statefulSets.Kind, statefulSets.APIVersion
	return out
}

// event encodes a watch event as apiserver pkg/endpoints/handlers/watch.go does.
func (m media) event(t testing.TB, kind string, obj runtime.Object) []byte {
	outer := &metav1.WatchEvent{Type: kind, Object: runtime.RawExtension{Raw: m.encode(t, obj)}}
	if m.name == "protobuf" {
		return m.frame(must(outer.Marshal()))
	}
	return m.frame(m.encode(t, outer))
}

// TestWritersAgreeWithUpstream compares random objects and watch events with those of upstream's encoders.
func TestWritersAgreeWithUpstream(t *testing.T) {
	for _, m := range medias() {
		t.Run(m.name, rapid.MakeCheck(func(rt *rapid.T) {
			set := drawSet(rt)
			item := m.item(t, set)
			same(rt, "object", m.writer.AppendObject(nil, item), m.encode(t, typed(set)))
			size(rt, "object", m.writer.ObjectSize(item), m.writer.AppendObject(nil, item))
			frame := m.writer.AppendFrame(nil, "ADDED", item)
			same(rt, "event", frame, m.event(t, "ADDED", typed(set)))
			size(rt, "capacity", cap(slices.Grow([]byte(nil), len(frame))), frame[:cap(frame)])
		}))
	}
}

// TestUIDsAreFoundInBytes checks that the UID that selects an object's shard is the object's own.
func TestUIDsAreFoundInBytes(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		set := drawSet(rt)
		same(rt, "protobuf", wire.UIDProtobuf(must(set.Marshal())), []byte(set.UID))
		custom := must(json.Marshal(map[string]any{"a": typed(set), "kind": "K", "metadata": set.ObjectMeta, "spec": set.Spec}))
		uid := []byte(strings.ToValidUTF8(string(set.UID), "\ufffd"))
		same(rt, "JSON", wire.UIDJSON(custom), uid)
		same(rt, "head", wire.UIDJSON(wire.HeadJSON(custom)), uid)
	})
}

// TestListsAgreeWithUpstream compares random lists with those of upstream's encoders.
func TestListsAgreeWithUpstream(t *testing.T) {
	for _, m := range medias() {
		t.Run(m.name, rapid.MakeCheck(func(rt *rapid.T) {
			list := &appsv1.StatefulSetList{Items: []appsv1.StatefulSet{}}
			list.Kind, list.APIVersion = statefulSets.ListKind, statefulSets.APIVersion
			meta := wire.ListMeta{
				Revision: rapid.Int64Min(0).Draw(rt, "revision"),
				Continue: text.Draw(rt, "continue"),
			}
			if rapid.Bool().Draw(rt, "counted") {
				n := rapid.Int64().Draw(rt, "remaining")
				meta.Remaining, list.RemainingItemCount = &n, &n
			}
			if meta.Shard = text.Draw(rt, "shard"); meta.Shard != "" {
				list.ShardInfo = &metav1.ShardInfo{Selector: meta.Shard}
			}
			if meta.Revision > 0 {
				list.ResourceVersion = string(must(json.Marshal(meta.Revision)))
			}
			list.Continue = meta.Continue
			var items [][]byte
			sum := 0
			for range rapid.IntRange(0, 4).Draw(rt, "items") {
				set := drawSet(rt)
				list.Items = append(list.Items, *set)
				items = append(items, m.item(t, set))
				sum += m.writer.ItemSize(items[len(items)-1])
			}
			got := wire.AppendList(nil, m.writer, meta, items)
			same(rt, "list", got, m.encode(t, list))
			size(rt, "list", m.writer.ListSize(meta, len(items), sum), got)
		}))
	}
}

// TestRevisionSpliceAgreesWithUpstream checks that an item with an added revision equals upstream's encoding of the
// object.
func TestRevisionSpliceAgreesWithUpstream(t *testing.T) {
	for _, m := range medias() {
		t.Run(m.name, rapid.MakeCheck(func(rt *rapid.T) {
			set := drawSet(rt)
			revision := rapid.Int64Min(1).Draw(rt, "revision")
			before := m.item(t, set)
			kept := bytes.Clone(before)
			got, err := m.writer.AppendRevision([]byte("head"), before, revision)
			if err != nil {
				rt.Fatal(err)
			}
			set.ResourceVersion = string(must(json.Marshal(revision)))
			same(rt, "item", got, append([]byte("head"), m.item(t, set)...))
			same(rt, "input", before, kept)
		}))
	}
}

// TestRevisionCanBeAddedAndRemoved checks that a revision can be added to stored bytes, whose resourceVersion is an
// empty string, and removed again.
func TestRevisionCanBeAddedAndRemoved(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		set := drawSet(rt)
		revision := rapid.Int64Min(1).Draw(rt, "revision")
		set.ResourceVersion = ""
		stored := must(set.Marshal())
		full := must(wire.AppendRevisionProtobuf(nil, stored, revision))
		if got := must(wire.RevisionProtobuf(full)); got != revision {
			rt.Errorf("revision %d, want %d", got, revision)
		}
		same(rt, "stored", must(wire.AppendRevisionProtobuf(nil, full, 0)), stored)
		if got := must(wire.RevisionProtobuf(stored)); got != 0 {
			rt.Errorf("stored bytes have revision %d, want 0", got)
		}
	})
}

// TestRevisionIsAddedToMessagesWithoutOne checks a message as other writers than Go's encode it: without empty fields.
func TestRevisionIsAddedToMessagesWithoutOne(t *testing.T) {
	msg := []byte{
		1<<3 | 2, 8, // metadata
		1<<3 | 2, 1, 'n', // name
		7 << 3, 3, // generation
		12<<3 | 2, 1, 0, // annotations
		2<<3 | 2, 1, 'x', // spec
	}
	got := must(wire.AppendRevisionProtobuf(nil, msg, 5))
	want := []byte{1<<3 | 2, 11, 1<<3 | 2, 1, 'n', 6<<3 | 2, 1, '5', 7 << 3, 3, 12<<3 | 2, 1, 0, 2<<3 | 2, 1, 'x'}
	same(t, "message", got, want)
}

// TestPartialProtobuf checks that PartialProtobuf and ObjectMetaProtobuf return exactly the metadata.
func TestPartialProtobuf(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		set := drawSet(rt)
		got := must(wire.PartialProtobuf(must(set.Marshal())))
		want := must((&metav1.PartialObjectMetadata{ObjectMeta: set.ObjectMeta}).Marshal())
		same(rt, "partial", got, want)
		same(rt, "metadata", must(wire.ObjectMetaProtobuf(must(set.Marshal()))), must(set.ObjectMeta.Marshal()))
	})
}

// TestMetadataJSON checks that MetadataJSON returns exactly the metadata.
func TestMetadataJSON(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		set := drawSet(rt)
		same(rt, "metadata", must(wire.MetadataJSON(must(json.Marshal(set)))), must(json.Marshal(set.ObjectMeta)))
	})
}

// TestUnenvelope checks that Unenvelope returns the message and the kind in an envelope.
func TestUnenvelope(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		set := drawSet(rt)
		raw := must(set.Marshal())
		got, apiVersion, kind, ok := wire.Unenvelope(wire.Protobuf(statefulSets).AppendObject(nil, raw))
		if !ok || apiVersion != statefulSets.APIVersion || kind != statefulSets.Kind {
			rt.Errorf("ok %v, apiVersion %q, kind %q", ok, apiVersion, kind)
		}
		same(rt, "raw", got, raw)
	})
}

// TestCutEnvelope checks that CutEnvelope accepts only values that upstream would write.
func TestCutEnvelope(t *testing.T) {
	head := wire.Envelope("v1", "Pod")
	for name, end := range map[string]string{
		"truncated tail": "\x01a\x1a\x00", "more after the tail": "\x01a" + wire.EnvelopeTail + "x", "no length": "", "truncated length": "\x80",
		"length too large": "\x05a" + wire.EnvelopeTail, "length overflows": "\xfc\xff\xff\xff\xff\xff\xff\xff\xff\x01",
	} {
		if msg, ok := wire.CutEnvelope([]byte(string(head)+end), head); ok {
			t.Errorf("%s: got message %q, want none", name, msg)
		}
	}
	value := []byte(string(head) + "\x01a" + wire.EnvelopeTail)
	if msg, ok := wire.CutEnvelope(value, head); !ok || string(msg) != "a" {
		t.Errorf("got message %q, %v, want \"a\", true", msg, ok)
	}
	if msg, ok := wire.CutEnvelope(value[len(head):], head); ok {
		t.Errorf("no head: got message %q, want none", msg)
	}
}

// TestMalformedObjects checks that functions that look for metadata return ErrMalformed for objects whose metadata are
// truncated or preceded by something else, and ErrNoMetadata for objects without any.
func TestMalformedObjects(t *testing.T) {
	rejects := func(text string, want error, json bool) {
		t.Helper()
		data := []byte(text)
		data = data[:len(data):len(data)]
		_, err := wire.PartialProtobuf(data)
		_, errRevision := wire.AppendRevisionProtobuf(nil, data, 7)
		uid := wire.UIDProtobuf(data)
		if json {
			_, err = wire.MetadataJSON(data)
			_, errRevision = wire.AppendRevisionJSON(nil, data, 7)
			uid = append(wire.UIDJSON(data), wire.HeadJSON(data)...)
		}
		if !errors.Is(err, want) || !errors.Is(errRevision, want) || uid != nil {
			t.Errorf("%q: error %v, with a revision %v, UID %q; want %v twice and no UID", text, err, errRevision, uid, want)
		}
	}
	const object = "{ \"a\":\n[1, {\"b\":\"\\\"\"}] ,\t\"n\":-1.5,\r\n\"metadata\" : {\"uid\":\"u\"}"
	for n := range len(object) {
		rejects(object[:n], wire.ErrMalformed, true)
	}
	same(t, "metadata", must(wire.MetadataJSON([]byte(object+"}"))), []byte(`{"uid":"u"}`))
	for _, text := range []string{`["metadata",{}]`, `{1:2,"metadata":{}}`, `{a":2,"metadata":{}}`, `{"a" 1,"metadata":{}}`, `{"a":}`, `{"a":,"metadata":{}}`, `{"a":]}`, "null"} {
		rejects(text, wire.ErrMalformed, true)
	}
	for _, text := range []string{"{}", `{"uid":"u"}`, `{"a":{"metadata":{}}}`, `{"a":1,"b":"metadata"}`} {
		rejects(text, wire.ErrNoMetadata, true)
	}
	message := string(must((&corev1.Pod{ObjectMeta: metav1.ObjectMeta{UID: "u"}}).Marshal()))
	for n := 1; n < strings.Index(message, "u")+1; n++ {
		rejects(message[:n], wire.ErrMalformed, false)
	}
	for _, text := range []string{"\x0b\x0c", "\x00", "\x0a\xff", "\x0a\x01\xff"} {
		_, err := wire.AppendRevisionProtobuf(nil, []byte(text), 7)
		if !errors.Is(err, wire.ErrMalformed) {
			t.Errorf("%q: error %v, want ErrMalformed", text, err)
		}
	}
	rejects("\x12\x01x", wire.ErrNoMetadata, false)
	for _, value := range []string{"", "k8s", "k8s\x00", "k8s\x00\x12", "k8s\x00\x0a\x01\xff\x12\x00", message} {
		if raw, _, _, ok := wire.Unenvelope([]byte(value)); ok {
			t.Errorf("Unenvelope of %q returned %q, want nothing", value, raw)
		}
	}
}

// TestEmptyJSONObjects checks that a head before an empty object is followed by no comma.
func TestEmptyJSONObjects(t *testing.T) {
	for _, c := range []struct {
		name string
		kind wire.Kind
		want string
	}{
		{"typed head", statefulSets, `{"kind":"StatefulSet","apiVersion":"apps/v1"}` + "\n"},
		{"partial item", wire.Kind{Partial: true}, "{}\n"},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := wire.JSON(c.kind)
			got := w.AppendObject(nil, []byte("{}"))
			same(t, "object", got, []byte(c.want))
			size(t, "object", w.ObjectSize([]byte("{}")), got)
		})
	}
}

// TestPrettyAndYAMLAgreeWithUpstream compares indented JSON and YAML with upstream's.
func TestPrettyAndYAMLAgreeWithUpstream(t *testing.T) {
	scheme := runtime.NewScheme()
	pretty := kjson.NewSerializerWithOptions(kjson.DefaultMetaFactory, scheme, scheme, kjson.SerializerOptions{Pretty: true})
	yaml := kjson.NewSerializerWithOptions(kjson.DefaultMetaFactory, scheme, scheme, kjson.SerializerOptions{Yaml: true})
	rapid.Check(t, func(rt *rapid.T) {
		set := drawSet(rt)
		body := wire.JSON(statefulSets).AppendObject(nil, must(json.Marshal(set)))
		var want bytes.Buffer
		if err := pretty.Encode(typed(set), &want); err != nil {
			rt.Fatal(err)
		}
		same(rt, "pretty", indented(rt, body, func(rest int) int { return rest }), want.Bytes())
		want.Reset()
		err := yaml.Encode(typed(set), &want) // fails for some strings
		var got bytes.Buffer
		y := wire.NewYAMLWriter(&got)
		_, _ = y.Write(body)
		if gotErr := y.Close(); fmt.Sprint(err) != fmt.Sprint(gotErr) {
			rt.Fatalf("YAML: error %v, upstream's %v", gotErr, err)
		}
		same(rt, "yaml", got.Bytes(), want.Bytes())
	})
}

type failer interface {
	Helper()
	Errorf(format string, args ...any)
}

func same(t failer, what string, got, want []byte) {
	t.Helper()
	if !bytes.Equal(got, want) {
		t.Errorf("%s:\n got %q\nwant %q", what, got, want)
	}
}

func size(t failer, what string, announced int, got []byte) {
	t.Helper()
	if announced != len(got) {
		t.Errorf("%s: size %d, %d bytes written", what, announced, len(got))
	}
}
