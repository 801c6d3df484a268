package encoding

import (
	"fmt"
	"maps"
	"slices"
	"sync"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/apiserver/pkg/storage/value"

	"github.com/larder-io/larder/cache"
	"github.com/larder-io/larder/internal/registry/servedjson"
)

// Custom is the Codec of one state of a CRD, and those of its versions.
//
// Its own Codec decodes what is stored in whatever version that has. A version's Codec
// decodes stored or cached bytes of any version into objects of that version.
//
// Upstream's codecs, by which it does so, cost a thousand times what an empty list does. They
// are made when the first object is decoded or encoded that shapes do not tell all about.
type Custom struct {
	*Codec

	config   CustomConfig
	shapes   func() map[string]*servedjson.Shape // calls config.Shapes once
	versions map[string]*Codec
	late     map[string]*late // by version
}

// CustomConfig says what a [Custom] is made of.
type CustomConfig struct {
	GroupResource schema.GroupResource

	// Versions counts those of the CRD, served or not. Webhook says that they differ by
	// more than their apiVersion.
	Versions int
	Webhook  bool

	// Shapes makes those of the versions, by name. Objects of a version without one are decoded
	// whatever they look like. nil makes none. It is called once, when there is an object.
	Shapes func() map[string]*servedjson.Shape

	// Namespaced says that objects have namespaces, Selects that some version has selectable
	// fields.
	Namespaced, Selects bool

	// Make has upstream make what [Custom.Add] is called with, for each version; it is called
	// by whoever needs it first, and again by others, also together. It fails always or never.
	Make func() error

	// Transformer encrypts stored values; nil stores plain text.
	Transformer value.Transformer

	// Schema is that of the objects that are made for the cache.
	Schema *cache.Schema
}

// NewCustom returns a Custom that has no versions yet.
func NewCustom(config CustomConfig) *Custom {
	c := &Custom{config: config, versions: make(map[string]*Codec), late: make(map[string]*late)}
	c.shapes = func() map[string]*servedjson.Shape { return nil }
	if config.Shapes != nil {
		c.shapes = sync.OnceValue(config.Shapes)
	}
	c.Codec = c.newCodec(&customCodec{attrs: c.allAttrs, selects: config.Selects, shapes: c.allShapes})
	c.attrs = c.allAttrs
	c.newFunc = func() runtime.Object { return &unstructured.Unstructured{} }
	c.newListFunc = func() runtime.Object { return &unstructured.UnstructuredList{} }
	return c
}

// allShapes lists the shapes of all versions.
func (c *Custom) allShapes() []*servedjson.Shape {
	return slices.DeleteFunc(slices.Collect(maps.Values(c.shapes())), func(s *servedjson.Shape) bool { return s == nil })
}

// shapesOf lists the shape of a version, if it has one.
func (c *Custom) shapesOf(version string) []*servedjson.Shape {
	if s := c.shapes()[version]; s != nil {
		return []*servedjson.Shape{s}
	}
	return nil
}

func (c *Custom) newCodec(custom *customCodec) *Codec {
	custom.shapes = sync.OnceValue(custom.shapes)
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

// Declare adds a version. Versions are declared before the Custom is used.
func (c *Custom) Declare(gvk schema.GroupVersionKind, listKind string) error {
	if c.versions[gvk.Version] != nil {
		return fmt.Errorf("registry: %s is there already", gvk)
	}
	version, err := marshalJSON(gvk.GroupVersion().String())
	if err != nil {
		return err
	}
	v := c.newCodec(&customCodec{
		head:     append(append([]byte(`{"apiVersion":`), version...), ','),
		converts: c.config.Webhook,
		attrs:    c.allAttrs,
		selects:  c.config.Selects,
		shapes:   func() []*servedjson.Shape { return c.shapesOf(gvk.Version) },
	})
	v.newFunc = func() runtime.Object {
		obj := &unstructured.Unstructured{}
		obj.SetGroupVersionKind(gvk)
		return obj
	}
	v.newListFunc = func() runtime.Object {
		list := &unstructured.UnstructuredList{}
		list.SetGroupVersionKind(gvk.GroupVersion().WithKind(listKind))
		return list
	}
	l := &late{ready: c.config.Make}
	if v.storage, v.attrs = l, c.metadataOf; c.config.Selects {
		// Upstream's JSONPath keeps state, and values are decoded in parallel.
		v.attrs = exclusive(l.attrsOf)
	}
	c.versions[gvk.Version], c.late[gvk.Version] = v, l
	// The codec of any version decodes a value in the value's own version, if no other is
	// asked for.
	c.storage = l
	if v.custom.onlyVersion = c.config.Versions == 1; v.custom.onlyVersion {
		c.newFunc = v.newFunc // the version's codec decodes into no other type
	}
	return nil
}

// Add takes what upstream's storage of a declared version is made of. CustomConfig.Make has it
// called.
func (c *Custom) Add(gvk schema.GroupVersionKind, stored runtime.Codec, attrs storage.AttrFunc) (*Codec, error) {
	l := c.late[gvk.Version]
	if l == nil || l.codec != nil {
		return nil, fmt.Errorf("registry: a storage of %s is not wanted", gvk)
	}
	l.codec, l.attrs = stored, attrs
	return c.versions[gvk.Version], nil
}

func exclusive(attrs storage.AttrFunc) storage.AttrFunc {
	var mu sync.Mutex
	return func(obj runtime.Object) (labels.Set, fields.Set, error) {
		mu.Lock()
		defer mu.Unlock()
		return attrs(obj)
	}
}

// metadataOf is the storage.AttrFunc of versions without selectable fields of their own, as
// upstream's is (apiextensions-apiserver pkg/registry/customresource/strategy.go).
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
