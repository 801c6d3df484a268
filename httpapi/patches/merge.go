package patches

import (
	"errors"
	"io"
	"reflect"

	jsonpatch "gopkg.in/evanphx/json-patch.v4"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/endpoints/handlers"
)

// minMerged is how many bytes an object may have, as it is stored, to be patched by upstream as a
// whole: that costs as much then.
const minMerged = 1 << 10

// merging stands in for the serializer of one request whose body is a JSON merge patch.
//
// Upstream encodes the whole stored object, applies the patch to the text, and decodes the
// result. Here that is done, as soon as upstream encodes, with an object that has only those
// fields that the patch names; the others are put back before the result is given its defaults.
// Upstream gets an empty object to apply the patch to, and the result when it decodes. Where
// anything is wrong, be it a field that is not known, upstream gets the whole object: the whole
// result is part of its errors.
//
// All of it happens on one goroutine, again whenever another write came between.
type merging struct {
	runtime.NegotiatedSerializer
	scope *handlers.RequestScope
	body  *copied

	made    bool            // the encoder of objects to be patched; others are of answers
	decoder runtime.Decoder // of patched objects, as strict as was asked for; nil until there is one

	patch  *map[string]any // nil until it is decoded, of nil if the object is not narrowed
	merged runtime.Object  // what is decoded next, nil if upstream is to decode it
}

// EncoderForVersion implements runtime.NegotiatedSerializer.
func (m *merging) EncoderForVersion(encoder runtime.Encoder, target runtime.GroupVersioner) runtime.Encoder {
	whole := m.NegotiatedSerializer.EncoderForVersion(encoder, target)
	if m.made {
		return whole
	}
	m.made = true
	return &mergeEncoder{whole, m}
}

// DecoderToVersion implements runtime.NegotiatedSerializer.
func (m *merging) DecoderToVersion(decoder runtime.Decoder, target runtime.GroupVersioner) runtime.Decoder {
	m.decoder = decoder
	return &mergeDecoder{m.NegotiatedSerializer.DecoderToVersion(decoder, target), m}
}

// mergeEncoder encodes what is to be patched.
type mergeEncoder struct {
	runtime.Encoder
	merging *merging
}

// Encode implements runtime.Encoder.
func (e *mergeEncoder) Encode(obj runtime.Object, w io.Writer) error {
	if e.merging.merged = e.merging.merge(e.Encoder, obj); e.merging.merged == nil {
		return e.Encoder.Encode(obj, w)
	}
	_, err := io.WriteString(w, "{}")
	return err
}

// mergeDecoder decodes what has been patched.
type mergeDecoder struct {
	runtime.Decoder
	merging *merging
}

// Decode implements runtime.Decoder.
func (d *mergeDecoder) Decode(data []byte, defaults *schema.GroupVersionKind, into runtime.Object) (runtime.Object, *schema.GroupVersionKind, error) {
	merged := d.merging.merged
	if merged == nil {
		return d.Decoder.Decode(data, defaults, into)
	}
	d.merging.merged = nil
	if reflect.TypeOf(merged) != reflect.TypeOf(into) {
		return nil, nil, errors.New("patches: a patched object of another type than its storage's")
	}
	reflect.ValueOf(into).Elem().Set(reflect.ValueOf(merged).Elem())
	kind := d.merging.scope.Kind
	return into, &kind, nil
}

// merge returns a stored object with the patch applied to it, nil if upstream is to do that.
func (m *merging) merge(encoder runtime.Encoder, obj runtime.Object) runtime.Object {
	version := m.scope.Kind.GroupVersion()
	if m.decoder == nil || !isStored(obj) {
		return nil
	}
	whole, err := m.scope.UnsafeConvertor.ConvertToVersion(obj, version)
	if err != nil || !isStruct(whole) {
		return nil
	}
	if sized, ok := whole.(interface{ Size() int }); !ok || sized.Size() < minMerged || !m.decode() {
		return nil
	}
	narrowed := reflect.New(reflect.TypeOf(whole).Elem())
	narrowed.Elem().Set(reflect.ValueOf(whole).Elem())
	narrow(narrowed.Elem(), *m.patch)
	before, err := runtime.Encode(encoder, narrowed.Interface().(runtime.Object))
	if err != nil {
		return nil
	}
	after, err := jsonpatch.MergePatch(before, m.body.data.Bytes())
	if err != nil {
		return nil
	}
	patched, kind, err := m.decoder.Decode(after, nil, nil)
	if err != nil || *kind != m.scope.Kind || reflect.TypeOf(patched) != reflect.TypeOf(whole) {
		return nil
	}
	if _, nested := patched.(runtime.NestedObjectDecoder); nested {
		return nil
	}
	restore(reflect.ValueOf(patched).Elem(), reflect.ValueOf(whole.DeepCopyObject()).Elem(), *m.patch)
	m.scope.Defaulter.Default(patched)
	merged, err := m.scope.UnsafeConvertor.ConvertToVersion(patched, m.scope.HubGroupVersion)
	if err != nil || reflect.TypeOf(merged) != reflect.TypeOf(obj) {
		return nil
	}
	return merged
}

// decode decodes the patch and reports whether the object may be narrowed. What has a member
// twice is left to upstream.
func (m *merging) decode() bool {
	if m.patch == nil {
		m.patch = new(map[string]any)
		if data := m.body.data.Bytes(); len(data) <= maxNarrowed && isClean(data) {
			*m.patch = decodePatch(data)
		}
	}
	return *m.patch != nil
}
