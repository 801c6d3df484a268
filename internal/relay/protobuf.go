package relay

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"io"
	"iter"

	"google.golang.org/protobuf/encoding/protowire"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/larder-io/larder/internal/registry/wire"
)

// protobufCodec reads application/vnd.kubernetes.protobuf. It follows the fields of lists, events and
// metadata and copies messages as they are, so fields that it does not know survive.
type protobufCodec struct {
	apiVersion, kind string
	namespaced       bool
	writer           wire.Writer
}

func (c *protobufCodec) mediaType() string { return "application/vnd.kubernetes.protobuf" }

func (c *protobufCodec) list(body []byte) (list, error) {
	message, apiVersion, kind, ok := wire.Unenvelope(body)
	switch {
	case !ok:
		return list{}, fmt.Errorf("%w: no envelope", errMalformed)
	case apiVersion != c.apiVersion:
		return list{}, typeMismatch(apiVersion, kind)
	}
	var answer list
	var resourceVersion string
	for f, err := range fieldsOf(message) {
		switch {
		case err != nil:
			return list{}, err
		case f.number == 1: // ListMeta
			if resourceVersion, err = answer.readMeta(f.bytes); err != nil {
				return list{}, err
			}
		case f.number == 2: // an item
			o, err := c.object(f.bytes)
			if err != nil {
				return list{}, err
			}
			answer.objects = append(answer.objects, o)
		}
	}
	var err error
	answer.revision, err = parseRevision(resourceVersion)
	return answer, err
}

// readMeta takes in an encoded ListMeta and returns its resourceVersion.
func (l *list) readMeta(meta []byte) (resourceVersion string, err error) {
	for f, err := range fieldsOf(meta) {
		switch {
		case err != nil:
			return "", err
		case f.number == 2:
			resourceVersion = string(f.bytes)
		case f.number == 3:
			l.token = string(f.bytes)
		case f.number == 4:
			l.remaining = max(int64(f.varint), 0)
		}
	}
	return resourceVersion, nil
}

// object returns the object of a bare message. The value has the envelope in which upstream stores it.
func (c *protobufCodec) object(message []byte) (object, error) {
	meta, err := readObjectMeta(message)
	if err != nil {
		return object{}, err
	}
	o, err := meta.object(c.namespaced)
	o.value = c.writer.AppendObject(make([]byte, 0, c.writer.ObjectSize(message)), message)
	return o, err
}

func readObjectMeta(message []byte) (m objectMeta, err error) {
	meta, err := wire.ObjectMetaProtobuf(message)
	if err != nil {
		return m, fmt.Errorf("%w: %w", errMalformed, err)
	}
	for f, err := range fieldsOf(meta) {
		switch {
		case err != nil:
			return m, err
		case f.number == 1:
			m.Name = string(f.bytes)
		case f.number == 3:
			m.Namespace = string(f.bytes)
		case f.number == 6:
			m.ResourceVersion = string(f.bytes)
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
		if buffer.Cap() > keptBuffer {
			buffer = bytes.Buffer{}
		}
		buffer.Reset()
		if _, err := io.CopyN(&buffer, body, size); err != nil { // grows as the bytes come
			if err == io.EOF {
				err = io.ErrUnexpectedEOF
			}
			return nil, err
		}
		return buffer.Bytes(), nil
	}
}

// keptBuffer is the size up to which the buffer of a frame is used again.
const keptBuffer = 1 << 20

func (c *protobufCodec) event(frame []byte) (event, error) {
	var name string
	var extension, raw []byte
	for f, err := range fieldsOf(frame) {
		switch {
		case err != nil:
			return event{}, err
		case f.number == 1:
			name = string(f.bytes)
		case f.number == 2:
			extension = f.bytes
		}
	}
	for f, err := range fieldsOf(extension) {
		if err != nil {
			return event{}, err
		}
		if f.number == 1 {
			raw = f.bytes
		}
	}
	if name == "ERROR" {
		return event{}, errorEvent(c.status(raw))
	}
	kind, err := eventKind(name)
	if err != nil {
		return event{}, err
	}
	message, apiVersion, of, ok := wire.Unenvelope(raw)
	if !ok || apiVersion != c.apiVersion || of != c.kind {
		return event{}, typeMismatch(apiVersion, of)
	}
	if kind == 0 { // a bookmark
		meta, err := readObjectMeta(message)
		if err != nil {
			return event{}, err
		}
		revision, err := parseRevision(meta.ResourceVersion)
		return event{object: object{revision: revision}}, err
	}
	o, err := c.object(message)
	return event{kind, o}, err
}

func (c *protobufCodec) status(body []byte) (status metav1.Status, err error) {
	message, apiVersion, kind, ok := wire.Unenvelope(body)
	if !ok || apiVersion != "v1" || kind != "Status" {
		return status, typeMismatch(apiVersion, kind)
	}
	if err := status.Unmarshal(message); err != nil {
		return status, fmt.Errorf("%w: %w", errMalformed, err)
	}
	return status, nil
}

// field is one field of a message: the content of a field with a length, or a number.
type field struct {
	number protowire.Number
	bytes  []byte
	varint uint64
}

// fieldsOf returns the fields of a message that have a length or are numbers. The last one comes with an error
// if the message is malformed.
func fieldsOf(message []byte) iter.Seq2[field, error] {
	return func(yield func(field, error) bool) {
		for len(message) > 0 {
			number, kind, n := protowire.ConsumeTag(message)
			f := field{number: number}
			size := n
			if n > 0 {
				switch kind {
				case protowire.BytesType:
					f.bytes, size = protowire.ConsumeBytes(message[n:])
				case protowire.VarintType:
					f.varint, size = protowire.ConsumeVarint(message[n:])
				default:
					f.number = 0 // nothing that is read has this type
					size = protowire.ConsumeFieldValue(number, kind, message[n:])
				}
			}
			if size < 0 {
				yield(field{}, fmt.Errorf("%w: %w", errMalformed, protowire.ParseError(size)))
				return
			}
			if !yield(f, nil) {
				return
			}
			message = message[n+size:]
		}
	}
}
