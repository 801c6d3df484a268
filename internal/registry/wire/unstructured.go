package wire

import (
	"strconv"

	"github.com/larder-io/larder/internal/registry/jsontext"
)

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
	var buf [256]byte
	n := w.list.len() + size + len(w.AppendListFooter(buf[:0], meta, items))
	return n + max(0, items-1)
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
