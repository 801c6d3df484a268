package registry

import (
	"context"

	"reflect"
	"time"

	"k8s.io/apimachinery/pkg/runtime"

	"github.com/larder-io/larder/cache"
	"github.com/larder-io/larder/internal/registry/wire"
)

// Stored encodes obj as it would be stored.
func (r *Resource) Stored(obj runtime.Object) ([]byte, error) {
	return (&store{r, r.codec}).stored(obj)
}

// Read decodes a stored value as upstream's storages give it to a reader.
func (r *Resource) Read(value []byte, revision int64) (runtime.Object, error) {
	obj := r.codec.newFunc()
	if err := r.codec.decodeStored(value, obj, revision); err != nil {
		return nil, err
	}
	if r.codec.decorate != nil {
		r.codec.decorate(obj)
	}
	return obj, nil
}

// Ingest makes the cache's object of a stored value.
func (r *Resource) Ingest(rest string, value []byte, revision int64) *cache.Object {
	return r.codec.ingest(context.Background(), r.schema, r.layout.root+rest, rest, value, revision)
}

// Decode decodes a cached object for a caller of its own.
func (r *Resource) Decode(o *cache.Object) (runtime.Object, error) { return r.codec.internal(o, 0) }

// NewObject and NewList make empty objects of the resource.
func (r *Resource) NewObject() runtime.Object { return r.codec.newFunc() }
func (r *Resource) NewList() runtime.Object   { return r.codec.newListFunc() }

// BookmarkObject is the object of a bookmark.
func (r *Resource) BookmarkObject(revision int64, initialEnd bool) (runtime.Object, error) {
	return r.codec.bookmark(revision, initialEnd)
}

// Times finds the times in obj, and says whether these are all.
func Times(obj any) ([]*time.Time, bool) {
	return newTimeFinder(obj).find(reflect.ValueOf(obj), nil)
}

// RowKept reports whether the row of o can be kept.
func (v *View) RowKept(o *cache.Object) (bool, error) {
	row, err := v.row(o)
	return err == nil && row[0]&rowVolatile == 0, err
}

// IngestLong is Ingest that decodes whatever comes.
func (r *Resource) IngestLong(rest string, value []byte, revision int64) *cache.Object {
	shapes := r.codec.shapes
	defer func() { r.codec.shapes = shapes }()
	r.codec.shapes = nil
	return r.Ingest(rest, value, revision)
}

// ShapeLayout is the Layout of the resource's stored values after their magic
// number, nil if they have no shapes.
func (r *Resource) ShapeLayout() *wire.Fields {
	if r.codec.shapes == nil {
		return nil
	}
	return r.codec.shapes.layout
}

// Shapes counts the values whose shape was known, and those whose was not.
func (r *Resource) Shapes() (hits, misses uint64) {
	return r.codec.shapes.hits.Load(), r.codec.shapes.misses.Load()
}

// ItemAt returns o as an item with revision in place of its own, as a DELETED
// event shows it. The bytes are shared only if the revisions are equal.
func (f *Form) ItemAt(o *cache.Object, revision int64) ([]byte, error) {
	item, err := f.Item(o)
	if err != nil || revision == o.Revision() {
		return item, err
	}
	return f.AppendRevision(make([]byte, 0, len(item)+20), item, revision)
}

// Budget is what bounds the resource's encodings.
func (r *Resource) Budget() *cache.Budget { return r.schema.Budget() }
