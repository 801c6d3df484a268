package encoding

import (
	"errors"
	"io"

	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/storage"
)

// lazyCodec is upstream's codec of one version of a CRD, made when it is first used.
type lazyCodec struct {
	ready func() error // sets codec and attrs before it first returns

	codec runtime.Codec
	attrs storage.AttrFunc
}

var _ runtime.Codec = (*lazyCodec)(nil)

// made returns the codec.
func (l *lazyCodec) made() (runtime.Codec, error) {
	if err := l.ready(); err != nil {
		return nil, err
	}
	if l.codec == nil {
		return nil, errors.New("registry: upstream has not created the storage of a version")
	}
	return l.codec, nil
}

// Decode implements runtime.Decoder.
func (l *lazyCodec) Decode(data []byte, defaults *schema.GroupVersionKind, into runtime.Object) (runtime.Object, *schema.GroupVersionKind, error) {
	c, err := l.made()
	if err != nil {
		return nil, nil, err
	}
	return c.Decode(data, defaults, into)
}

// Encode implements runtime.Encoder.
func (l *lazyCodec) Encode(obj runtime.Object, w io.Writer) error {
	c, err := l.made()
	if err != nil {
		return err
	}
	return c.Encode(obj, w)
}

// Identifier implements runtime.Encoder. Nothing is cached under it.
func (l *lazyCodec) Identifier() runtime.Identifier { return "larder-lazy" }

// attrsOf finds the labels and the selectable fields of an object.
func (l *lazyCodec) attrsOf(obj runtime.Object) (labels.Set, fields.Set, error) {
	if _, err := l.made(); err != nil {
		return nil, nil, err
	}
	return l.attrs(obj)
}
