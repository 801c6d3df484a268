package encoding

import (
	"fmt"
	"sync"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/larder-io/larder/internal/registry/transcode"
	"github.com/larder-io/larder/internal/registry/wire"
)

// Version is one served version of a resource, with its encoders. It is immutable.
type Version struct {
	GVK      schema.GroupVersionKind
	ListKind string

	codec    *Codec
	encoders [mediaTypes][projections]*Encoder
	rows     ID
}

// NewVersion adds a served version to the resource of c. For a custom resource, c is the Codec of that
// version. Versions are added before the resource is read.
func (c *Codec) NewVersion(gvk schema.GroupVersionKind, listKind string) (*Version, error) {
	own := mediaTypes // encodings that it does not share with other versions
	if c.custom != nil {
		own *= projections
	}
	first, err := c.numbers.take(own + 1) // one more for the rows of tables
	if err != nil {
		return nil, fmt.Errorf("%s: %w", c.groupResource, err)
	}
	v := &Version{GVK: gvk, ListKind: listKind, codec: c, rows: first + ID(own)}
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
func (v *Version) newEncoder(media MediaType, projection Projection, first ID) *Encoder {
	e := &Encoder{codec: v.codec, gvk: v.GVK, media: media, projection: projection}
	kind := wire.Kind{APIVersion: v.GVK.GroupVersion().String(), Kind: v.GVK.Kind, ListKind: v.ListKind}
	custom := v.codec.custom != nil
	switch {
	case custom:
		e.id = first + ID(media)*projections + ID(projection)
	case projection == Full:
		e.id = first + ID(media)
	default:
		e.id = partialIDs + ID(media)*(projections-1) + ID(projection-Partial)
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
		e.plan = sync.OnceValue(func() *transcode.Plan { return v.codec.planOf(v.GVK.GroupVersion(), projection) })
	}
	return e
}

// Encoder returns the encoder of a media type and projection.
func (v *Version) Encoder(media MediaType, projection Projection) *Encoder {
	return v.encoders[media][projection]
}

// Codec returns the Codec of the version.
func (v *Version) Codec() *Codec { return v.codec }

// RowID returns the ID of table rows among the encodings of an object.
func (v *Version) RowID() ID { return v.rows }

// Converts reports whether making an item may take a webhook.
func (v *Version) Converts() bool { return v.codec.Converts() && !v.codec.custom.onlyVersion }
