package wire

import (
	"encoding/binary"
	"math/bits"
)

// Tags of the messages that this package writes: field number and wire type.
const (
	wireVarint = 0
	wire64     = 1
	wireLen    = 2
	wire32     = 5

	tagMetadata        = 1<<3 | wireLen // of any object
	tagFirst           = 1<<3 | wireLen // of a list: metadata, then items
	tagSecond          = 2<<3 | wireLen
	tagResourceVersion = 6<<3 | wireLen // of ObjectMeta
	numResourceVersion = 6
	numUID             = 5
	tagListSelfLink    = 1<<3 | wireLen // of ListMeta
	tagListRevision    = 2<<3 | wireLen
	tagListContinue    = 3<<3 | wireLen
	tagListRemaining   = 4<<3 | wireVarint
	tagListShard       = 5<<3 | wireLen
	tagShardSelector   = 1<<3 | wireLen // of ShardInfo
	tagUnknownTypeMeta = 1<<3 | wireLen // of runtime.Unknown
	tagUnknownRaw      = 2<<3 | wireLen
	tagTypeAPIVersion  = 1<<3 | wireLen // of runtime.TypeMeta
	tagTypeKind        = 2<<3 | wireLen
	tagEventType       = 1<<3 | wireLen // of WatchEvent
	tagEventObject     = 2<<3 | wireLen
	tagRawExtension    = 1<<3 | wireLen // of RawExtension
)

// envelopeTail is contentEncoding and contentType of runtime.Unknown, which are
// written although they are empty.
const envelopeTail = "\x1a\x00\x22\x00"

// protobufWriter writes one kind in application/vnd.kubernetes.protobuf.
type protobufWriter struct {
	object     head // magic number and type of an object, up to the tag of raw
	list       head // the same of a list
	itemsFirst bool
}

// Protobuf returns the Writer of a kind in protobuf. Items are bare messages.
func Protobuf(k Kind) Writer {
	return &protobufWriter{
		object:     newHead(envelope(k.APIVersion, k.Kind)),
		list:       newHead(envelope(k.APIVersion, k.ListKind)),
		itemsFirst: k.ItemsFirst,
	}
}

// envelope builds the head of apimachinery pkg/runtime/serializer/protobuf.
func envelope(apiVersion, kind string) []byte {
	var meta []byte
	meta = appendString(meta, tagTypeAPIVersion, apiVersion)
	meta = appendString(meta, tagTypeKind, kind)
	head := append([]byte("k8s\x00"), tagUnknownTypeMeta)
	head = binary.AppendUvarint(head, uint64(len(meta)))
	head = append(head, meta...)
	return append(head, tagUnknownRaw)
}

func envelopeSize(head *head, raw int) int {
	return head.len() + sizeVarint(raw) + raw + len(envelopeTail)
}

func (w *protobufWriter) ObjectSize(item []byte) int { return envelopeSize(&w.object, len(item)) }

func (w *protobufWriter) AppendObject(dst, item []byte) []byte {
	dst = append(dst, w.object.shared()...)
	dst = binary.AppendUvarint(dst, uint64(len(item)))
	dst = append(dst, item...)
	return append(dst, envelopeTail...)
}

func (w *protobufWriter) ItemSize(item []byte) int { return sizeField(len(item)) }

func (w *protobufWriter) ListSize(meta ListMeta, _, size int) int {
	return envelopeSize(&w.list, sizeField(listMetaSize(meta))+size)
}

func (w *protobufWriter) AppendListHeader(dst []byte, meta ListMeta, _, size int) []byte {
	dst = append(dst, w.list.shared()...)
	dst = binary.AppendUvarint(dst, uint64(sizeField(listMetaSize(meta))+size))
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
	return append(dst, envelopeTail...)
}

// listMetaSize is the length of an encoded ListMeta.
func listMetaSize(meta ListMeta) int {
	n := sizeField(0) + sizeField(revisionLen(meta.Revision)) + sizeField(len(meta.Continue))
	if meta.Remaining != nil {
		n += 1 + sizeVarint64(uint64(*meta.Remaining))
	}
	if meta.Shard != "" {
		n += sizeField(sizeField(len(meta.Shard)))
	}
	return n
}

// appendListMeta writes ListMeta and its length before it as gogo does: empty
// strings are written.
func appendListMeta(dst []byte, meta ListMeta) []byte {
	dst = binary.AppendUvarint(dst, uint64(listMetaSize(meta)))
	dst = append(dst, tagListSelfLink, 0)
	dst = append(dst, tagListRevision, byte(revisionLen(meta.Revision)))
	dst = appendRevisionString(dst, meta.Revision)
	dst = appendString(dst, tagListContinue, meta.Continue)
	if meta.Remaining != nil {
		dst = append(dst, tagListRemaining)
		dst = binary.AppendUvarint(dst, uint64(*meta.Remaining))
	}
	if meta.Shard != "" {
		dst = binary.AppendUvarint(append(dst, tagListShard), uint64(sizeField(len(meta.Shard))))
		dst = appendString(dst, tagShardSelector, meta.Shard)
	}
	return dst
}

// frameSizes returns the lengths of an event, of its object field and of the
// enveloped object in it.
func (w *protobufWriter) frameSizes(event string, item []byte) (total, object, raw int) {
	raw = w.ObjectSize(item)
	object = sizeField(raw)
	return sizeField(len(event)) + sizeField(object), object, raw
}

const framePrefix = 4 // big-endian length, apimachinery pkg/util/framer

func (w *protobufWriter) FrameSize(event string, item []byte) int {
	total, _, _ := w.frameSizes(event, item)
	return framePrefix + total
}

func (w *protobufWriter) AppendFrame(dst []byte, event string, item []byte) []byte {
	total, object, raw := w.frameSizes(event, item)
	dst = binary.BigEndian.AppendUint32(dst, uint32(total))
	dst = appendString(dst, tagEventType, event)
	dst = append(dst, tagEventObject)
	dst = binary.AppendUvarint(dst, uint64(object))
	dst = append(dst, tagRawExtension)
	dst = binary.AppendUvarint(dst, uint64(raw))
	return w.AppendObject(dst, item)
}

func (w *protobufWriter) AppendRevision(dst, item []byte, revision int64) ([]byte, error) {
	return AppendRevisionProtobuf(dst, item, revision)
}

func appendString(dst []byte, tag byte, s string) []byte {
	dst = append(dst, tag)
	dst = binary.AppendUvarint(dst, uint64(len(s)))
	return append(dst, s...)
}

func sizeVarint(n int) int { return sizeVarint64(uint64(n)) }

func sizeVarint64(n uint64) int { return (bits.Len64(n|1) + 6) / 7 }

// sizeField is the length of a field with a one-byte tag and n bytes of content.
func sizeField(n int) int { return 1 + sizeVarint(n) + n }
