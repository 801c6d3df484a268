package wire

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"iter"

	"google.golang.org/protobuf/encoding/protowire"
	"k8s.io/apimachinery/pkg/runtime"
)

// field is one field of a protobuf message: where its tag starts, where its
// content starts (after the length, for those that have one) and where it ends.
type field struct {
	number, kind      int
	start, body, stop int
}

// nextField parses the field that starts at msg[at].
func nextField(msg []byte, at int) (field, error) {
	number, kind, n := protowire.ConsumeTag(msg[at:])
	if n < 0 || kind == protowire.StartGroupType {
		return field{}, fmt.Errorf("%w: bad tag at byte %d", ErrMalformed, at)
	}
	f := field{number: int(number), kind: int(kind), start: at, body: at + n}
	if kind == protowire.BytesType {
		var content []byte
		content, n = protowire.ConsumeBytes(msg[f.body:])
		f.stop = f.body + n
		f.body = f.stop - len(content)
	} else {
		n = protowire.ConsumeFieldValue(number, kind, msg[f.body:])
		f.stop = f.body + n
	}
	if n < 0 {
		return field{}, fmt.Errorf("%w: bad field at byte %d", ErrMalformed, at)
	}
	return f, nil
}

// fieldsOf returns the fields of msg in order. The last one comes with an error if msg is malformed.
func fieldsOf(msg []byte) iter.Seq2[field, error] {
	return func(yield func(field, error) bool) {
		for at := 0; at < len(msg); {
			f, err := nextField(msg, at)
			if !yield(f, err) || err != nil {
				return
			}
			at = f.stop
		}
	}
}

// Content is the content of a field that has a length. It is a part of the message.
type Content struct {
	Number int // of the field
	Bytes  []byte
}

// Contents returns the contents of msg in order. The last one comes with an error if msg is malformed.
func Contents(msg []byte) iter.Seq2[Content, error] {
	return func(yield func(Content, error) bool) {
		for f, err := range fieldsOf(msg) {
			if err == nil && f.kind != wireLen {
				continue
			}
			if !yield(Content{f.number, msg[f.body:f.stop:f.stop]}, err) {
				return
			}
		}
	}
}

// metadataField finds field 1 of msg, which is the metadata of every object.
func metadataField(msg []byte) (field, error) {
	for f, err := range fieldsOf(msg) {
		if err != nil || f.number == 1 && f.kind == wireLen {
			return f, err
		}
	}
	return field{}, ErrNoMetadata
}

// PartialProtobuf returns the part of a bare message that is its PartialObjectMetadata: both have ObjectMeta
// in field 1.
func PartialProtobuf(msg []byte) ([]byte, error) {
	f, err := metadataField(msg)
	if err != nil {
		return nil, err
	}
	return msg[f.start:f.stop:f.stop], nil
}

// ObjectMetaProtobuf returns the encoded ObjectMeta of a bare message.
func ObjectMetaProtobuf(msg []byte) ([]byte, error) {
	f, err := metadataField(msg)
	if err != nil {
		return nil, err
	}
	return msg[f.body:f.stop:f.stop], nil
}

// UIDProtobuf returns the uid in the top-level metadata of a bare message, nil if it has none.
func UIDProtobuf(msg []byte) []byte {
	meta, err := ObjectMetaProtobuf(msg)
	if err != nil {
		return nil
	}
	for f, err := range Contents(meta) {
		if err == nil && f.Number == numUID {
			return f.Bytes
		}
	}
	return nil
}

// MaxRevision is the largest growth in bytes of a message or an object when its resourceVersion is set.
const MaxRevision = 24

// AppendRevisionProtobuf appends msg with the resourceVersion of its top-level metadata set. It changes only
// field 6 of field 1 of the message itself, and the length around it: pod and volume claim templates have an
// ObjectMeta, too.
func AppendRevisionProtobuf(dst, msg []byte, revision int64) ([]byte, error) {
	outer, err := metadataField(msg)
	if err != nil {
		return dst, err
	}
	meta := msg[outer.body:outer.stop]
	from, to, err := revisionSpan(meta)
	if err != nil {
		return dst, err
	}
	n := len(meta) - (to - from) + sizeField(revisionLen(revision))
	dst = append(dst, msg[:outer.start]...)
	dst = append(dst, tagMetadata)
	dst = binary.AppendUvarint(dst, uint64(n))
	dst = append(dst, meta[:from]...)
	dst = append(dst, tagResourceVersion, byte(revisionLen(revision)))
	dst = appendRevisionString(dst, revision)
	dst = append(dst, meta[to:]...)
	return append(dst, msg[outer.stop:]...), nil
}

// revisionSpan finds resourceVersion in an encoded ObjectMeta, or the empty span where it must be inserted,
// in the order of field numbers.
func revisionSpan(meta []byte) (from, to int, err error) {
	for f, err := range fieldsOf(meta) {
		switch {
		case err != nil:
			return 0, 0, err
		case f.number == numResourceVersion && f.kind == wireLen:
			return f.start, f.stop, nil
		case f.number > numResourceVersion:
			return f.start, f.start, nil
		}
	}
	return len(meta), len(meta), nil
}

// Unenvelope returns the bare message, the apiVersion and the kind of a value in
// the k8s\0 envelope, and whether value is one.
func Unenvelope(value []byte) (raw []byte, apiVersion, kind string, ok bool) {
	msg, ok := bytes.CutPrefix(value, []byte(Magic))
	if !ok {
		return nil, "", "", false
	}
	var meta runtime.TypeMeta
	for f, err := range Contents(msg) {
		if err == nil && f.Number == 1 {
			err = meta.Unmarshal(f.Bytes)
		}
		if err != nil {
			return nil, "", "", false
		}
		if f.Number == 2 {
			raw = f.Bytes
		}
	}
	return raw, meta.APIVersion, meta.Kind, raw != nil
}
