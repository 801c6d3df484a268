package cluster

import (
	"bytes"
	"strconv"

	"google.golang.org/protobuf/encoding/protowire"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Numbers of protobuf fields. All objects begin with their ObjectMeta, all lists with a ListMeta and the items.
const (
	unknownRaw = 2 // of runtime.Unknown

	eventType, eventBody, rawExtension = 1, 2, 1 // of WatchEvent and its RawExtension

	objectMeta, listItems                         = 1, 2
	metaName, metaNamespace, metaUID, metaVersion = 1, 3, 5, 6 // of ObjectMeta
)

// field returns the first bytes field with the number want, nil if there is none.
func field(b []byte, want protowire.Number) []byte {
	value, _ := nextField(b, want)
	return value
}

// nextField returns the first bytes field with the number want, and the bytes after the field.
func nextField(b []byte, want protowire.Number) (value, rest []byte) {
	for len(b) > 0 {
		number, kind, n := protowire.ConsumeField(b)
		if n < 0 {
			return nil, nil
		}
		if number == want && kind == protowire.BytesType {
			_, _, tag := protowire.ConsumeTag(b)
			value, _ := protowire.ConsumeBytes(b[tag:])
			return value, b[n:]
		}
		b = b[n:]
	}
	return nil, nil
}

// meta holds fields of an ObjectMeta. Its slices refer to the encoded object.
type meta struct {
	namespace, name, uid []byte
	version              uint64
}

// object returns the object in a protobuf envelope, nil without an envelope.
func object(body []byte) []byte {
	raw, ok := bytes.CutPrefix(body, []byte("k8s\x00"))
	if !ok {
		return nil
	}
	return field(raw, unknownRaw)
}

// metaOf reads the ObjectMeta of an object without envelope.
func metaOf(object []byte) meta {
	m := field(object, objectMeta)
	version, _ := strconv.ParseUint(string(field(m, metaVersion)), 10, 64) // 0 if missing
	return meta{namespace: field(m, metaNamespace), name: field(m, metaName), uid: field(m, metaUID), version: version}
}

// endsInitial reports whether a bookmark ends the initial events.
func endsInitial(object []byte) bool {
	return bytes.Contains(field(object, objectMeta), []byte(metav1.InitialEventsAnnotationKey))
}
