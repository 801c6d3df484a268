package wire

import "strconv"

// unstructuredWriter writes objects whose type the program does not know, in
// application/json.
type unstructuredWriter struct {
	list head // `{"apiVersion":"example.com/v1","items":[`
	kind head // `],"kind":"FooList","metadata":`
}

// Unstructured returns the Writer of a kind without a Go type in JSON. Items have kind and
// apiVersion, and the members of every object are in the order of their names.
func Unstructured(k Kind) Writer {
	list := appendJSONString([]byte(`{"apiVersion":`), k.APIVersion)
	kind := appendJSONString([]byte(`],"kind":`), k.ListKind)
	return &unstructuredWriter{
		list: newHead(append(list, `,"items":[`...)),
		kind: newHead(append(kind, `,"metadata":`...)),
	}
}

func (w *unstructuredWriter) ObjectSize(item []byte) int { return len(item) + 1 }

func (w *unstructuredWriter) AppendObject(dst, item []byte) []byte {
	return append(append(dst, item...), '\n')
}

func (w *unstructuredWriter) ItemSize(item []byte) int { return len(item) }

func (w *unstructuredWriter) ListSize(meta ListMeta, items, size int) int {
	var buf [256]byte
	n := w.list.len() + size + len(w.AppendListFooter(buf[:0], meta, items))
	return n + max(0, items-1)
}

func (w *unstructuredWriter) AppendListHeader(dst []byte, _ ListMeta, _, _ int) []byte {
	return append(dst, w.list.shared()...)
}

func (w *unstructuredWriter) AppendItemHeader(dst []byte, i int, _ []byte) []byte {
	if i > 0 {
		dst = append(dst, ',')
	}
	return dst
}

func (w *unstructuredWriter) AppendListFooter(dst []byte, meta ListMeta, _ int) []byte {
	dst = append(dst, w.kind.shared()...)
	dst = append(dst, `{"continue":`...)
	dst = appendJSONString(dst, meta.Continue)
	if meta.Remaining != nil {
		dst = append(dst, `,"remainingItemCount":`...)
		dst = strconv.AppendInt(dst, *meta.Remaining, 10)
	}
	dst = append(dst, `,"resourceVersion":"`...)
	dst = appendRevisionString(dst, meta.Revision)
	return append(dst, "\"}}\n"...)
}

func (w *unstructuredWriter) FrameSize(event string, item []byte) int {
	return len(frameType) + len(event) + len(frameObject) + len(item) + len(frameClose)
}

func (w *unstructuredWriter) AppendFrame(dst []byte, event string, item []byte) []byte {
	dst = append(dst, frameType...)
	dst = append(dst, event...)
	dst = append(dst, frameObject...)
	dst = append(dst, item...)
	return append(dst, frameClose...)
}

func (w *unstructuredWriter) AppendRevision(dst, item []byte, revision int64) ([]byte, error) {
	return AppendRevisionJSON(dst, item, revision)
}
