package encoding

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	metav1beta1 "k8s.io/apimachinery/pkg/apis/meta/v1beta1"

	"github.com/larder-io/larder/internal/registry/wire"
)

// MediaType is the media type of an encoding. YAML is made from JSON bodies with
// [wire.YAML], pretty-printed JSON with [wire.Pretty].
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
		Typed:      true,
		NullItems:  true,
	}
	if projection == PartialV1beta1 {
		kind.APIVersion, kind.ItemsFirst = metav1beta1.SchemeGroupVersion.String(), true
	}
	return kind
}
