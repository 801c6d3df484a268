package relay

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"runtime"
	"strconv"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/larder-io/larder/internal/registry/wire"
)

func codecs() map[string]codec {
	config := StoreConfig{Resource: schema.GroupVersionResource{Version: "v1", Resource: "configmaps"}, Kind: "ConfigMap", Namespaced: true}
	isProtobuf := config
	isProtobuf.Protobuf = true
	return map[string]codec{"json": newCodec(config), "protobuf": newCodec(isProtobuf)}
}

// TestJSONItemsKeepTheirBytes lists items with and without their type, and with members in any order.
func TestJSONItemsKeepTheirBytes(t *testing.T) {
	const meta = `"metadata":{"labels":{"name":"no"},"name":"x","namespace":"a","resourceVersion":"7"}`
	const typed = `"kind":"ConfigMap","apiVersion":"v1"`
	for item, want := range map[string]string{
		`{` + meta + `}`:               `{` + typed + `,` + meta + `}`,
		`{` + typed + `,` + meta + `}`: `{` + typed + `,` + meta + `}`,
		`{"apiVersion":"v1","Kind":"no","data":{"a":1e400},"kind":"ConfigMap","Metadata":3,` + meta + `}`: `{"apiVersion":"v1","Kind":"no","data":{"a":1e400},"kind":"ConfigMap","Metadata":3,` + meta + `}`,
		`{"data": {"a" : "\u0041\\" } , ` + meta + `}`:                                                    `{` + typed + `,"data": {"a" : "\u0041\\" } , ` + meta + `}`,
		`{"kind":"Secret","apiVersion":"v1",` + meta + `}`:                                                "",
		`{"kind":"ConfigMap",` + meta + `}`:                                                               "",
		`{"metadata":{"name":"x","namespace":"a"}}`:                                                       "",
		`{"metadata":null}`: "",
		`null`:              "",
		`7`:                 "",
	} {
		l, err := codecs()["json"].list([]byte(`{"kind":"ConfigMapList","items":[` + item + `],"metadata":{"resourceVersion":"9"}}`))
		switch {
		case want == "" && err == nil:
			t.Errorf("%s is taken", item)
		case want != "" && (err != nil || string(l.objects[0].value) != want || l.objects[0].revision != 7 || l.objects[0].key != "a/x"):
			t.Errorf("%s gives %+v, %v", item, l, err)
		}
	}
}

// TestUnknownFieldsSurvive lists a message with fields that no type has.
func TestUnknownFieldsSurvive(t *testing.T) {
	o := corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "x", Namespace: "a", ResourceVersion: "7"}}
	message, err := o.Marshal()
	if err != nil {
		t.Fatal(err)
	}
	message = append(message, 0xfa, 0x7f, 3, 1, 2, 3, 0x80, 0x7e, 0x85, 1, 0xf5, 0x7f, 1, 2, 3, 4) // fields 2047, 2016 and 2046
	w := wire.Protobuf(wire.Kind{APIVersion: "v1", Kind: "ConfigMap", ListKind: "ConfigMapList"})
	body := w.AppendListHeader(nil, wire.ListMeta{Revision: 9}, 1, w.ItemSize(message))
	body = w.AppendListFooter(append(w.AppendItemHeader(body, 0, message), message...), wire.ListMeta{}, 1)
	l, err := codecs()["protobuf"].list(body)
	if err != nil {
		t.Fatal(err)
	}
	got, ok := wire.CutEnvelope(l.objects[0].value, wire.Envelope("v1", "ConfigMap"))
	if !ok || !bytes.Equal(got, message) || l.objects[0].key != "a/x" || l.objects[0].revision != 7 || l.revision != 9 {
		t.Errorf("got %q, %+v", got, l)
	}
}

// TestListsOfOtherKinds checks protobuf lists, whose items have no kind.
func TestListsOfOtherKinds(t *testing.T) {
	for listKind, ok := range map[string]bool{"ConfigMapList": true, "SecretList": false, "ConfigMap": false, "": false} {
		w := wire.Protobuf(wire.Kind{APIVersion: "v1", Kind: "ConfigMap", ListKind: listKind})
		meta := wire.ListMeta{Revision: 9}
		if _, err := codecs()["protobuf"].list(w.AppendListFooter(w.AppendListHeader(nil, meta, 0, 0), meta, 0)); (err == nil) != ok {
			t.Errorf("list kind %q: error %v, want success: %t", listKind, err, ok)
		}
	}
}

func TestFramesAreLimited(t *testing.T) {
	head := binary.BigEndian.AppendUint32(nil, 1001)
	if _, err := codecs()["protobuf"].frames(bytes.NewReader(append(head, make([]byte, 2000)...)), 1000)(); !errors.Is(err, errTooLarge) {
		t.Error(err)
	}
	if _, err := codecs()["json"].frames(endless{}, 1000)(); !errors.Is(err, errTooLarge) {
		t.Error(err)
	}
	if _, err := readAll(endless{}, 1000); !errors.Is(err, errTooLarge) {
		t.Error(err)
	}
}

// TestDecodingIsLimited checks that a Status is small, and that decoding small items does not need much more memory than
// the page.
func TestDecodingIsLimited(t *testing.T) {
	o := corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "x", Namespace: "a", ResourceVersion: "7"}}
	for name, c := range codecs() {
		kind := wire.Kind{APIVersion: "v1", Kind: "ConfigMap", ListKind: "ConfigMapList"}
		w, marshal := wire.JSON(kind), func() ([]byte, error) { return json.Marshal(&o) }
		if name == "protobuf" {
			w, marshal = wire.Protobuf(kind), o.Marshal
		}
		item, err := marshal()
		if err != nil {
			t.Fatal(err)
		}
		meta := wire.ListMeta{Revision: 9}
		body := w.AppendListHeader(nil, meta, 3, 3*w.ItemSize(item))
		for i := range 3 {
			body = append(w.AppendItemHeader(body, i, item), item...)
		}
		body = w.AppendListFooter(body, meta, 3)
		if l, err := c.list(body); err != nil || len(l.objects) != 3 {
			t.Errorf("%s: %d objects, %v", name, len(l.objects), err)
		}
		if _, err := decodeStatus(make([]byte, maxStatus+1)); !errors.Is(err, errTooLarge) {
			t.Errorf("%s: error %v, want %v", name, err, errTooLarge)
		}
	}
	body := []byte(`{"metadata":{"resourceVersion":"1"},"items":[0` + strings.Repeat(",0", 1<<20) + `]}`)
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	_, err := codecs()["json"].list(body)
	runtime.ReadMemStats(&after)
	if used := int(after.TotalAlloc - before.TotalAlloc); err == nil || used > 4*len(body) {
		t.Errorf("%d bytes for a page of %d, %v", used, len(body), err)
	}
	for _, items := range []string{`{}`, `7`, `"["`} {
		if _, err := codecs()["json"].list([]byte(`{"metadata":{"resourceVersion":"1"},"items":` + items + `}`)); err == nil {
			t.Errorf("items %s are a list", items)
		}
	}
}

// endless is a JSON number without an end.
type endless struct{}

// Read implements io.Reader.
func (endless) Read(p []byte) (int, error) {
	for i := range p {
		p[i] = '1'
	}
	return len(p), nil
}

func seeds(f *testing.F) {
	o := corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "x", Namespace: "a", ResourceVersion: "7"}, Data: map[string]string{"a": "b"}}
	message, err := o.Marshal()
	if err != nil {
		f.Fatal(err)
	}
	text, err := json.Marshal(o)
	if err != nil {
		f.Fatal(err)
	}
	kind := wire.Kind{APIVersion: "v1", Kind: "ConfigMap", ListKind: "ConfigMapList"}
	for _, c := range []struct {
		w    wire.Writer
		item []byte
	}{{wire.Protobuf(kind), message}, {wire.JSON(kind), text}} {
		remaining := int64(3)
		meta := wire.ListMeta{Revision: 9, Continue: "next", Remaining: &remaining}
		body := c.w.AppendListHeader(nil, meta, 2, 2*c.w.ItemSize(c.item))
		body = append(c.w.AppendItemHeader(body, 0, c.item), c.item...)
		body = append(c.w.AppendItemHeader(body, 1, c.item), c.item...)
		f.Add(c.w.AppendListFooter(body, meta, 2))
		f.Add(c.w.AppendFrame(c.w.AppendFrame(nil, "ADDED", c.item), "BOOKMARK", c.item))
	}
}

// checkObject checks the properties of every object, whatever the input.
func checkObject(t *testing.T, name string, o object) {
	t.Helper()
	if o.revision <= 0 || bytes.Count([]byte(o.key), []byte("/")) != 1 || len(o.value) == 0 {
		t.Fatalf("object %+v", o)
	}
	var got corev1.ConfigMap
	if name == "protobuf" {
		message, ok := wire.CutEnvelope(o.value, wire.Envelope("v1", "ConfigMap"))
		if !ok {
			t.Fatalf("value %q has another envelope", o.value)
		}
		if got.Unmarshal(message) != nil || bytes.Count(message, []byte{10}) > 1 {
			return // no ConfigMap, or maybe one with metadata in two parts
		}
	} else if !json.Valid(o.value) || json.Unmarshal(o.value, &got) != nil || bytes.Count(bytes.ToLower(o.value), []byte(`"metadata"`)) > 1 ||
		bytes.Count(bytes.ToLower(o.value), []byte(`name`)) > 2 || bytes.Count(bytes.ToLower(o.value), []byte(`resourceversion`)) > 1 || bytes.Contains(o.value, []byte(`\u`)) {
		if !json.Valid(o.value) {
			t.Fatalf("value %q is no JSON", o.value)
		}
		return // encoding/json reads names in any spelling
	}
	if key := got.Namespace + "/" + got.Name; key != o.key || got.ResourceVersion != strconv.FormatInt(o.revision, 10) {
		t.Fatalf("object %s of %d is %s of %s", o.key, o.revision, key, got.ResourceVersion)
	}
}

func FuzzList(f *testing.F) {
	seeds(f)
	f.Fuzz(func(t *testing.T, body []byte) {
		for name, c := range codecs() {
			before := bytes.Clone(body)
			l, err := c.list(body)
			if err != nil {
				continue
			}
			values := make([][]byte, len(l.objects))
			for i, o := range l.objects {
				checkObject(t, name, o)
				values[i] = bytes.Clone(o.value)
			}
			for i := range body { // the values must not share its memory
				body[i] ^= 0xff
			}
			for i, o := range l.objects {
				if !bytes.Equal(o.value, values[i]) {
					t.Fatal("a value shares memory with the body")
				}
			}
			copy(body, before)
		}
	})
}

func FuzzFrames(f *testing.F) {
	seeds(f)
	f.Fuzz(func(t *testing.T, body []byte) {
		for name, c := range codecs() {
			frame := c.frames(bytes.NewReader(body), 1<<20)
			for read := 0; ; {
				raw, err := frame()
				if err != nil {
					break
				}
				if read += len(raw); read > len(body) {
					t.Fatalf("%d bytes of %d", read, len(body))
				}
				e, err := c.event(raw)
				switch {
				case err != nil:
				case e.kind == 0 && e.revision <= 0:
					t.Fatalf("bookmark %+v", e)
				case e.kind != 0:
					checkObject(t, name, e.object)
				}
			}
		}
	})
}
