package cache

import (
	"bytes"
	"slices"
	"sync"
)

const (
	maxOffers     = 1024
	maxOfferBytes = 16 << 20
)

// Offer is the Object that a write has already made from the value it stores. The event with the same
// value adopts it, which saves a decode. A write makes its offer before it is sent, because its
// event may arrive before its response.
type Offer struct {
	offers *offers
	key    string
	size   int
	object func(revision int64) *Object

	once   sync.Once
	made   *Object // by object, for revision madeAt; written by once
	madeAt int64

	// The fields below are guarded by offers.mu.
	value    []byte // nil after the offer was taken or dropped
	revision int64  // of the write, once it is known to have succeeded
}

// Object returns the Object of o's write at revision, the same that the cache gets from the offer. It returns nil if
// the Object cannot be made, or was made for another revision.
func (o *Offer) Object(revision int64) *Object {
	o.once.Do(func() { o.made, o.madeAt = o.object(revision), revision })
	if o.madeAt != revision {
		return nil
	}
	return o.made
}

// offers holds the offers of writes until the store's watch delivers their events. Losing one costs a decode.
type offers struct {
	mu sync.Mutex // guards all below, and the offers' own fields

	order []*Offer // oldest first, at most maxOffers
	bytes int      // of the offers in order
	taken []*Offer // by events that are not applied yet; some may be dropped
}

// Offer announces that value is about to be written to key. object returns the Object that Decode would make of value.
// When a Reflector receives the same bytes for that key, it calls object instead of Decode, at most once and with the
// revision of the event. If object returns nil, the Reflector calls Decode. Another client's write of the same bytes
// may take the offer, because the object is the same.
//
// The value must not be written to afterwards. size is about how many bytes the offer keeps alive. The caller must call
// Written if the write succeeds, and Withdraw if it fails or its outcome stays unknown. If there are too many offers,
// the oldest is dropped.
func (c *Cache) Offer(key string, value []byte, size int, object func(revision int64) *Object) *Offer {
	o := &Offer{offers: &c.offers, key: key, size: size, value: value, object: object}
	c.offers.put(o)
	return o
}

// Written records that the write of o has succeeded at a revision. The cache keeps o until the event is applied.
func (c *Cache) Written(o *Offer, revision int64) {
	if revision <= c.current.Load().revision {
		o.Withdraw()
		return
	}
	o.offers.mu.Lock()
	defer o.offers.mu.Unlock()
	o.revision = revision
}

// Unapplied returns the Object of the newest write of key that has succeeded and whose event is not yet
// applied, nil if there is none. The key may have changed since: a write that begins with the Object must
// compare its revision. A caller that compares the Object with a Snapshot takes the Snapshot afterwards,
// because the event may be applied in between.
func (c *Cache) Unapplied(key string) *Object {
	o, revision := c.offers.unapplied(key)
	if o == nil {
		return nil
	}
	return o.Object(revision)
}

// Withdraw drops the offer of a write that failed or whose outcome is unknown.
func (o *Offer) Withdraw() {
	o.offers.mu.Lock()
	defer o.offers.mu.Unlock()
	o.offers.dropLocked(o)
}

func (f *offers) put(o *Offer) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.order = append(f.order, o)
	f.bytes += o.size
	for len(f.order) > maxOffers || f.bytes > maxOfferBytes {
		f.dropLocked(f.order[0])
	}
}

// unapplied returns the offer of the newest write of key that is known to have succeeded, and its
// revision.
func (f *offers) unapplied(key string) (newest *Offer, revision int64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, o := range f.order {
		if o.key == key && o.revision > revision {
			newest, revision = o, o.revision
		}
	}
	return newest, revision
}

// take returns the offer of value for key, or nil. The event at revision takes it: no other
// event can, but Unapplied still returns it until applied is called.
func (f *offers) take(key string, value []byte, revision int64) *Offer {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, o := range f.order {
		if o.key == key && o.value != nil && bytes.Equal(o.value, value) {
			o.value, o.revision = nil, revision
			f.taken = append(f.taken, o)
			return o
		}
	}
	return nil
}

// applied drops the offers that were taken by events up to revision.
func (f *offers) applied(revision int64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.taken = slices.DeleteFunc(f.taken, func(o *Offer) bool {
		if o.revision > revision {
			return false
		}
		f.dropLocked(o)
		return true
	})
}

func (f *offers) clear() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.order, f.taken, f.bytes = nil, nil, 0
}

func (f *offers) dropLocked(o *Offer) {
	at := slices.Index(f.order, o)
	if at < 0 {
		return
	}
	f.order = slices.Delete(f.order, at, at+1)
	f.bytes -= o.size
	o.value = nil
}
