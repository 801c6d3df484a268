package wire

import (
	"encoding/binary"
	"fmt"
)

// field is one field of a protobuf message: where its tag starts, where its
// content starts (after the length, for those that have one) and where it ends.
type field struct {
	number, kind      int
	start, body, stop int
}

// nextField parses the field that starts at msg[at].
func nextField(msg []byte, at int) (field, error) {
	f := field{start: at}
	tag, n := binary.Uvarint(msg[at:])
	if n <= 0 || tag>>3 == 0 || tag>>3 > 1<<29-1 {
		return f, fmt.Errorf("%w: bad tag at byte %d", ErrMalformed, at)
	}
	f.number, f.kind, f.body = int(tag>>3), int(tag&7), at+n
	rest := uint64(len(msg) - f.body)
	var size uint64
	switch f.kind {
	case wireVarint:
		_, n := binary.Uvarint(msg[f.body:])
		if n <= 0 {
			return f, fmt.Errorf("%w: bad number at byte %d", ErrMalformed, f.body)
		}
		size = uint64(n)
	case wire64:
		size = 8
	case wire32:
		size = 4
	case wireLen:
		length, n := binary.Uvarint(msg[f.body:])
		if n <= 0 {
			return f, fmt.Errorf("%w: bad length at byte %d", ErrMalformed, f.body)
		}
		f.body += n
		rest -= uint64(n)
		size = length
	default:
		return f, fmt.Errorf("%w: wire type %d at byte %d", ErrMalformed, f.kind, at)
	}
	if size > rest {
		return f, fmt.Errorf("%w: field at byte %d is cut short", ErrMalformed, at)
	}
	f.stop = f.body + int(size)
	return f, nil
}

// metadataField finds field 1 of msg, which is the metadata of every object.
func metadataField(msg []byte) (field, error) {
	for at := 0; at < len(msg); {
		f, err := nextField(msg, at)
		if err != nil {
			return f, err
		}
		if f.number == 1 && f.kind == wireLen {
			return f, nil
		}
		at = f.stop
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
	for at := 0; err == nil && at < len(meta); {
		var f field
		if f, err = nextField(meta, at); err == nil && f.number == numUID && f.kind == wireLen {
			return meta[f.body:f.stop:f.stop]
		}
		at = f.stop
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
	for at := 0; at < len(meta); {
		f, err := nextField(meta, at)
		if err != nil {
			return 0, 0, err
		}
		if f.number == numResourceVersion && f.kind == wireLen {
			return f.start, f.stop, nil
		}
		if f.number > numResourceVersion {
			return at, at, nil
		}
		at = f.stop
	}
	return len(meta), len(meta), nil
}

// Unenvelope returns the bare message, the apiVersion and the kind of a value in
// the k8s\0 envelope, and whether value is one.
func Unenvelope(value []byte) (raw []byte, apiVersion, kind string, ok bool) {
	const magic = "k8s\x00"
	if len(value) < len(magic) || string(value[:len(magic)]) != magic {
		return nil, "", "", false
	}
	msg := value[len(magic):]
	for at := 0; at < len(msg); {
		f, err := nextField(msg, at)
		if err != nil {
			return nil, "", "", false
		}
		content := msg[f.body:f.stop:f.stop]
		switch {
		case f.number == 1 && f.kind == wireLen:
			apiVersion, kind, ok = typeMeta(content)
			if !ok {
				return nil, "", "", false
			}
		case f.number == 2 && f.kind == wireLen:
			raw = content
		}
		at = f.stop
	}
	return raw, apiVersion, kind, raw != nil
}

func typeMeta(msg []byte) (apiVersion, kind string, ok bool) {
	for at := 0; at < len(msg); {
		f, err := nextField(msg, at)
		if err != nil {
			return "", "", false
		}
		switch {
		case f.number == 1 && f.kind == wireLen:
			apiVersion = string(msg[f.body:f.stop])
		case f.number == 2 && f.kind == wireLen:
			kind = string(msg[f.body:f.stop])
		}
		at = f.stop
	}
	return apiVersion, kind, true
}
