package watch

import "github.com/larder-io/larder/cache"

// shardPage is how many objects of a shard are listed at once. They lie far apart, and finding the start of a page in
// the tree reads keys that are not in the processor's cache (S1).
const shardPage = 1024

// replay is a cursor in a Snapshot. It holds at most one page of objects.
type replay struct {
	snapshot cache.Snapshot
	query    cache.Query // of the next page
	key      string      // of the only object; "" if there may be more
	page     []*cache.Object
	pending  []*cache.Object // the part of page that is not delivered
	last     bool            // page is the last
	done     bool
	outside  uint64 // scanned objects that are not in the shard
}

// newReplay returns a cursor at the first object in the scope of f.
func newReplay(snapshot cache.Snapshot, f *filter) *replay {
	r := &replay{snapshot: snapshot}
	r.query = cache.Query{Label: f.label, Field: f.field, Shard: f.shard, OmitRemaining: true}
	if f.namespace != "" {
		r.query.Prefix = f.namespace + "/"
	}
	if f.name != "" {
		// The name is the key if objects have no namespace.
		if key := r.query.Prefix + f.name; f.namespace != "" || r.snapshot.Get(key) != nil {
			r.key = key
		}
	}
	return r
}

// poll appends objects in key order until dst is full or a page has ended.
func (r *replay) poll(f *filter, dst []Delivery, full int) ([]Delivery, error) {
	if r.key != "" {
		r.done = true
		return r.pollOne(f, dst)
	}
	if len(r.pending) == 0 {
		r.query.Limit = full - len(dst)
		if f.shard != nil {
			r.query.Limit = max(r.query.Limit, shardPage)
		}
		page, err := r.snapshot.List(r.query, r.page[:0])
		if err != nil {
			return dst, err
		}
		r.page, r.pending = page.Objects, page.Objects
		r.query.From, r.last = page.Next, page.Next == ""
		r.outside += uint64(page.OutsideShard)
	}
	some := r.pending[:min(len(r.pending), full-len(dst))]
	for _, o := range some {
		if f.inScope(o) {
			dst = append(dst, added(o))
		}
	}
	r.pending = r.pending[len(some):]
	r.done = r.last && len(r.pending) == 0
	return dst, nil
}

// pollOne appends the only object, if it is selected.
func (r *replay) pollOne(f *filter, dst []Delivery) ([]Delivery, error) {
	o := r.snapshot.Get(r.key)
	switch {
	case o == nil:
		return dst, nil
	case o.Err() != nil:
		return dst, &cache.CorruptError{Object: o}
	case !f.selects(o):
		if f.shard != nil && !f.shard.Matches(o) {
			r.outside++
		}
		return dst, nil
	}
	return append(dst, added(o)), nil
}

// added returns the delivery of an initial object.
func added(o *cache.Object) Delivery {
	return Delivery{Type: Added, Object: o, Revision: o.Revision()}
}
