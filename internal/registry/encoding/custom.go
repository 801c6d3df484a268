package encoding

import (
	"fmt"
	"sync"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/apiserver/pkg/storage/value"

	"github.com/larder-io/larder/cache"
	"github.com/larder-io/larder/internal/registry/shape"
)

// Custom is the Codec of one state of a CRD, and those of its versions.
//
// Its own Codec decodes what is stored in whatever version that has. A version's Codec
// decodes stored or cached bytes of any version into objects of that version.
type Custom struct {
	*Codec

	config   CustomConfig
	versions map[string]*Codec
}

// CustomConfig says what a [Custom] is made of.
type CustomConfig struct {
	GroupResource schema.GroupResource

	// Versions counts those of the CRD, served or not. Webhook says that they differ by
	// more than their apiVersion.
	Versions int
	Webhook  bool

	// Shapes are those of the versions, by name. Objects of a version without one are decoded
	// whatever they look like. Selects says that some version has selectable fields.
	Shapes  map[string]*shape.Shape
	Selects bool

	// Transformer encrypts stored values; nil stores plain text.
	Transformer value.Transformer

	// Schema is that of the objects that are made for the cache.
	Schema *cache.Schema
}

// NewCustom returns a Custom that has no versions yet.
func NewCustom(config CustomConfig) *Custom {
	c := &Custom{config: config, versions: make(map[string]*Codec)}
	c.Codec = c.newCodec(&customCodec{attrs: c.allAttrs, selects: config.Selects})
	for _, s := range config.Shapes {
		if s != nil {
			c.custom.shapes = append(c.custom.shapes, s)
		}
	}
	c.attrs = c.allAttrs
	c.newFunc = func() runtime.Object { return &unstructured.Unstructured{} }
	c.newListFunc = func() runtime.Object { return &unstructured.UnstructuredList{} }
	return c
}

func (c *Custom) newCodec(custom *customCodec) *Codec {
	codec := &Codec{
		groupResource: c.config.GroupResource,
		versioner:     storage.APIObjectVersioner{},
		schema:        c.config.Schema,
		numbers:       new(numbers),
		custom:        custom,
	}
	if c.Codec == nil { // the first is that of the whole resource
		codec.transformer, codec.encrypted = bound(c.config.Transformer)
		return codec
	}
	codec.transformer, codec.encrypted, codec.numbers = c.transformer, c.encrypted, c.numbers
	return codec
}

// Add adds a version, with what upstream's storage of that version is made of.
func (c *Custom) Add(gvk schema.GroupVersionKind, stored runtime.Codec, newFunc, newListFunc func() runtime.Object, attrs storage.AttrFunc) (*Codec, error) {
	if c.versions[gvk.Version] != nil {
		return nil, fmt.Errorf("registry: %s is there already", gvk)
	}
	version, err := marshalJSON(gvk.GroupVersion().String())
	if err != nil {
		return nil, err
	}
	v := c.newCodec(&customCodec{
		head:     append(append([]byte(`{"apiVersion":`), version...), ','),
		converts: c.config.Webhook,
		attrs:    c.allAttrs,
		selects:  c.config.Selects,
	})
	if s := c.config.Shapes[gvk.Version]; s != nil {
		v.custom.shapes = []*shape.Shape{s}
	}
	v.storage, v.newFunc, v.newListFunc = stored, newFunc, newListFunc
	// Upstream's JSONPath keeps state, and values are decoded in parallel.
	v.attrs = exclusive(attrs)
	c.versions[gvk.Version] = v
	// The codec of any version decodes a value in the value's own version, if no other is
	// asked for.
	c.storage = stored
	if v.custom.onlyVersion = c.config.Versions == 1; v.custom.onlyVersion {
		c.newFunc = newFunc // the version's codec decodes into no other type
	}
	return v, nil
}

func exclusive(attrs storage.AttrFunc) storage.AttrFunc {
	var mu sync.Mutex
	return func(obj runtime.Object) (labels.Set, fields.Set, error) {
		mu.Lock()
		defer mu.Unlock()
		return attrs(obj)
	}
}

// allAttrs are the labels of obj and all fields by which some version selects. The
// versions' paths are looked up in the object as it is stored.
func (c *Custom) allAttrs(obj runtime.Object) (labels.Set, fields.Set, error) {
	var all labels.Set
	selectable := make(fields.Set)
	for _, v := range c.versions {
		set, found, err := v.attrs(obj)
		if err != nil {
			return nil, nil, err
		}
		for name, value := range found {
			selectable[name] = value
		}
		all = set
	}
	return all, selectable, nil
}

// Version returns the Codec of a version, nil if it was not added.
func (c *Custom) Version(version string) *Codec { return c.versions[version] }

// Empty reports whether there is no version.
func (c *Custom) Empty() bool { return len(c.versions) == 0 }
