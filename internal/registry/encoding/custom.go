package encoding

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"sync"
	"sync/atomic"

	"golang.org/x/sync/singleflight"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/apiserver/pkg/storage/value"

	"github.com/larder-io/larder/cache"
	"github.com/larder-io/larder/internal/registry/jsontext"
	"github.com/larder-io/larder/internal/registry/servedjson"
)

// Custom has the Codecs of one state of a CRD. The embedded Codec decodes stored values in their own version.
// The Codec of a version decodes stored or cached bytes of any version into that version.
//
// Upstream's codecs are expensive to make, so they are made for the first object that is not in served form.
type Custom struct {
	*Codec

	config   CustomConfig
	schemas  func() map[string]*servedjson.Schema // calls config.Schemas once
	versions map[string]*Codec                    // whose Storage is a *lazyCodec
}

// CustomConfig is the configuration of a [Custom].
type CustomConfig struct {
	GroupResource schema.GroupResource

	// Versions is the number of the CRD's versions, served or not. Webhook says that a webhook converts
	// them.
	Versions int
	Webhook  bool

	// Schemas returns the schemas of the versions, by name. Objects of a version without one are always
	// decoded. It may be nil. It is called once, for the first object.
	Schemas func() map[string]*servedjson.Schema

	// Namespaced says that objects have namespaces, Selects that some version has selectable
	// fields.
	Namespaced, Selects bool

	// Make makes upstream's storages of all versions, which call [Custom.Add]. It may be called repeatedly and
	// concurrently. Either all calls fail or none.
	Make func() error

	// Transformer encrypts stored values; nil stores plain text.
	Transformer value.Transformer

	// Schema is the schema of the cached objects.
	Schema *cache.ResourceSchema
}

// NewCustom returns a Custom that has no versions yet.
func NewCustom(config CustomConfig) *Custom {
	c := &Custom{config: config, versions: make(map[string]*Codec)}
	c.schemas = func() map[string]*servedjson.Schema { return nil }
	if config.Schemas != nil {
		c.schemas = sync.OnceValue(config.Schemas)
	}
	c.Codec = c.newCodec(&customCodec{attrs: c.allAttrs, selects: config.Selects, schemas: func() []*servedjson.Schema {
		return slices.Collect(maps.Values(c.schemas()))
	}})
	c.Attrs = c.allAttrs
	c.New = func() runtime.Object { return &unstructured.Unstructured{} }
	c.NewList = func() runtime.Object { return &unstructured.UnstructuredList{} }
	return c
}

func (c *Custom) newCodec(custom *customCodec) *Codec {
	custom.schemas = sync.OnceValue(custom.schemas)
	codec := &Codec{Config: Config{GroupResource: c.config.GroupResource, Schema: c.config.Schema}, encodings: new(int), custom: custom}
	if c.Codec == nil { // the first codec belongs to the whole resource
		codec.Transformer, codec.Encrypted = withTimeouts(c.config.Transformer)
		return codec
	}
	codec.Transformer, codec.Encrypted, codec.encodings = c.Transformer, c.Encrypted, c.encodings
	return codec
}

// Declare adds a version. It fails if the version exists. Versions are declared before the Custom is used.
func (c *Custom) Declare(gvk schema.GroupVersionKind, listKind string) error {
	if c.versions[gvk.Version] != nil {
		return fmt.Errorf("registry: %s exists already", gvk)
	}
	v := c.newCodec(&customCodec{
		head:     append(jsontext.AppendString([]byte(`{"apiVersion":`), gvk.GroupVersion().String()), ','),
		converts: c.config.Webhook,
		attrs:    c.allAttrs,
		selects:  c.config.Selects,
		schemas:  func() []*servedjson.Schema { return []*servedjson.Schema{c.schemas()[gvk.Version]} },
	})
	v.New = func() runtime.Object {
		obj := &unstructured.Unstructured{}
		obj.SetGroupVersionKind(gvk)
		return obj
	}
	v.NewList = func() runtime.Object {
		list := &unstructured.UnstructuredList{}
		list.SetGroupVersionKind(gvk.GroupVersion().WithKind(listKind))
		return list
	}
	l := &lazyCodec{ready: c.config.Make}
	if v.Storage, v.Attrs = l, c.metadataOf; c.config.Selects {
		// Upstream's JSONPath keeps state, and values are decoded in parallel.
		var mu sync.Mutex
		v.Attrs = func(obj runtime.Object) (labels.Set, fields.Set, error) {
			mu.Lock()
			defer mu.Unlock()
			return l.attrsOf(obj)
		}
	}
	c.versions[gvk.Version] = v
	// The codec of any version decodes a value in the value's own version, unless another is
	// requested.
	c.Storage = l
	if v.custom.onlyVersion = c.config.Versions == 1; v.custom.onlyVersion {
		c.New = v.New // the version's codec decodes into no other type
	}
	return nil
}

// Add sets the codec and the AttrFunc of upstream's storage of a declared version, and returns the version's Codec. It
// is called once for each version, during CustomConfig.Make, and fails otherwise.
func (c *Custom) Add(gvk schema.GroupVersionKind, stored runtime.Codec, attrs storage.AttrFunc) (*Codec, error) {
	v := c.versions[gvk.Version]
	if v == nil || v.Storage.(*lazyCodec).codec != nil {
		return nil, fmt.Errorf("registry: unexpected storage of %s", gvk)
	}
	l := v.Storage.(*lazyCodec)
	l.codec, l.attrs = stored, attrs
	return v, nil
}

// metadataOf is the storage.AttrFunc of versions without selectable fields, like upstream's
// (apiextensions-apiserver pkg/registry/customresource/strategy.go).
func (c *Custom) metadataOf(obj runtime.Object) (labels.Set, fields.Set, error) {
	accessor, err := meta.Accessor(obj)
	if err != nil {
		return nil, nil, err
	}
	found := fields.Set{"metadata.name": accessor.GetName()}
	if c.config.Namespaced {
		found["metadata.namespace"] = accessor.GetNamespace()
	}
	return accessor.GetLabels(), found, nil
}

// allAttrs returns the labels of obj and all fields by which some version selects. It looks up the
// versions' paths in the object as it is stored.
func (c *Custom) allAttrs(obj runtime.Object) (labels.Set, fields.Set, error) {
	var all labels.Set
	selectable := make(fields.Set)
	for _, v := range c.versions {
		set, found, err := v.Attrs(obj)
		if err != nil {
			return nil, nil, err
		}
		maps.Copy(selectable, found)
		all = set
	}
	return all, selectable, nil
}

// Version returns the Codec of a version, nil if it was not added.
func (c *Custom) Version(version string) *Codec { return c.versions[version] }

// customCodec is the part of a [Codec] that only custom resources have. Their objects have
// no Go type: the canonical encoding is JSON, in the version that is stored, and is decoded
// by the same code as a stored value.
type customCodec struct {
	// head is the usual beginning of the JSON of an object of the Codec's version. It is nil in the Codec of the whole
	// resource.
	head []byte

	// storedIn is set once upstream's codec has encoded an object in the Codec's version: that is the stored
	// version.
	storedIn atomic.Bool

	// onlyVersion says that the CRD has no other version.
	onlyVersion bool

	// converts says that a webhook converts, which may change labels and fields. The cache has the labels and fields
	// of the stored version.
	converts bool

	// conversions are the running calls to that webhook, and converting is their number.
	conversions singleflight.Group
	converting  atomic.Int64

	// served has the encoders of the Codec's version; nil if it is not served.
	served *Version

	// attrs finds the labels and all fields by which some version selects.
	attrs storage.AttrFunc

	// schemas are the schemas of the versions that need no conversion to the Codec's, or nil. selects says that
	// attrs reads more than the metadata.
	schemas func() []*servedjson.Schema
	selects bool
}

// read returns data, stored or canonical, as a Document if it is in served form, and nil if not.
func (c *customCodec) read(data []byte) *servedjson.Document {
	for _, s := range c.schemas() {
		if d := s.Read(data); d != nil {
			return d
		}
	}
	return nil
}

// attrsOf returns the labels and fields of d.
func (c *customCodec) attrsOf(d *servedjson.Document) (labels.Set, fields.Set, error) {
	if c.selects {
		return c.attrs(&unstructured.Unstructured{Object: d.Content()})
	}
	found := &unstructured.Unstructured{Object: make(map[string]any, 1)}
	found.SetName(d.Name())
	found.SetNamespace(d.Namespace())
	found.SetLabels(d.Labels())
	return c.attrs(found)
}

// decode decodes data, stored or canonical, into an object of the Codec's version, if data needs no
// pruning, defaults or conversion.
func (c *customCodec) decode(data []byte, into runtime.Object) bool {
	u, ok := into.(*unstructured.Unstructured)
	if !ok {
		return false
	}
	d := c.read(data)
	if d != nil {
		u.Object = d.Content()
	}
	return d != nil
}

// stores reports whether data, stored or canonical, has the version of the Codec. It may return false for such data,
// which costs a conversion without an effect.
func (c *customCodec) stores(data []byte) bool {
	return len(c.head) > 0 && bytes.HasPrefix(data, c.head)
}

// lazyCodec is upstream's codec of one version of a CRD, made when it is first used.
type lazyCodec struct {
	ready func() error // sets codec and attrs before it first returns

	codec runtime.Codec
	attrs storage.AttrFunc
}

var _ runtime.Codec = (*lazyCodec)(nil)

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
