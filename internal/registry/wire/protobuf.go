package wire

import (
	"bytes"
	"encoding/binary"
	"slices"

	"google.golang.org/protobuf/encoding/protowire"
	"k8s.io/apimachinery/pkg/runtime"
)

// Tags of the messages that this package writes: field number and wire type.
const (
	wireLen = 2

	tagMetadata        = 1<<3 | wireLen // of any object
	tagFirst           = 1<<3 | wireLen // of a list: metadata, then items
	tagSecond          = 2<<3 | wireLen
	tagResourceVersion = 6<<3 | wireLen // of ObjectMeta
	numResourceVersion = 6
	numUID             = 5
	tagUnknownTypeMeta = 1<<3 | wireLen // of runtime.Unknown
	tagUnknownRaw      = 2<<3 | wireLen
	tagEventType       = 1<<3 | wireLen // of WatchEvent
	tagEventObject     = 2<<3 | wireLen
	tagRawExtension    = 1<<3 | wireLen // of RawExtension
)

// EnvelopeTail ends an envelope, after the message: contentEncoding and contentType of runtime.Unknown, which
// are written although they are empty.
const EnvelopeTail = "\x1a\x00\x22\x00"

// protobufWriter writes one kind in application/vnd.kubernetes.protobuf.
type protobufWriter struct {
	object     head // magic number and type of an object, up to the tag of raw
	list       head // the same of a list
	itemsFirst bool
}

// Protobuf returns the Writer of a kind in protobuf. Items are bare messages.
func Protobuf(k Kind) Writer {
	return &protobufWriter{
		object:     newHead(Envelope(k.APIVersion, k.Kind)),
		list:       newHead(Envelope(k.APIVersion, k.ListKind)),
		itemsFirst: k.ItemsFirst,
	}
}

// Magic begins every envelope.
const Magic = "k8s\x00"

// Envelope returns the beginning of the value of an object of a kind, up to the length of its message:
// apimachinery pkg/runtime/serializer/protobuf.
func Envelope(apiVersion, kind string) []byte {
	meta, _ := (&runtime.TypeMeta{APIVersion: apiVersion, Kind: kind}).Marshal() // never fails
	head := protowire.AppendBytes(append([]byte(Magic), tagUnknownTypeMeta), meta)
	return append(head, tagUnknownRaw)
}

// CutEnvelope returns the message of value if the envelope begins with head and has exactly the bytes that
// upstream writes.
func CutEnvelope(value, head []byte) (msg []byte, ok bool) {
	rest, ok := bytes.CutPrefix(value, head)
	if !ok {
		return nil, false
	}
	msg, n := protowire.ConsumeBytes(rest)
	if n < 0 || string(rest[n:]) != EnvelopeTail {
		return nil, false
	}
	return msg[:len(msg):len(msg)], true
}

func (w *protobufWriter) ObjectSize(item []byte) int {
	return w.object.len() + protowire.SizeBytes(len(item)) + len(EnvelopeTail)
}

func (w *protobufWriter) AppendObject(dst, item []byte) []byte {
	dst = append(dst, w.object.shared()...)
	dst = binary.AppendUvarint(dst, uint64(len(item)))
	dst = append(dst, item...)
	return append(dst, EnvelopeTail...)
}

func (w *protobufWriter) ItemSize(item []byte) int { return sizeField(len(item)) }

func (w *protobufWriter) ListSize(meta ListMeta, items, size int) int {
	return listSize(w, meta, items, size)
}

func (w *protobufWriter) AppendListHeader(dst []byte, meta ListMeta, _, size int) []byte {
	dst = append(dst, w.list.shared()...)
	dst = binary.AppendUvarint(dst, uint64(sizeField(meta.upstreams().Size())+size))
	if w.itemsFirst {
		return dst
	}
	return appendListMeta(append(dst, tagFirst), meta)
}

func (w *protobufWriter) AppendItemHeader(dst []byte, _ int, item []byte) []byte {
	tag := byte(tagSecond)
	if w.itemsFirst {
		tag = tagFirst
	}
	return binary.AppendUvarint(append(dst, tag), uint64(len(item)))
}

func (w *protobufWriter) AppendListFooter(dst []byte, meta ListMeta, _ int) []byte {
	if w.itemsFirst {
		dst = appendListMeta(append(dst, tagSecond), meta)
	}
	return append(dst, EnvelopeTail...)
}

// appendListMeta writes ListMeta and its length before it.
func appendListMeta(dst []byte, meta ListMeta) []byte {
	encoded, _ := meta.upstreams().Marshal() // never fails
	return protowire.AppendBytes(dst, encoded)
}

func (w *protobufWriter) AppendFrame(dst []byte, event string, item []byte) []byte {
	const length = 4 // big-endian, apimachinery pkg/util/framer
	raw := w.ObjectSize(item)
	object := sizeField(raw)
	total := sizeField(len(event)) + sizeField(object)
	dst = slices.Grow(dst, length+total)
	dst = binary.BigEndian.AppendUint32(dst, uint32(total))
	dst = protowire.AppendString(append(dst, tagEventType), event)
	dst = append(dst, tagEventObject)
	dst = binary.AppendUvarint(dst, uint64(object))
	dst = append(dst, tagRawExtension)
	dst = binary.AppendUvarint(dst, uint64(raw))
	return w.AppendObject(dst, item)
}

func (w *protobufWriter) AppendRevision(dst, item []byte, revision int64) ([]byte, error) {
	return AppendRevisionProtobuf(dst, item, revision)
}

// sizeField is the length of a field with a one-byte tag and n bytes of content.
func sizeField(n int) int { return 1 + protowire.SizeBytes(n) }
