package wire

import (
	"encoding/json"
	"slices"
	"strconv"

	"github.com/larder-io/larder/internal/registry/jsontext"
)

// jsonWriter writes one kind in application/json.
type jsonWriter struct {
	object head // `{"kind":"Pod","apiVersion":"v1",`; empty when items are typed
	list   head // `{"kind":"PodList","apiVersion":"v1","metadata":`
	null   bool
}

// JSON returns the Writer of a kind in JSON. Items are compact objects as
// encoding/json writes them.
func JSON(k Kind) Writer {
	w := &jsonWriter{list: newHead(append(typeHead(k.APIVersion, k.ListKind), `"metadata":`...)), null: k.Partial}
	if !k.Partial {
		w.object = newHead(typeHead(k.APIVersion, k.Kind))
	}
	return w
}

func typeHead(apiVersion, kind string) []byte {
	head := append([]byte(nil), `{"kind":`...)
	head = jsontext.AppendString(head, kind)
	head = append(head, `,"apiVersion":`...)
	head = jsontext.AppendString(head, apiVersion)
	return append(head, ',')
}

// bodySize returns the length of item with its type added.
func (w *jsonWriter) bodySize(item []byte) int {
	switch {
	case w.object.len() == 0:
		return len(item)
	case isEmptyObject(item):
		return w.object.len()
	default:
		return w.object.len() + len(item) - 1
	}
}

// appendBody appends item with its type added before its first member.
func (w *jsonWriter) appendBody(dst, item []byte) []byte {
	switch object := w.object.shared(); {
	case len(object) == 0:
		return append(dst, item...)
	case isEmptyObject(item):
		dst = append(dst, object[:len(object)-1]...)
		return append(dst, '}')
	default:
		dst = append(dst, object...)
		return append(dst, item[1:]...)
	}
}

func isEmptyObject(item []byte) bool { return len(item) == 2 }

func (w *jsonWriter) ObjectSize(item []byte) int { return w.bodySize(item) + 1 }

func (w *jsonWriter) AppendObject(dst, item []byte) []byte {
	return append(w.appendBody(dst, item), '\n')
}

func (w *jsonWriter) ItemSize(item []byte) int { return len(item) }

const (
	itemsOpen  = `,"items":[`
	itemsNull  = `,"items":null`
	itemsClose = "]}\n"
	nullClose  = "}\n"
)

func (w *jsonWriter) ListSize(meta ListMeta, items, size int) int {
	return listSize(w, meta, items, size) + max(0, items-1)
}

func (w *jsonWriter) AppendListHeader(dst []byte, meta ListMeta, items, _ int) []byte {
	dst = append(dst, w.list.shared()...)
	encoded, _ := json.Marshal(meta.upstreams()) // never fails
	dst = append(dst, encoded...)
	if items == 0 && w.null {
		return append(dst, itemsNull...)
	}
	return append(dst, itemsOpen...)
}

func (w *jsonWriter) AppendItemHeader(dst []byte, i int, _ []byte) []byte {
	if i > 0 {
		dst = append(dst, ',')
	}
	return dst
}

func (w *jsonWriter) AppendListFooter(dst []byte, _ ListMeta, items int) []byte {
	if items == 0 && w.null {
		return append(dst, nullClose...)
	}
	return append(dst, itemsClose...)
}

const (
	frameType   = `{"type":"`
	frameObject = `","object":`
	frameClose  = "}\n"
)

func (w *jsonWriter) AppendFrame(dst []byte, event string, item []byte) []byte {
	dst = slices.Grow(dst, len(frameType)+len(event)+len(frameObject)+w.bodySize(item)+len(frameClose))
	dst = append(dst, frameType...)
	dst = append(dst, event...)
	dst = append(dst, frameObject...)
	dst = w.appendBody(dst, item)
	return append(dst, frameClose...)
}

func (w *jsonWriter) AppendRevision(dst, item []byte, revision int64) ([]byte, error) {
	return AppendRevisionJSON(dst, item, revision)
}

// AppendRevisionJSON appends object with the resourceVersion of its top-level
// metadata replaced.
func AppendRevisionJSON(dst, object []byte, revision int64) ([]byte, error) {
	from, to, err := metadataSpan(object)
	if err != nil {
		return dst, err
	}
	meta := object[:to]
	from, to, err = member(meta, from, "resourceVersion")
	if err != nil {
		return dst, err
	}
	dst = append(dst, object[:from]...)
	dst = append(dst, '"')
	dst = appendRevisionString(dst, revision)
	dst = append(dst, '"')
	return append(dst, object[to:]...), nil
}

// MetadataJSON returns the part of object that is its top-level metadata.
func MetadataJSON(object []byte) ([]byte, error) {
	from, to, err := metadataSpan(object)
	if err != nil {
		return nil, err
	}
	return object[from:to:to], nil
}

// UIDJSON returns a copy of the uid in the top-level metadata of an object, nil if it has none.
func UIDJSON(object []byte) []byte {
	from, _, err := metadataSpan(object)
	if err != nil {
		return nil
	}
	start, stop, _ := member(object, from, "uid") // no text, which is no JSON, if there is none
	var uid string
	if json.Unmarshal(object[start:stop], &uid) != nil {
		return nil
	}
	return []byte(uid)
}

// HeadJSON returns a short text for lookups of the apiVersion and the metadata of object. If the metadata are in the
// first eighth of object, it is the part of object up to their end. Otherwise it is a new object with the apiVersion, if
// that is the first member, and the metadata. HeadJSON returns nil if there are no metadata.
func HeadJSON(object []byte) []byte {
	const first, late = `{"apiVersion":`, 8
	from, to, err := metadataSpan(object)
	if err != nil {
		return nil
	}
	if to <= len(object)/late {
		return object[:to:to]
	}
	head := []byte{'{'}
	if len(object) > len(first) && string(object[:len(first)]) == first {
		stop := skipValue(object, len(first))
		if stop < 0 {
			return nil
		}
		head = append(append(head[:0], object[:stop]...), ',')
	}
	head = append(append(head, `"metadata":`...), object[from:to]...)
	return append(head, '}')
}

func metadataSpan(object []byte) (from, to int, err error) {
	return member(object, skipSpace(object, 0), "metadata")
}

// unstructuredWriter writes objects without a Go type in application/json. Its lists have their members
// in the order of their names.
type unstructuredWriter struct {
	jsonWriter      // its list is `{"apiVersion":"example.com/v1","items":[`
	kind       head // `],"kind":"FooList","metadata":`
}

// Unstructured returns the Writer of a kind without a Go type in JSON. Items have kind and apiVersion.
func Unstructured(k Kind) Writer {
	list := jsontext.AppendString([]byte(`{"apiVersion":`), k.APIVersion)
	kind := jsontext.AppendString([]byte(`],"kind":`), k.ListKind)
	return &unstructuredWriter{
		jsonWriter: jsonWriter{list: newHead(append(list, `,"items":[`...))},
		kind:       newHead(append(kind, `,"metadata":`...)),
	}
}

func (w *unstructuredWriter) ListSize(meta ListMeta, items, size int) int {
	return listSize(w, meta, items, size) + max(0, items-1)
}

func (w *unstructuredWriter) AppendListHeader(dst []byte, _ ListMeta, _, _ int) []byte {
	return append(dst, w.list.shared()...)
}

func (w *unstructuredWriter) AppendListFooter(dst []byte, meta ListMeta, _ int) []byte {
	dst = append(dst, w.kind.shared()...)
	dst = append(dst, `{"continue":`...)
	dst = jsontext.AppendString(dst, meta.Continue)
	if meta.Remaining != nil {
		dst = append(dst, `,"remainingItemCount":`...)
		dst = strconv.AppendInt(dst, *meta.Remaining, 10)
	}
	dst = append(dst, `,"resourceVersion":"`...)
	dst = appendRevisionString(dst, meta.Revision)
	return append(dst, "\"}}\n"...)
}
