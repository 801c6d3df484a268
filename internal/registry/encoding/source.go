package encoding

import (
	"bytes"
	"context"

	"github.com/larder-io/larder/cache"
	"github.com/larder-io/larder/internal/registry/wire"
)

// ItemSource makes the items of a list of objects, and caches as many as the budget allows. If the budget is too small
// for all, it always caches the same subset, so that items of one list do not evict each other. It caches no items that
// are cheap to make.
type ItemSource struct {
	*Encoder
	share uint64 // of the objects whose items are cached, in parts of allObjects
}

const allObjects = 1 << 16

// Source returns the source of the items of objects.
func (e *Encoder) Source(objects []*cache.Object) ItemSource {
	limit := e.codec.Schema.Budget().Limit()
	if e.Sliced() || limit <= 0 {
		return ItemSource{e, allObjects}
	}
	need := encodedSize(estimate(objects, e.canonicalSize))
	if need <= limit {
		return ItemSource{e, allObjects}
	}
	return ItemSource{e, max(1, uint64(float64(limit)/float64(need)*allObjects*7/8))}
}

// encodedSize estimates the size of an item that is made from canonical bytes: JSON is about half as large again.
func encodedSize(canonical int64) int64 { return canonical / 2 * 3 }

// Uncached returns a source that caches no items.
func (e *Encoder) Uncached() ItemSource { return ItemSource{e, 0} }

// caches reports whether the item of o belongs to the cached subset.
func (s ItemSource) caches(o *cache.Object) bool {
	// Knuth's multiplicative hash: consecutive revisions are spread evenly.
	return s.share == allObjects || uint64(o.Revision())*0x9e3779b97f4a7c15>>48 < s.share
}

// Cached returns the item of o if it is cached or a part of the canonical bytes.
func (s ItemSource) Cached(o *cache.Object) ([]byte, bool) {
	if _, packed := s.PackedSize(o); packed {
		return nil, false
	}
	if s.Sliced() {
		item, err := s.Encoder.Item(context.Background(), o) // a part of the canonical bytes
		return item, err == nil
	}
	if s.whole(o) {
		return o.Body(), true
	}
	return o.Kept(s.ID)
}

// Item returns the item of o: shared bytes or new ones. Do not write to them. It ends with ctx as [Encoder.Item] does.
func (s ItemSource) Item(ctx context.Context, o *cache.Object) ([]byte, error) {
	if _, packed := s.PackedSize(o); packed || s.caches(o) {
		return s.Encoder.Item(ctx, o)
	}
	if item, ok := s.Cached(o); ok || o.Err() != nil {
		return item, o.Err()
	}
	s.refuse()
	if s.converts(o) {
		return s.converted(ctx, o, s.encode)
	}
	return s.encode(o)
}

// refuse counts an item that is not cached because of the budget.
func (s ItemSource) refuse() {
	if s.share > 0 {
		s.codec.Schema.CountRefused()
	}
}

// Next returns the item of o as shared bytes, or appends it to dst. Then shared is nil, and grown is dst with the
// item. If the budget is too small for all items, Next does not cache items that are copied from templates: copying
// costs little more than reading a cached item (L21).
func (s ItemSource) Next(dst []byte, o *cache.Object) (shared, grown []byte, err error) {
	if o.Err() != nil {
		return nil, dst, o.Err()
	}
	if _, packed := s.PackedSize(o); packed {
		return nil, o.AppendBody(dst), nil
	}
	if item, ok := s.Cached(o); ok {
		return item, dst, nil
	}
	before := len(dst)
	dst, cheap, err := s.append(dst, o)
	switch {
	case err != nil || cheap && s.share < allObjects:
		return nil, dst, err
	case !s.caches(o) || !s.hasRoom(o):
		s.refuse()
		return nil, dst, nil
	}
	_, err = o.Encoding(s.ID, func(*cache.Object) ([]byte, error) { return bytes.Clone(dst[before:]), nil })
	return nil, dst, err
}

// hasRoom reports whether the budget has room for the item of o.
func (e *Encoder) hasRoom(o *cache.Object) bool {
	return e.codec.Schema.Budget().MakeRoom(encodedSize(int64(e.canonicalSize(o))))
}

// canonicalSize returns the size of the canonical bytes from which the item of o is made.
func (e *Encoder) canonicalSize(o *cache.Object) int {
	part, err := []byte(nil), error(nil)
	switch {
	case e.projection == Full:
		return o.Size()
	case e.codec.custom != nil:
		part, err = wire.MetadataJSON(o.Head())
	default:
		part, err = wire.PartialProtobuf(o.Body())
	}
	if err != nil {
		return o.Size()
	}
	return len(part)
}

// BodyBytes estimates the size of the canonical encodings of objects.
func BodyBytes(objects []*cache.Object) int64 {
	return estimate(objects, (*cache.Object).Size)
}

// estimate estimates the total size of objects from the sizes of a few.
func estimate(objects []*cache.Object, size func(*cache.Object) int) int64 {
	const samples = 64
	sum, n, step := 0, 0, max(1, len(objects)/samples)
	for i := 0; i < len(objects); i += step {
		sum += size(objects[i])
		n++
	}
	return int64(sum) * int64(len(objects)) / int64(max(1, n))
}
