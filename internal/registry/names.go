package registry

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/larder-io/larder/cache"
	"github.com/larder-io/larder/internal/registry/builtin"
	"github.com/larder-io/larder/internal/registry/encoding"
	"github.com/larder-io/larder/internal/registry/storage"
	"github.com/larder-io/larder/internal/registry/table"
)

// The names below are those of the packages that the Registry is made of, so that those who
// serve what a View gives out need to know this package alone.

// A Resource is what a View reads from, and the others are what it is asked and answers:
// see package storage.
type (
	Resource     = storage.Resource
	Scope        = storage.Scope
	ListRequest  = storage.ListRequest
	Listing      = storage.Listing
	WatchRequest = storage.WatchRequest
	StreamError  = storage.StreamError
)

// WatchStatus is what an ERROR event says of err.
func WatchStatus(err error) *metav1.Status { return storage.WatchStatus(err) }

// ReserveStack makes the goroutine's stack large enough for a write, at once.
func ReserveStack() { storage.ReserveStack() }

// Form is an encoding.Encoder: one way in which the objects of a View leave.
type Form = encoding.Encoder

// Source gives the items of a list of objects.
type Source = encoding.Source

// MediaType is what bytes are written in.
type MediaType = encoding.MediaType

// Shape is an encoding.Projection: how much of an object a reader asked for.
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

// Priority is where a version stands in discovery.
type Priority = builtin.Priority

// Priorities returns those of all versions that a server may have built in.
func Priorities() map[schema.GroupVersion]Priority { return builtin.Priorities() }

// Leases tells which API servers of the cluster are alive.
type Leases = builtin.Leases
