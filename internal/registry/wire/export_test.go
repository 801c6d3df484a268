package wire

import (
	"fmt"
	"io"
	"strconv"
)

// AppendList appends a whole list of items.
func AppendList(dst []byte, w Writer, meta ListMeta, items [][]byte) []byte {
	size := 0
	for _, item := range items {
		size += w.ItemSize(item)
	}
	dst = w.AppendListHeader(dst, meta, len(items), size)
	for i, item := range items {
		dst = w.AppendItemHeader(dst, i, item)
		dst = append(dst, item...)
	}
	return w.AppendListFooter(dst, meta, len(items))
}

// YAMLWriterOf is NewYAMLWriter with pieces of another size.
func YAMLWriterOf(w io.Writer, size int) io.WriteCloser { return &yamlWriter{to: w, size: size} }

// Convertible is convertible.
func Convertible(data []byte) bool { return convertible(data) }

// RevisionProtobuf returns the resourceVersion in the metadata of a bare message, 0 if it has none.
func RevisionProtobuf(msg []byte) (int64, error) {
	meta, err := ObjectMetaProtobuf(msg)
	if err != nil {
		return 0, err
	}
	for f, err := range Contents(meta) {
		if err != nil {
			return 0, err
		}
		if f.Number != numResourceVersion || len(f.Content) == 0 {
			continue
		}
		revision, err := strconv.ParseInt(string(f.Content), 10, 64)
		if err != nil {
			return 0, fmt.Errorf("%w: resourceVersion: %w", ErrMalformed, err)
		}
		return revision, nil
	}
	return 0, nil
}
