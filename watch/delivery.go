package watch

import (
	"fmt"

	"github.com/larder-io/larder/cache"
)

// EventType is the kind of a Delivery.
type EventType uint8

// The types of deliveries.
const (
	// Added is an object that the filter did not select before the change.
	Added EventType = iota + 1
	// Modified is an object that the filter selected before and selects now.
	Modified
	// Deleted is an object that was deleted, or is no longer selected.
	Deleted
	// Bookmark says that everything up to a revision has been delivered.
	Bookmark
	// InitialEnd is the bookmark that ends the initial objects.
	InitialEnd

	// corrupt replaces an event whose object cannot be decoded. It is never delivered: a Watcher that reaches it ends.
	corrupt
)

var typeNames = [...]string{"NONE", "ADDED", "MODIFIED", "DELETED", "BOOKMARK", "INITIAL-END", "CORRUPT"}

// String returns the name of the type. Added, Modified, Deleted and Bookmark have
// the names of Kubernetes' watch protocol.
func (t EventType) String() string {
	if int(t) < len(typeNames) {
		return typeNames[t]
	}
	return fmt.Sprintf("EventType(%d)", uint8(t))
}

// Delivery is one event as a Watcher delivers it: an initial object, a change or a
// bookmark. It is immutable.
type Delivery struct {
	// Type is the kind of the delivery.
	Type EventType

	// Object is the object after the change, or before it for Deleted. It is nil
	// for bookmarks.
	Object *cache.Object

	// Revision is the resourceVersion for the client. For Added and Modified it is the object's, for Deleted the
	// event's. For a bookmark it is the revision up to which everything was delivered.
	Revision int64

	// event is the source of the delivery; nil for initial objects and bookmarks.
	event *cache.Event
}

// Prev returns the object before the change, nil if there was none, for initial objects and for bookmarks.
func (d Delivery) Prev() *cache.Object {
	if d.event == nil {
		return nil
	}
	return d.event.Prev
}

// Shared reports whether all watchers that deliver the same event share its [Delivery.Frame]. If not,
// the caller should write the frame straight to its destination.
func (d Delivery) Shared() bool { return d.event != nil }

// Frame returns the bytes of the delivery in the encoding enc, as made by build. They may depend only on the delivery
// and on enc, because all watchers that deliver the same event in the same encoding share them. The frame of an event
// is built once; frames of initial objects and bookmarks are built at each call. Errors are not kept.
func (d Delivery) Frame(enc cache.EncodingID, build func(Delivery) ([]byte, error)) ([]byte, error) {
	if d.event == nil {
		return build(d)
	}
	key := cache.FrameKey(d.Type)<<16 | cache.FrameKey(enc)
	return d.event.Frame(key, func() ([]byte, error) { return build(d) })
}
