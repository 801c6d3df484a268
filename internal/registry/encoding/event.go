package encoding

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/larder-io/larder/cache"
	"github.com/larder-io/larder/internal/invariants"
	"github.com/larder-io/larder/internal/registry/wire"
)

// AppendEvent appends the frame of an event with o. It caches the item if there is room: other watches
// may begin with the same objects.
func (e *Encoder) AppendEvent(dst []byte, event string, o *cache.Object) ([]byte, error) {
	return e.framed(dst, event, o, ItemSource{e, allObjects}, o.Revision())
}

// AppendEventAt appends the frame of an event with o at another revision, as in a DELETED event.
func (e *Encoder) AppendEventAt(dst []byte, event string, o *cache.Object, revision int64) ([]byte, error) {
	return e.framed(dst, event, o, e.Uncached(), revision)
}

func (e *Encoder) framed(dst []byte, event string, o *cache.Object, from ItemSource, revision int64) ([]byte, error) {
	buffer := buffers.Get().(*[]byte)
	defer putBuffer(buffer)
	item, grown, err := from.Next((*buffer)[:0], o)
	*buffer = grown[:0]
	if err != nil {
		return dst, err
	}
	if item == nil {
		item = grown
	}
	if revision != o.Revision() {
		start := len(grown)
		if grown, err = e.AppendRevision(grown, item, revision); err != nil {
			return dst, err
		}
		item, *buffer = grown[start:], grown[:0]
	}
	return e.AppendFrame(dst, event, item), nil
}

// AppendBookmark appends a BOOKMARK event. Its object has only a revision and, at the end of the initial
// events, an annotation.
func (e *Encoder) AppendBookmark(dst []byte, revision int64, initialEnd bool) ([]byte, error) {
	made := e.bookmark
	if initialEnd {
		made = e.initialEnd
	}
	b, err := made()
	if err != nil {
		return dst, err
	}
	b.seal.Check(b.item, "encoding: the item of bookmarks")
	item, err := e.AppendRevision(make([]byte, 0, len(b.item)+wire.MaxRevision), b.item, revision)
	if err != nil {
		return dst, err
	}
	return e.AppendFrame(dst, "BOOKMARK", item), nil
}

// makeBookmark makes the item of a bookmark of some revision.
func (e *Encoder) makeBookmark(initialEnd bool) (bookmark, error) {
	obj, err := e.codec.Bookmark(1, initialEnd)
	if err != nil {
		return bookmark{}, err
	}
	item, err := e.itemOf(obj)
	return bookmark{invariants.SealOf(item), item}, err
}

// AppendError appends an ERROR event with status.
func (e *Encoder) AppendError(dst []byte, status *metav1.Status) ([]byte, error) {
	kind := wire.Kind{APIVersion: "v1", Kind: "Status"}
	bare := *status
	bare.TypeMeta = metav1.TypeMeta{}
	item, err := e.marshal(&bare)
	if err != nil {
		return dst, err
	}
	if e.MediaType == Protobuf {
		return wire.Protobuf(kind).AppendFrame(dst, "ERROR", item), nil
	}
	return wire.JSON(kind).AppendFrame(dst, "ERROR", item), nil
}
