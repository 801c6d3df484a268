package registry

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"sync/atomic"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/apiserver/pkg/storage/value"

	"github.com/larder-io/larder/cache"
	"github.com/larder-io/larder/internal/registry/transcode"
)

// codec turns what one resource has in the store into what the cache holds, and
// that back into objects.
//
// A stored value is decrypted, decoded with the storage codec (which applies
// defaults), given its resourceVersion, decorated as a read would decorate it,
// converted to the canonical version and encoded once. The canonical form is the
// bare protobuf message of the storage version. Stored bytes may lack defaults or hold
// what a read drops; only those that are known to come out of all this as they went
// in are given their resourceVersion and served (shapes.go).
type codec struct {
	storage     runtime.Codec
	versioner   storage.Versioner
	transformer value.Transformer
	encrypted   bool // values may be: transformer is no formality
	scheme      *runtime.Scheme
	convertor   runtime.ObjectConvertor // shares memory between in and out
	canonical   schema.GroupVersionKind
	newFunc     func() runtime.Object
	newListFunc func() runtime.Object
	attrs       storage.AttrFunc

	// decorate is what the REST storage does to every object that it reads, nil
	// for nearly all. It is set before the first use. Storages that read through
	// storage.Interface do it again: it is idempotent.
	decorate func(runtime.Object)

	// splitMetadata says that conversion moves annotations to fields and back, so
	// that PartialObjectMetadata, which upstream takes from the internal object,
	// is no part of the canonical bytes.
	splitMetadata bool

	// shapes tells which stored values are canonical already, nil where that is not
	// known of any.
	shapes *knownShapes

	// planner makes plans by which items are made without decoding, nil for none.
	planner *transcode.Planner

	// untyped says that objects have no Go type: the canonical form is JSON, in the
	// version that is stored, and decoding it is what reading a stored value is.
	untyped bool

	// head is what the bytes of an untyped object begin with, stored or canonical, that
	// has the version of this codec. They may begin with something else even so.
	head []byte

	// converts says that labels and fields may change where the version does: those
	// that the cache has are of what is stored.
	converts bool

	// decodes counts decodings of cached bytes: none happen when the form that is
	// asked for was made before.
	decodes atomic.Uint64
}

// splitMetadata lists the resources whose canonical metadata differs from that of
// their internal objects (kubernetes pkg/apis/apps/v1/conversion.go).
var splitMetadata = map[schema.GroupResource]bool{
	{Group: "apps", Resource: "daemonsets"}:  true,
	{Group: "apps", Resource: "deployments"}: true,
}

// splitPrefix is what the annotations begin with that such conversions make of fields.
const splitPrefix = "deprecated."

// marshaler and unmarshaler are what generated protobuf types have.
type marshaler interface{ Marshal() ([]byte, error) }

type unmarshaler interface {
	Reset()
	Unmarshal([]byte) error
}

// errNotProtobuf says that a kind has no protobuf form.
var errNotProtobuf = errors.New("registry: kind has no protobuf form")

// authenticatedKey binds an encrypted value to the key that it is stored under.
type authenticatedKey string

func (k authenticatedKey) AuthenticatedData() []byte { return []byte(k) }

// decrypt undoes encryption at rest. stale says that the value should be written
// anew although it does not change.
func (c *codec) decrypt(ctx context.Context, key string, value []byte) (data []byte, stale bool, err error) {
	data, stale, err = c.transformer.TransformFromStorage(ctx, value, authenticatedKey(key))
	if err != nil {
		return nil, false, storage.NewInternalError(err)
	}
	return data, stale, nil
}

// decodeStored decodes plain stored data into an object of revision.
func (c *codec) decodeStored(data []byte, into runtime.Object, revision int64) error {
	if _, _, err := c.storage.Decode(data, nil, into); err != nil {
		return err
	}
	return c.setRevision(into, revision)
}

func (c *codec) setRevision(obj runtime.Object, revision int64) error {
	if err := c.versioner.UpdateObject(obj, uint64(revision)); err != nil {
		return fmt.Errorf("registry: set resourceVersion: %w", err)
	}
	return nil
}

// ingest makes the cache's object of a stored value. key is the full key, rest
// what identifies the object within the resource. A value that cannot be read
// becomes an object that says why.
func (c *codec) ingest(ctx context.Context, schema *cache.Schema, key, rest string, value []byte, revision int64) *cache.Object {
	if rest == "" {
		rest = "/" // the root itself: kube-apiserver reads it, and no object is there
	}
	data, _, err := c.decrypt(ctx, key, value)
	if err != nil {
		err = storage.NewInternalError(fmt.Errorf("unable to transform key %q: %w", key, errors.Unwrap(err)))
		return poisoned(schema, rest, revision, len(value), err)
	}
	config := cache.ObjectConfig{Key: rest, Revision: revision, Stored: len(value)}
	if c.shapes == nil {
		err = c.complete(data, &config)
	} else {
		err = c.completeShaped(data, &config)
	}
	if err != nil {
		return poisoned(schema, rest, revision, len(value), err)
	}
	return cache.NewObject(config, schema)
}

// completeShaped decodes data only where that may change something.
func (c *codec) completeShaped(data []byte, config *cache.ObjectConfig) error {
	v, ok := c.shapes.inspect(data)
	if !ok {
		return c.complete(data, config)
	}
	defer c.shapes.release(v)
	if c.shapes.complete(v, config) {
		return nil
	}
	if err := c.complete(data, config); err != nil {
		return err
	}
	c.shapes.learn(v, config)
	return nil
}

// complete fills in config, which has a key and a revision, from what data decodes to.
// Selectable fields are those of the object before decoration, as upstream's watch
// cache has them.
func (c *codec) complete(data []byte, config *cache.ObjectConfig) error {
	obj := c.newFunc()
	if err := c.decodeStored(data, obj, config.Revision); err != nil {
		return err
	}
	described, err := c.describe(config.Key, obj, config.Revision)
	if err != nil {
		return err
	}
	config.Labels, config.Fields = described.Labels, described.Fields
	if c.decorate != nil {
		c.decorate(obj)
	}
	config.Body, err = c.encode(obj)
	return err
}

// describe fills in all but the body.
func (c *codec) describe(rest string, obj runtime.Object, revision int64) (cache.ObjectConfig, error) {
	config := cache.ObjectConfig{Key: rest, Revision: revision}
	labels, fields, err := c.attrs(obj)
	config.Labels, config.Fields = labels, fields
	return config, err
}

// poisoned makes an entry that fails the reads which cover it and no others.
func poisoned(schema *cache.Schema, rest string, revision int64, stored int, err error) *cache.Object {
	return cache.NewObject(cache.ObjectConfig{Key: rest, Revision: revision, Stored: stored, Err: err}, schema)
}

// encode returns the canonical bytes of obj. obj is not kept.
func (c *codec) encode(obj runtime.Object) ([]byte, error) {
	if u, ok := obj.(runtime.Unstructured); ok && c.untyped {
		return marshalJSON(u.UnstructuredContent())
	}
	converted, err := c.convertor.ConvertToVersion(obj, c.canonical.GroupVersion())
	if err != nil {
		return nil, fmt.Errorf("registry: convert to %s: %w", c.canonical, err)
	}
	return marshal(converted)
}

func marshal(obj runtime.Object) ([]byte, error) {
	m, ok := obj.(marshaler)
	if !ok {
		return nil, fmt.Errorf("%w: %T", errNotProtobuf, obj)
	}
	return m.Marshal()
}

// versioned decodes canonical bytes into a fresh object of the canonical version.
func (c *codec) versioned(body []byte) (runtime.Object, error) {
	obj, err := c.scheme.New(c.canonical)
	if err != nil {
		return nil, fmt.Errorf("registry: %w", err)
	}
	m, ok := obj.(unmarshaler)
	if !ok {
		return nil, fmt.Errorf("%w: %T", errNotProtobuf, obj)
	}
	c.decodes.Add(1)
	if err := m.Unmarshal(body); err != nil {
		return nil, fmt.Errorf("registry: decode %s: %w", c.canonical, err)
	}
	return obj, nil
}

// decode decodes canonical bytes into an object of the type that handlers and
// strategies work with.
func (c *codec) decode(body []byte, into runtime.Object) error {
	if c.untyped {
		c.decodes.Add(1)
		_, _, err := c.storage.Decode(body, nil, into)
		return err
	}
	obj, err := c.versioned(body)
	if err != nil {
		return err
	}
	if from, to := reflect.ValueOf(obj), reflect.ValueOf(into); from.Type() == to.Type() {
		to.Elem().Set(from.Elem())
		return nil
	}
	// obj is ours alone, so that into may share its memory.
	if err := c.scheme.Convert(obj, into, nil); err != nil {
		return fmt.Errorf("registry: convert from %s: %w", c.canonical, err)
	}
	return nil
}

// internal decodes a cached object. revision, if not 0, replaces its own.
func (c *codec) internal(o *cache.Object, revision int64) (runtime.Object, error) {
	if o.Err() != nil {
		return nil, o.Err()
	}
	obj := c.newFunc()
	if err := c.decode(o.Body(), obj); err != nil {
		return nil, err
	}
	if revision != 0 && revision != o.Revision() {
		if err := c.setRevision(obj, revision); err != nil {
			return nil, err
		}
	}
	return obj, nil
}

// as decodes canonical bytes into version gv, without kind and apiVersion. It goes
// by way of the internal version even to the canonical one: conversion adds what
// protobuf does not carry (kind and apiVersion of volume claim templates).
func (c *codec) as(body []byte, gv schema.GroupVersion) (runtime.Object, error) {
	obj := c.newFunc()
	if err := c.decode(body, obj); err != nil {
		return nil, err
	}
	return c.toVersion(obj, gv)
}

// toVersion converts obj, which the result may share memory with.
func (c *codec) toVersion(obj runtime.Object, gv schema.GroupVersion) (runtime.Object, error) {
	out, err := c.convertor.ConvertToVersion(obj, gv)
	if err != nil {
		return nil, fmt.Errorf("registry: convert to %s: %w", gv, err)
	}
	out.GetObjectKind().SetGroupVersionKind(schema.GroupVersionKind{})
	return out, nil
}
