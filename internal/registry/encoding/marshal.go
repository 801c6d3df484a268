package encoding

import (
	"encoding/json"
	"errors"
	"fmt"

	"k8s.io/apimachinery/pkg/runtime"
)

// marshaler and unmarshaler have the methods of generated protobuf types.
type marshaler interface{ Marshal() ([]byte, error) }

type sizedMarshaler interface {
	Size() int
	MarshalToSizedBuffer([]byte) (int, error)
}

type unmarshaler interface {
	Reset()
	Unmarshal([]byte) error
}

// errNotProtobuf says that a kind has no protobuf encoding.
var errNotProtobuf = errors.New("registry: kind has no protobuf form")

// marshalProtobuf writes the bare message of obj.
func marshalProtobuf(obj runtime.Object) ([]byte, error) {
	m, ok := obj.(marshaler)
	if !ok {
		return nil, fmt.Errorf("%w: %T", errNotProtobuf, obj)
	}
	return m.Marshal()
}

// marshalJSON writes obj as encoding/json does.
func marshalJSON(obj any) ([]byte, error) {
	data, err := json.Marshal(obj)
	if err != nil {
		return nil, fmt.Errorf("registry: %w", err)
	}
	return data, nil
}
