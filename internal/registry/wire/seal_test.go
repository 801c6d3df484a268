//go:build invariants

package wire

import (
	"fmt"
	"strings"
	"testing"
)

// TestWritesToHeadsAreCaught checks that a write to a head is detected when a response is built with it.
func TestWritesToHeadsAreCaught(t *testing.T) {
	kind := Kind{APIVersion: "v1", Kind: "Pod", ListKind: "PodList"}
	item := []byte(`{"metadata":{"name":"a"}}`)
	object := func(w Writer) { w.AppendObject(nil, item) }
	list := func(w Writer) { AppendList(nil, w, ListMeta{Revision: 1}, [][]byte{item}) }
	frame := func(w Writer) { w.AppendFrame(nil, "ADDED", item) }
	heads := func(w Writer) (object, list *head) {
		switch w := w.(type) {
		case *jsonWriter:
			return &w.object, &w.list
		case *protobufWriter:
			return &w.object, &w.list
		case *unstructuredWriter:
			return &w.kind, &w.list
		}
		return nil, nil
	}
	for name, newWriter := range map[string]func(Kind) Writer{"JSON": JSON, "protobuf": Protobuf, "unstructured": Unstructured} {
		uses := map[string]func(Writer){"list": list}
		if name == "unstructured" {
			uses["object"] = list // a list has the kind after its items
		} else {
			uses["object"], uses["object of a frame"] = object, frame
		}
		for which, use := range uses {
			for _, writes := range []bool{false, true} {
				w := newWriter(kind)
				ofObject, ofList := heads(w)
				written := ofObject
				if which == "list" {
					written = ofList
				}
				if writes {
					written.shared()[0]++
				}
				text := panics(func() { use(w) })
				if writes != strings.HasPrefix(text, "invariant violated: wire: the head of an object or a list") {
					t.Errorf("%s, head of %s, changed: %v: panic %q", name, which, writes, text)
				}
			}
		}
	}
}

// panics returns the text of f's panic, or "".
func panics(f func()) (text string) {
	defer func() {
		if x := recover(); x != nil {
			text = fmt.Sprint(x)
		}
	}()
	f()
	return ""
}
