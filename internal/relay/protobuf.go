package relay

import (
	"bytes"
	"encoding/binary"
	"io"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/larder-io/larder/internal/registry/wire"
	"github.com/larder-io/larder/kv"
)

// protobufCodec reads application/vnd.kubernetes.protobuf. It follows the fields of lists, events and
// metadata and copies messages as they are, so fields that it does not know survive.
type protobufCodec struct{ objects }

func (c *protobufCodec) mediaType() string { return "application/vnd.kubernetes.protobuf" }

func (c *protobufCodec) list(body []byte) (l list, err error) {
	message, apiVersion, kind, ok := wire.Unenvelope(body)
	if !ok || apiVersion != c.APIVersion || kind != c.Kind.Kind+"List" {
		return list{}, typeMismatch(apiVersion, kind)
	}
	var meta metav1.ListMeta
	for f, err := range wire.Contents(message) {
		if err == nil && f.Number == 1 {
			err = meta.Unmarshal(f.Content)
		}
		if err != nil {
			return list{}, malformed(err)
		}
		if f.Number == 2 { // an item
			o, err := c.object(kv.Create, f.Content)
			if err != nil {
				return list{}, err
			}
			l.objects = append(l.objects, o)
		}
	}
	return l, l.setMeta(meta)
}

// object returns the object of a bare message. The value has the envelope in which kube-apiserver stores it.
func (c *protobufCodec) object(kind kv.EventKind, message []byte) (object, error) {
	meta, err := readObjectMeta(message)
	if err != nil {
		return object{}, err
	}
	o, err := meta.object(kind, c.namespaced)
	o.value = c.writer.AppendObject(make([]byte, 0, c.writer.ObjectSize(message)), message)
	return o, err
}

func readObjectMeta(message []byte) (m objectMeta, err error) {
	meta, err := wire.ObjectMetaProtobuf(message)
	if err != nil {
		return m, malformed(err)
	}
	for f, err := range wire.Contents(meta) {
		if err != nil {
			return m, malformed(err)
		}
		switch f.Number {
		case 1:
			m.Name = string(f.Content)
		case 3:
			m.Namespace = string(f.Content)
		case 6:
			m.ResourceVersion = string(f.Content)
		}
	}
	return m, nil
}

// frames reads frames that have a length of four bytes before them.
func (c *protobufCodec) frames(body io.Reader, limit int64) func() ([]byte, error) {
	var buffer bytes.Buffer
	return func() ([]byte, error) {
		var head [4]byte
		if _, err := io.ReadFull(body, head[:]); err != nil {
			return nil, err
		}
		size := int64(binary.BigEndian.Uint32(head[:]))
		if size > limit {
			return nil, errTooLarge
		}
		if buffer.Reset(); buffer.Cap() > keptBuffer {
			buffer = bytes.Buffer{}
		}
		_, err := io.CopyN(&buffer, body, size) // grows as the bytes come
		if err == io.EOF {
			err = io.ErrUnexpectedEOF
		}
		return buffer.Bytes(), err
	}
}

// keptBuffer is the size up to which the buffer of a frame is used again.
const keptBuffer = 1 << 20

func (c *protobufCodec) event(frame []byte) (event, error) {
	var decoded metav1.WatchEvent
	if err := decoded.Unmarshal(frame); err != nil {
		return event{}, malformed(err)
	}
	kind, err := eventKind(decoded.Type, decoded.Object.Raw)
	if err != nil {
		return event{}, err
	}
	message, apiVersion, of, ok := wire.Unenvelope(decoded.Object.Raw)
	if !ok || apiVersion != c.APIVersion || of != c.Kind.Kind {
		return event{}, typeMismatch(apiVersion, of)
	}
	o, err := c.object(kind, message)
	return event{kind, o}, err
}
