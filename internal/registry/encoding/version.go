package encoding

import (
	"fmt"
	"slices"
	"sync"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	metav1beta1 "k8s.io/apimachinery/pkg/apis/meta/v1beta1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/larder-io/larder/cache"
	"github.com/larder-io/larder/internal/registry/transcode"
	"github.com/larder-io/larder/internal/registry/wire"
)

// Version is one served version of a resource, with its encoders. It is immutable.
type Version struct {
	GVK      schema.GroupVersionKind
	ListKind string

	Codec *Codec
	RowID cache.EncodingID // of table rows among the encodings of an object

	encoders [mediaTypes][projections]*Encoder
}

// NewVersion adds a served version to the resource of c. For a custom resource, c is the Codec of that
// version. Versions are added before the resource is read. NewVersion fails if the resource has too many versions.
func (c *Codec) NewVersion(gvk schema.GroupVersionKind, listKind string) (*Version, error) {
	own := mediaTypes // encodings that it does not share with other versions
	if c.custom != nil {
		own *= projections
	}
	first := cache.EncodingID(versionIDs + *c.encodings)
	if *c.encodings += own + 1; versionIDs+*c.encodings > maxIDs { // one more for the rows of tables
		return nil, fmt.Errorf("registry: %s is served in too many versions", c.GroupResource)
	}
	v := &Version{GVK: gvk, ListKind: listKind, Codec: c, RowID: first + cache.EncodingID(own)}
	if c.custom != nil {
		c.custom.served = v
	}
	for media := range MediaType(mediaTypes) {
		for projection := range Projection(projections) {
			v.encoders[media][projection] = v.newEncoder(media, projection, first)
		}
	}
	return v, nil
}

// newEncoder makes an encoder. first is the first of the version's IDs.
func (v *Version) newEncoder(media MediaType, projection Projection, first cache.EncodingID) *Encoder {
	e := &Encoder{codec: v.Codec, gvk: v.GVK, MediaType: media, projection: projection}
	kind := wire.Kind{APIVersion: v.GVK.GroupVersion().String(), Kind: v.GVK.Kind, ListKind: v.ListKind}
	custom := v.Codec.custom != nil
	switch {
	case custom:
		e.ID = first + cache.EncodingID(media)*projections + cache.EncodingID(projection)
	case projection == Full:
		e.ID = first + cache.EncodingID(media)
	default:
		e.ID = partialIDs + cache.EncodingID(media)*(projections-1) + cache.EncodingID(projection-Partial)
	}
	if projection != Full {
		kind = partialKind(projection)
	}
	switch {
	case custom && projection == Full:
		e.Writer = wire.Unstructured(kind)
	case media == Protobuf:
		e.Writer = wire.Protobuf(kind)
	default:
		e.Writer = wire.JSON(kind)
	}
	e.bookmark = sync.OnceValues(func() (bookmark, error) { return e.makeBookmark(false) })
	e.initialEnd = sync.OnceValues(func() (bookmark, error) { return e.makeBookmark(true) })
	e.plan = func() *transcode.Plan { return nil }
	if media == JSON {
		e.plan = sync.OnceValue(func() *transcode.Plan { return v.Codec.planOf(v.GVK.GroupVersion(), projection) })
	}
	return e
}

// Encoder returns the encoder of a media type and projection.
func (v *Version) Encoder(media MediaType, projection Projection) *Encoder {
	return v.encoders[media][projection]
}

// Converts reports whether making an item may call a webhook.
func (v *Version) Converts() bool { return v.Codec.Converts() && !v.Codec.custom.onlyVersion }

// ConvertsAny reports whether making the items of objects may call a webhook.
func (v *Version) ConvertsAny(objects []*cache.Object) bool {
	return v.Converts() && slices.ContainsFunc(objects, func(o *cache.Object) bool { return o.Err() == nil && !v.Codec.custom.stores(o.Head()) })
}

// MediaType is the media type of an encoding. YAML and indented JSON are made from JSON.
type MediaType uint8

// The media types of cached encodings.
const (
	JSON MediaType = iota
	Protobuf
)

// Projection is the part of an object that is sent.
type Projection uint8

// The projections that an [Encoder] writes. Tables are made by package table.
const (
	Full           Projection = iota
	Partial                   // PartialObjectMetadata of meta.k8s.io/v1
	PartialV1beta1            // PartialObjectMetadata of meta.k8s.io/v1beta1
)

const (
	mediaTypes  = 2
	projections = 3
)

// partialKind describes lists of PartialObjectMetadata. Upstream builds them from a nil
// slice, so that an empty one has null for its items, and gives each item its kind
// (apiserver pkg/endpoints/handlers/response.go).
func partialKind(projection Projection) wire.Kind {
	kind := wire.Kind{
		APIVersion: metav1.SchemeGroupVersion.String(),
		Kind:       "PartialObjectMetadata",
		ListKind:   "PartialObjectMetadataList",
		Partial:    true,
	}
	if projection == PartialV1beta1 {
		kind.APIVersion, kind.ItemsFirst = metav1beta1.SchemeGroupVersion.String(), true
	}
	return kind
}

// Numbers of encodings among the encodings of one resource's objects. Versions share the encodings of
// PartialObjectMetadata, which are the same in every version of a built-in kind.
const (
	partialIDs = 1 // after the canonical encoding; media type and projection of PartialObjectMetadata follow
	versionIDs = partialIDs + mediaTypes*(projections-1)
	maxIDs     = 1 << 16
)
