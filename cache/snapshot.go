package cache

import "iter"

// Snapshot has all objects of a resource at one revision. It is a small value, immutable and safe for concurrent use.
// It keeps its objects in memory.
type Snapshot struct {
	state    *state
	revision int64
}

// Snapshot returns the current state. It takes no lock and never waits.
func (c *Cache) Snapshot() Snapshot {
	s, exactTo := c.present()
	return Snapshot{state: s, revision: exactTo}
}

// present returns the present state and the newest revision it is exact for.
func (c *Cache) present() (*state, int64) {
	if c.config.Source == nil {
		s := c.current.Load()
		return s, s.exactTo
	}
	// Load the state after fresh: everything up to fresh was already applied when fresh was read. A state loaded before
	// could lack a change that fresh includes.
	epoch := c.current.Load().epoch
	fresh := c.config.Source.Fresh()
	s := c.current.Load()
	if s.epoch != epoch {
		// fresh may be of the previous epoch, and so of a replaced store.
		return s, s.exactTo
	}
	return s, max(s.exactTo, fresh)
}

// Revision returns the newest revision at which the snapshot is known to be exact.
func (s Snapshot) Revision() int64 { return s.revision }

// Position returns the position at which the Log continues.
func (s Snapshot) Position() Position { return s.state.position }

// Epoch returns how often the cache was loaded; 0 means never.
func (s Snapshot) Epoch() uint64 { return s.state.epoch }

// History returns the [kv.Store].Replacements of the load. If the store's count differs, the snapshot may show objects
// that the current store never held.
func (s Snapshot) History() uint64 { return s.state.history }

// Len returns the number of objects.
func (s Snapshot) Len() int { return s.state.objects.Len() }

// Bytes returns the total size of all bodies.
func (s Snapshot) Bytes() int64 { return s.state.bytes }

// StoredBytes returns the total size of all values in the store.
func (s Snapshot) StoredBytes() int64 { return s.state.stored }

// All returns every object in key order, corrupt ones too.
func (s Snapshot) All() iter.Seq[*Object] {
	return func(yield func(*Object) bool) { s.state.objects.Ascend(yield) }
}

// Get returns the object with a key, or nil. It may be corrupt: see Object.Err.
func (s Snapshot) Get(key string) *Object { return s.state.get(key) }
