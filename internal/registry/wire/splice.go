package wire

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"iter"

	"google.golang.org/protobuf/encoding/protowire"
	"k8s.io/apimachinery/pkg/runtime"
)

// Field is a field of a protobuf message.
type Field struct {
	Number      int
	Kind        protowire.Type
	Start, Stop int    // in the message: from the tag to the end
	Content     []byte // of a field with a length: the last bytes of the field, which are a part of the message
}

// Fields returns the fields of msg in order. The last one comes with an [ErrMalformed] if msg is malformed.
func Fields(msg []byte) iter.Seq2[Field, error] {
	return func(yield func(Field, error) bool) {
		for at := 0; at < len(msg); {
			f, err := nextField(msg, at)
			if !yield(f, err) || err != nil {
				return
			}
			at = f.Stop
		}
	}
}

// Contents returns the fields of msg that have a length, as [Fields] does.
func Contents(msg []byte) iter.Seq2[Field, error] {
	return func(yield func(Field, error) bool) {
		for f, err := range Fields(msg) {
			if (err != nil || f.Kind == protowire.BytesType) && !yield(f, err) {
				return
			}
		}
	}
}

// nextField reads the field that starts at msg[at].
func nextField(msg []byte, at int) (Field, error) {
	number, kind, n := protowire.ConsumeTag(msg[at:])
	if n < 0 || kind == protowire.StartGroupType {
		return Field{}, fmt.Errorf("%w: bad tag at byte %d", ErrMalformed, at)
	}
	f, body := Field{Number: int(number), Kind: kind, Start: at}, at+n
	if kind == protowire.BytesType {
		f.Content, n = protowire.ConsumeBytes(msg[body:])
		f.Content = f.Content[:len(f.Content):len(f.Content)]
	} else {
		n = protowire.ConsumeFieldValue(number, kind, msg[body:])
	}
	if f.Stop = body + n; n < 0 {
		return Field{}, fmt.Errorf("%w: bad field at byte %d", ErrMalformed, at)
	}
	return f, nil
}

// metadataField finds field 1 of msg, which is the metadata of every object.
func metadataField(msg []byte) (Field, error) {
	for f, err := range Contents(msg) {
		if err != nil || f.Number == 1 {
			return f, err
		}
	}
	return Field{}, ErrNoMetadata
}

// PartialProtobuf returns the part of a bare message that is its PartialObjectMetadata: both have ObjectMeta
// in field 1.
func PartialProtobuf(msg []byte) ([]byte, error) {
	f, err := metadataField(msg)
	if err != nil {
		return nil, err
	}
	return msg[f.Start:f.Stop:f.Stop], nil
}

// ObjectMetaProtobuf returns the encoded ObjectMeta of a bare message.
func ObjectMetaProtobuf(msg []byte) ([]byte, error) {
	f, err := metadataField(msg)
	return f.Content, err
}

// UIDProtobuf returns the uid in the top-level metadata of a bare message, nil if it has none.
func UIDProtobuf(msg []byte) []byte {
	f, err := metadataField(msg)
	if err != nil {
		return nil
	}
	for f, err := range Contents(f.Content) {
		if err == nil && f.Number == numUID {
			return f.Content
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
	meta := outer.Content
	from, to, err := revisionSpan(meta)
	if err != nil {
		return dst, err
	}
	n := len(meta) - (to - from) + sizeField(revisionLen(revision))
	dst = append(dst, msg[:outer.Start]...)
	dst = append(dst, tagMetadata)
	dst = binary.AppendUvarint(dst, uint64(n))
	dst = append(dst, meta[:from]...)
	dst = append(dst, tagResourceVersion, byte(revisionLen(revision)))
	dst = appendRevisionString(dst, revision)
	dst = append(dst, meta[to:]...)
	return append(dst, msg[outer.Stop:]...), nil
}

// revisionSpan finds resourceVersion in an encoded ObjectMeta, or the empty span where it must be inserted,
// in the order of field numbers.
func revisionSpan(meta []byte) (from, to int, err error) {
	for f, err := range Fields(meta) {
		switch {
		case err != nil:
			return 0, 0, err
		case f.Number == numResourceVersion:
			return f.Start, f.Stop, nil
		case f.Number > numResourceVersion:
			return f.Start, f.Start, nil
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
			err = meta.Unmarshal(f.Content)
		}
		if err != nil {
			return nil, "", "", false
		}
		if f.Number == 2 {
			raw = f.Content
		}
	}
	return raw, meta.APIVersion, meta.Kind, raw != nil
}
