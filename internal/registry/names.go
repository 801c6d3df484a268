package registry

import (
	"github.com/larder-io/larder/cache"
	"github.com/larder-io/larder/internal/registry/encoding"
	"github.com/larder-io/larder/internal/registry/table"
)

// The names below are those of packages encoding and table, for packages that serve what
// a View gives out.

// Form is one way in which the objects of a View leave.
type Form = encoding.Encoder

// Source gives the items of a list of objects.
type Source = encoding.Source

// MediaType is what bytes are written in.
type MediaType = encoding.MediaType

// Shape is how much of an object a reader asked for.
type Shape = encoding.Projection

// What readers ask for.
const (
	JSON     = encoding.JSON
	Protobuf = encoding.Protobuf

	Full           = encoding.Full
	Partial        = encoding.Partial
	PartialV1beta1 = encoding.PartialV1beta1

	Ahead = encoding.Ahead
)

// Rows is a table that is written from kept rows.
type Rows = table.Rows

// BodyBytes estimates the size of the canonical encodings of objects.
func BodyBytes(objects []*cache.Object) int64 { return encoding.BodyBytes(objects) }

// Form returns the way in which objects leave in media and shape.
func (v *View) Form(media MediaType, shape Shape) *Form { return v.Encoder(media, shape) }
