package encoding

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"sync/atomic"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/apiserver/pkg/storage/value"
	"k8s.io/kubernetes/pkg/api/legacyscheme"

	"github.com/larder-io/larder/cache"
	"github.com/larder-io/larder/internal/registry/transcode"
	"github.com/larder-io/larder/internal/registry/wire"
)

// Config is the configuration of a [Codec].
type Config struct {
	GroupResource schema.GroupResource

	// Storage is upstream's codec of stored values, and EncodeVersioner selects the stored
	// version.
	Storage         runtime.Codec
	EncodeVersioner runtime.GroupVersioner

	// Transformer encrypts stored values; nil stores plain text.
	Transformer value.Transformer

	// Schema is the schema of the objects that the Codec makes for the cache.
	Schema *cache.ResourceSchema

	// New and NewList make empty objects of the type that handlers and strategies use.
	New     func() runtime.Object
	NewList func() runtime.Object

	// Attrs finds the labels and the selectable fields of an object.
	Attrs storage.AttrFunc

	// Scheme converts; nil means the scheme of the built-in kinds.
	Scheme *runtime.Scheme

	// Canonical is the kind of the canonical encoding; empty means the stored kind.
	Canonical schema.GroupVersionKind

	// Planner makes the plans by which JSON is written without decoding; nil makes none.
	Planner *transcode.Planner

	// Served says that values are canonical messages in their envelopes, as another API server sent them. They include
	// resourceVersions, and become the cached bodies unchanged, with all unknown fields.
	Served bool
}

// Codec makes cached objects from one resource's stored values, and decodes cached objects.
//
// For each stored value it
//
//   - decrypts the value and decodes it with the storage codec, which applies defaults;
//   - sets the resourceVersion, and decorates the object as a read would;
//   - converts it to the canonical version and encodes it.
//
// The canonical encoding is the bare protobuf message of the storage version. Stored bytes are not
// served directly: they may lack defaults or have fields that a read drops. Values with a known
// fingerprint skip all steps but decryption.
//
// A custom resource has a Codec for the whole resource and one for each version: see [Custom].
type Codec struct {
	// Config has its defaults. Transformer is never nil, and Scheme is nil for custom resources.
	Config

	// Encrypted says that values may be encrypted, so reading one may wait for a KMS plugin.
	Encrypted bool

	// Decorate is the REST storage's Decorator for objects that it reads, nil for nearly all
	// resources. If it is not nil, cached objects differ from stored ones. It is set before the first use.
	// It is idempotent: storages that read through storage.Interface call it again.
	Decorate func(runtime.Object)

	convertor runtime.ObjectConvertor // shares memory between in and out
	envelope  []byte                  // see cutEnvelope; nil for custom resources
	encodings *int                    // number of encoding IDs of all versions

	// splitMetadata says that conversion moves annotations to fields and back. Upstream takes PartialObjectMetadata
	// from the internal object, so it then differs from the canonical metadata.
	splitMetadata bool

	// rules makes cached objects without decoding; nil if the values have no fingerprints.
	rules *ruleCache

	// custom has the further fields of custom resources; nil for built-in resources.
	custom *customCodec

	// decodes counts decodings of cached bytes. Reads of cached encodings decode nothing.
	decodes atomic.Uint64
	// undecodable counts stored data that could not be decoded.
	undecodable atomic.Int64
}

// New returns the Codec of a built-in resource. It fails if the scheme has no storage version of the objects that
// config.New makes.
func New(config Config) (*Codec, error) {
	c := &Codec{Config: config, encodings: new(int), splitMetadata: splitMetadata[config.GroupResource]}
	c.Transformer, c.Encrypted = withTimeouts(config.Transformer)
	if c.Scheme == nil {
		c.Scheme = legacyscheme.Scheme
	}
	c.convertor = runtime.UnsafeObjectConvertor(c.Scheme)
	if c.Canonical.Empty() {
		if err := c.findCanonical(); err != nil {
			return nil, err
		}
	}
	c.envelope = wire.Envelope(c.Canonical.GroupVersion().String(), c.Canonical.Kind)
	return c, nil
}

// findCanonical makes the stored kind the canonical one.
func (c *Codec) findCanonical() error {
	kinds, _, err := c.Scheme.ObjectKinds(c.New())
	if err != nil {
		return fmt.Errorf("registry: %s: %w", c.GroupResource, err)
	}
	gvk, ok := c.EncodeVersioner.KindForGroupVersionKinds(kinds)
	if !ok {
		return fmt.Errorf("registry: %s: no storage version for %v", c.GroupResource, kinds)
	}
	if c.Canonical = gvk; !c.Served {
		c.rules = newRuleCache(c)
	}
	return nil
}

// splitMetadata lists the resources whose canonical metadata differs from the metadata of their internal objects
// (kubernetes pkg/apis/apps/v1/conversion.go).
var splitMetadata = map[schema.GroupResource]bool{
	{Group: "apps", Resource: "daemonsets"}:  true,
	{Group: "apps", Resource: "deployments"}: true,
}

// splitPrefix is the prefix of the annotations that such conversions make of fields.
const splitPrefix = "deprecated."

// Decodes returns the number of decodings of cached bytes. Reads of cached encodings do not count.
func (c *Codec) Decodes() uint64 { return c.decodes.Load() }

// Undecodable returns how often stored data could not be decoded.
func (c *Codec) Undecodable() int64 { return c.undecodable.Load() }

// IsCustom reports whether the resource is a custom resource.
func (c *Codec) IsCustom() bool { return c.custom != nil }

// Converts reports whether making an object of this version may call a webhook, which may change labels and fields.
func (c *Codec) Converts() bool { return c.custom != nil && c.custom.converts }

// DecodeObject decodes o. Without a conversion webhook it decodes the canonical bytes as Decode does, or as Restore
// does if exact is set. With one it decodes the JSON that a GET returns, so that all readers share one call to the
// webhook, and sets no defaults in it. DecodeObject ends with ctx as [Encoder.Item] does.
func (c *Codec) DecodeObject(ctx context.Context, o *cache.Object, into runtime.Object, exact bool) error {
	if o.Err() != nil {
		return o.Err()
	}
	if !c.Converts() || c.custom.served == nil {
		return c.decode(o.Body(), into, exact)
	}
	item, err := c.custom.served.Encoder(JSON, Full).Item(ctx, o)
	if err != nil {
		return err
	}
	c.decodes.Add(1)
	return runtime.DecodeInto(unstructured.UnstructuredJSONScheme, item, into)
}

// authenticatedKey binds an encrypted value to the key under which it is stored.
type authenticatedKey string

func (k authenticatedKey) AuthenticatedData() []byte { return []byte(k) }

// Decrypt decrypts a stored value. stale says that an update should write the value even without a change. Errors are
// upstream's internal errors, which wrap the transformer's.
func (c *Codec) Decrypt(ctx context.Context, key string, value []byte) (data []byte, stale bool, err error) {
	data, stale, err = c.Transformer.TransformFromStorage(ctx, value, authenticatedKey(key))
	if err != nil {
		return nil, false, storage.NewInternalError(err)
	}
	return data, stale, nil
}

// Encrypt encrypts data for the value under key. Its errors are those of [Codec.Decrypt].
func (c *Codec) Encrypt(ctx context.Context, key string, data []byte) ([]byte, error) {
	value, err := c.Transformer.TransformToStorage(ctx, data, authenticatedKey(key))
	if err != nil {
		return nil, storage.NewInternalError(err)
	}
	return value, nil
}

// DecodeStored decodes plain stored data into an object of revision. It counts errors, and returns the storage codec's.
func (c *Codec) DecodeStored(data []byte, into runtime.Object, revision int64) error {
	err := c.decodeStored(data, into, revision)
	if err != nil {
		c.undecodable.Add(1)
	}
	return err
}

func (c *Codec) decodeStored(data []byte, into runtime.Object, revision int64) error {
	if c.custom == nil || !c.custom.decode(data, into) {
		if _, _, err := c.Storage.Decode(data, nil, into); err != nil {
			return err
		}
	}
	return c.SetRevision(into, revision)
}

// cutEnvelope returns the message of data that has the canonical version, if the envelope has exactly the
// bytes that upstream writes.
func (c *Codec) cutEnvelope(data []byte) (raw []byte, ok bool) {
	if c.envelope == nil {
		return nil, false
	}
	return wire.CutEnvelope(data, c.envelope)
}

// EncodeStored encodes obj for the store, and clears the fields of obj that are not stored.
func (c *Codec) EncodeStored(obj runtime.Object) ([]byte, error) {
	if err := c.Versioner().PrepareObjectForStorage(obj); err != nil {
		return nil, fmt.Errorf("PrepareObjectForStorage failed: %w", err)
	}
	return runtime.Encode(c.Storage, obj)
}

// SetRevision sets the resourceVersion of obj.
func (c *Codec) SetRevision(obj runtime.Object, revision int64) error {
	if err := c.Versioner().UpdateObject(obj, uint64(revision)); err != nil {
		return fmt.Errorf("registry: set resourceVersion: %w", err)
	}
	return nil
}

// encode returns the canonical bytes of obj. obj is not kept.
func (c *Codec) encode(obj runtime.Object) ([]byte, error) {
	if u, ok := obj.(runtime.Unstructured); ok && c.custom != nil {
		return json.Marshal(u.UnstructuredContent())
	}
	converted, err := c.convertor.ConvertToVersion(obj, c.Canonical.GroupVersion())
	if err != nil {
		return nil, fmt.Errorf("registry: convert to %s: %w", c.Canonical, err)
	}
	return marshalProtobuf(converted)
}

// appendRevision appends canonical bytes with another resourceVersion.
func (c *Codec) appendRevision(dst, body []byte, revision int64) ([]byte, error) {
	if c.custom != nil {
		return wire.AppendRevisionJSON(dst, body, revision)
	}
	return wire.AppendRevisionProtobuf(dst, body, revision)
}

// versioned decodes canonical bytes into a fresh object of the canonical version.
func (c *Codec) versioned(body []byte) (runtime.Object, error) {
	obj, err := c.Scheme.New(c.Canonical)
	if err != nil {
		return nil, fmt.Errorf("registry: %w", err)
	}
	m, ok := obj.(unmarshaler)
	if !ok {
		return nil, fmt.Errorf("%w: %T", errNotProtobuf, obj)
	}
	c.decodes.Add(1)
	if err := m.Unmarshal(body); err != nil {
		return nil, fmt.Errorf("registry: decode %s: %w", c.Canonical, err)
	}
	return obj, nil
}

// Decode decodes canonical bytes into an object of the type that handlers and strategies use. Empty maps
// may become nil.
func (c *Codec) Decode(body []byte, into runtime.Object) error { return c.decode(body, into, false) }

// Restore decodes canonical bytes into exactly the object that the storage codec makes from the stored
// value, for comparisons: validation distinguishes an empty map, such as the data of an empty ConfigMap,
// from nil.
func (c *Codec) Restore(body []byte, into runtime.Object) error { return c.decode(body, into, true) }

func (c *Codec) decode(body []byte, into runtime.Object, defaults bool) error {
	if c.custom != nil {
		c.decodes.Add(1)
		if c.custom.decode(body, into) {
			return nil
		}
		_, _, err := c.Storage.Decode(body, nil, into)
		return err
	}
	obj, err := c.versioned(body)
	if err != nil {
		return err
	}
	if defaults {
		c.Scheme.Default(obj)
	}
	if from, to := reflect.ValueOf(obj), reflect.ValueOf(into); from.Type() == to.Type() {
		to.Elem().Set(from.Elem())
		return nil
	}
	// obj is not shared, so into may share its memory.
	if err := c.Scheme.Convert(obj, into, nil); err != nil {
		return fmt.Errorf("registry: convert from %s: %w", c.Canonical, err)
	}
	return nil
}

// Internal decodes a cached object into a new object of the internal version. revision, if not 0,
// replaces its resourceVersion. It ends with ctx as [Encoder.Item] does.
func (c *Codec) Internal(ctx context.Context, o *cache.Object, revision int64) (runtime.Object, error) {
	obj := c.New()
	if err := c.DecodeObject(ctx, o, obj, false); err != nil {
		return nil, err
	}
	if revision != 0 && revision != o.Revision() {
		if err := c.SetRevision(obj, revision); err != nil {
			return nil, err
		}
	}
	return obj, nil
}

// toVersion converts obj, without kind and apiVersion. The result may share memory with obj, which has the internal
// version even if gv is the canonical one: conversion adds kind and apiVersion of volume claim templates, which
// protobuf does not carry.
func (c *Codec) toVersion(obj runtime.Object, gv schema.GroupVersion) (runtime.Object, error) {
	out, err := c.convertor.ConvertToVersion(obj, gv)
	if err != nil {
		return nil, fmt.Errorf("registry: convert to %s: %w", gv, err)
	}
	out.GetObjectKind().SetGroupVersionKind(schema.GroupVersionKind{})
	return out, nil
}

// Bookmark makes the object of a bookmark. The object has only a revision and, at the end of the initial events, an
// annotation. As in upstream's watch cache, it is decorated.
func (c *Codec) Bookmark(revision int64, initialEnd bool) (runtime.Object, error) {
	obj := c.New()
	if err := c.SetRevision(obj, revision); err != nil {
		return nil, err
	}
	if initialEnd {
		if err := storage.AnnotateInitialEventsEndBookmark(obj); err != nil {
			return nil, fmt.Errorf("registry: annotate bookmark: %w", err)
		}
	}
	if c.Decorate != nil {
		c.Decorate(obj)
	}
	return obj, nil
}

// Versioner reads and writes resourceVersions.
func (c *Codec) Versioner() storage.Versioner { return storage.APIObjectVersioner{} }

// marshaler and unmarshaler have the methods of generated protobuf types.
type marshaler interface{ Marshal() ([]byte, error) }

type unmarshaler interface{ Unmarshal([]byte) error }

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
