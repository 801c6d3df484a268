package cache

import "sync"

const (
	maxOffers     = 1024
	maxOfferBytes = 16 << 20
)

// offers holds the objects of writes until the store's watch delivers their events, so that
// they need not be decoded. Losing one costs a decode.
type offers struct {
	mu sync.Mutex // guards all below

	history uint64 // of the store, see Snapshot.History; the same for all
	objects map[offerID]*Object
	order   []offerID // oldest first; may name offers already taken
	bytes   int       // of all bodies in objects
}

type offerID struct {
	key      string
	revision int64
}

// Offer takes the Object of a write that succeeded: the state of a key at a revision,
// exactly as Decode would make it from the stored bytes. A Reflector uses it instead of
// Decode. history is how often the store had been replaced, both before and after the
// write. An offer that comes late, is of another history or one too many is dropped.
func (c *Cache) Offer(key string, revision int64, history uint64, o *Object) {
	c.offers.put(offerID{key, revision}, o, c.current.Load().revision, history)
}

func (f *offers) put(id offerID, o *Object, applied int64, history uint64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if id.revision <= applied || history != f.history {
		return
	}
	if f.objects == nil {
		f.objects = make(map[offerID]*Object)
	}
	f.dropLocked(id)
	f.objects[id] = o
	f.bytes += len(o.body)
	f.order = append(f.order, id)
	for len(f.order) > 0 {
		oldest := f.order[0]
		within := len(f.objects) <= maxOffers && f.bytes <= maxOfferBytes && len(f.order) <= 2*maxOffers
		if within && oldest.revision > applied {
			break
		}
		f.dropLocked(oldest)
		f.order = f.order[1:]
	}
}

// take removes the offer for a key at a revision, and returns it or nil.
func (f *offers) take(key string, revision int64) *Object {
	f.mu.Lock()
	defer f.mu.Unlock()
	id := offerID{key, revision}
	o := f.objects[id]
	f.dropLocked(id)
	return o
}

// clear drops all offers. From now on it refuses those of other histories than the given
// one, where the same revisions mean something else.
func (f *offers) clear(history uint64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.objects, f.order, f.bytes, f.history = nil, nil, 0, history
}

func (f *offers) dropLocked(id offerID) {
	if o := f.objects[id]; o != nil {
		f.bytes -= len(o.body)
		delete(f.objects, id)
	}
}
