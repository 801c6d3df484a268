package encoding

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"reflect"
	"runtime/debug"
	"sync"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	utiljson "k8s.io/apimachinery/pkg/util/json"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/klog/v2"
	"k8s.io/kubernetes/pkg/api/legacyscheme"

	"github.com/larder-io/larder/cache"
	"github.com/larder-io/larder/internal/invariants"
	"github.com/larder-io/larder/internal/registry/transcode"
	"github.com/larder-io/larder/internal/registry/wire"
)

// Encoder encodes objects in one version, media type and projection.
// Its Writer puts heads, lists and frames around items; the Encoder makes the items of
// objects. Items are shared by all responses and never written to.
type Encoder struct {
	wire.Writer

	// ID is the number of the encoder among those of its resource. Frames are shared by event and ID.
	ID        cache.EncodingID
	MediaType MediaType

	codec      *Codec // of the version
	gvk        schema.GroupVersionKind
	projection Projection
	plan       func() *transcode.Plan // writes items without decoding; may return nil

	bookmark, initialEnd func() (bookmark, error) // make each once
}

// bookmark is the item from which all bookmarks are made. The bytes are shared.
type bookmark struct {
	seal invariants.Seal // of item
	item []byte
}

// Planned reports whether the Encoder makes items without decoding objects.
func (e *Encoder) Planned() bool { return e.Sliced() || e.plan() != nil }

// Sliced reports whether items are parts of the canonical bytes, which need not be encoded or cached.
func (e *Encoder) Sliced() bool {
	if e.codec.custom != nil {
		return e.projection == Full && e.codec.custom.onlyVersion
	}
	if e.projection == Full { // GroupVersion would copy both structs for each item
		canonical := &e.codec.Canonical
		return e.MediaType == Protobuf && e.gvk.Group == canonical.Group && e.gvk.Version == canonical.Version
	}
	return e.MediaType == Protobuf && !e.codec.splitMetadata
}

// Item returns the item of o. The bytes are shared. If a conversion webhook makes the item, Item waits for the webhook
// until ctx ends, and then returns upstream's timeout error.
func (e *Encoder) Item(ctx context.Context, o *cache.Object) ([]byte, error) {
	if o.Err() != nil {
		return nil, o.Err()
	}
	if e.Sliced() && e.projection != Full {
		return wire.PartialProtobuf(o.Body())
	}
	if e.Sliced() || e.whole(o) {
		return o.Body(), nil
	}
	if !e.converts(o) {
		return o.Encoding(e.ID, e.encode)
	}
	if item, ok := o.Kept(e.ID); ok {
		return item, nil
	}
	return e.converted(ctx, o, func(o *cache.Object) ([]byte, error) { return o.Encoding(e.ID, e.encode) })
}

// converts reports whether a webhook makes the item of o, unless the item is the canonical bytes.
func (e *Encoder) converts(o *cache.Object) bool {
	c := e.codec.custom
	return c != nil && c.converts && !c.stores(o.Head())
}

// maxConversions limits the concurrent calls to the conversion webhook for one version of a CRD. Flow control does not
// limit them, because a call continues after its readers have left. The limit exceeds the usual number of seats.
const maxConversions = 1000

// converted returns the result of encode for o, which calls a webhook. Concurrent callers share one call and its
// result, even an error, so that a webhook that hangs does not delay them one after the other. The call continues if
// its callers leave. Upstream's webhook client ends it after 30 s.
func (e *Encoder) converted(ctx context.Context, o *cache.Object, encode func(*cache.Object) ([]byte, error)) ([]byte, error) {
	attempt := e.codec.custom.conversions.DoChan(fmt.Sprintf("%p %d", o, e.ID), func() (item any, err error) {
		defer e.codec.custom.converting.Add(-1)
		if e.codec.custom.converting.Add(1) > maxConversions {
			return nil, apierrors.NewTooManyRequests("too many objects wait for the conversion webhook, please try again later", 1)
		}
		defer func() {
			if p := recover(); p != nil {
				klog.ErrorS(nil, "Conversion panicked", "panic", p, "stack", string(debug.Stack()))
				err = fmt.Errorf("registry: conversion of %s to %s panicked", o.Key(), e.gvk)
			}
		}()
		return encode(o)
	})
	select {
	case <-ctx.Done():
		return nil, storage.NewTimeoutError(o.Key(), "request did not complete within requested timeout")
	case result := <-attempt:
		item, _ := result.Val.([]byte)
		return item, result.Err
	}
}

// whole reports whether the item of o, an object of a CRD, is all of its canonical bytes.
func (e *Encoder) whole(o *cache.Object) bool {
	c := e.codec.custom
	return c != nil && e.projection == Full && o.Err() == nil && (c.onlyVersion || c.stores(o.Head()))
}

// PackedSize returns the size of the item of o if the item is the canonical bytes and these are packed. [ItemSource.Next]
// unpacks them into the response.
func (e *Encoder) PackedSize(o *cache.Object) (size int, ok bool) {
	return o.Size(), o.Packed() && e.whole(o)
}

// buffers is a pool of buffers for items that are copied elsewhere.
var buffers = sync.Pool{New: func() any { return new([]byte) }}

func putBuffer(buffer *[]byte) {
	if invariants.Enabled {
		invariants.Overwrite(*buffer)
	}
	buffers.Put(buffer)
}

// encode makes the item of o from its canonical bytes, for the cache.
func (e *Encoder) encode(o *cache.Object) ([]byte, error) {
	if e.plan() == nil {
		return e.decoded(o)
	}
	buffer := buffers.Get().(*[]byte)
	defer putBuffer(buffer)
	item, _, err := e.append((*buffer)[:0], o)
	*buffer = item[:0]
	if err != nil {
		return nil, err
	}
	return bytes.Clone(item), nil
}

// append appends the item of o, by the plan if possible. cheap says that making it again costs hardly more than copying
// it.
func (e *Encoder) append(dst []byte, o *cache.Object) (_ []byte, cheap bool, err error) {
	if out, cheap, ok := e.planned(dst, o); ok {
		return out, cheap, nil
	}
	item, err := e.decoded(o)
	return append(dst, item...), false, err
}

// planned appends the item of o as append does, and reports whether the plan could make it.
func (e *Encoder) planned(dst []byte, o *cache.Object) (_ []byte, cheap, ok bool) {
	plan, body := e.plan(), o.Body()
	if plan == nil {
		return dst, false, false
	}
	if e.projection != Full {
		part, err := wire.PartialProtobuf(body)
		if err != nil || e.codec.splitMetadata && bytes.Contains(part, []byte(splitPrefix)) {
			return dst, false, false
		}
		body = part
	}
	out, cheap, err := plan.Append(dst, body)
	return out, cheap, err == nil
}

// decoded makes the item of o by decoding the object, or only the metadata of a custom resource.
func (e *Encoder) decoded(o *cache.Object) ([]byte, error) {
	c, obj, err := e.codec, e.codec.New(), error(nil)
	switch {
	case e.projection == Full:
		if c.custom != nil && e.MediaType != JSON {
			return nil, fmt.Errorf("%w: %s", errNotProtobuf, e.gvk)
		}
		err = c.Decode(o.Body(), obj)
	case c.custom != nil && !e.converts(o):
		return e.metadataOf(o.Head())
	default:
		err = c.DecodeObject(context.Background(), o, obj, false)
	}
	if err != nil {
		return nil, err
	}
	return e.itemOf(obj)
}

// itemOf makes the item of obj, a decoded object.
func (e *Encoder) itemOf(obj runtime.Object) ([]byte, error) {
	switch {
	case e.projection != Full:
		return e.partialOf(obj)
	case e.codec.custom != nil:
		return e.codec.encode(obj)
	}
	out, err := e.codec.toVersion(obj, e.gvk.GroupVersion())
	if err != nil {
		return nil, err
	}
	return e.marshal(out)
}

// metadataOf makes the item of PartialObjectMetadata of a custom resource.
func (e *Encoder) metadataOf(head []byte) ([]byte, error) {
	raw, err := wire.MetadataJSON(head)
	if err != nil {
		return nil, err
	}
	e.codec.decodes.Add(1)
	var metadata map[string]any
	if err := utiljson.Unmarshal(raw, &metadata); err != nil {
		return nil, fmt.Errorf("registry: decode metadata: %w", err)
	}
	return e.partialOf(&unstructured.Unstructured{Object: map[string]any{"metadata": metadata}})
}

func (e *Encoder) marshal(obj runtime.Object) ([]byte, error) {
	if e.MediaType == Protobuf {
		return marshalProtobuf(obj)
	}
	return json.Marshal(obj) // clients see its errors
}

// partialOf makes the item of PartialObjectMetadata of something with metadata.
func (e *Encoder) partialOf(obj any) ([]byte, error) {
	accessor, err := meta.Accessor(obj)
	if err != nil {
		return nil, fmt.Errorf("registry: %w", err)
	}
	partial, kind := meta.AsPartialObjectMetadata(accessor), partialKind(e.projection)
	partial.Kind, partial.APIVersion = kind.Kind, kind.APIVersion
	return e.marshal(partial)
}

// NewPlanner returns a Planner for the built-in kinds. Conversion of a canonical object to the internal
// version and back adds only kind and apiVersion of claim templates, which are not in the protobuf
// (kubernetes pkg/apis/apps/v1/conversion.go).
func NewPlanner() *transcode.Planner {
	return transcode.NewPlanner(transcode.Typed{
		Owner: reflect.TypeFor[appsv1.StatefulSetSpec](),
		Field: "VolumeClaimTemplates",
		Kind:  corev1.SchemeGroupVersion.WithKind("PersistentVolumeClaim"),
	})
}

// planOf returns the plan that writes items of a version in JSON. It returns nil if objects must be
// decoded: if whole objects are of another scheme, of a kind that no plan can express, or of another
// version than the canonical one.
func (c *Codec) planOf(gv schema.GroupVersion, projection Projection) *transcode.Plan {
	if c.custom != nil || c.Planner == nil {
		return nil
	}
	t, kind := reflect.TypeFor[metav1.PartialObjectMetadata](), schema.GroupVersionKind{}
	switch {
	case projection != Full:
		partial := partialKind(projection)
		kind = schema.FromAPIVersionAndKind(partial.APIVersion, partial.Kind)
	case gv != c.Canonical.GroupVersion() || c.Scheme != legacyscheme.Scheme:
		return nil
	default:
		obj, err := c.Scheme.New(c.Canonical)
		if err != nil {
			return nil
		}
		t = reflect.TypeOf(obj).Elem()
	}
	plan, err := c.Planner.Plan(t, kind)
	if err != nil {
		return nil
	}
	return plan
}
