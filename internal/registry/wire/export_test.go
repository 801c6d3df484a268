package wire

import (
	"fmt"
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

// YAMLInPieces is YAML with pieces of another size.
var YAMLInPieces = yamlInPieces

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
