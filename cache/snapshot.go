package cache

import "iter"

// Snapshot is the resource at one revision. It is a small value, immutable and
// safe for concurrent use. It keeps its objects in memory.
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
	// The order matters: everything up to fresh was applied before it was read, so
	// the state loaded afterwards holds it. The other way round, the state could
	// miss a change that fresh already counts.
	epoch := c.current.Load().epoch
	fresh := c.config.Source.Fresh()
	s := c.current.Load()
	if s.epoch != epoch {
		// Fresh may be of the epoch before, which may have ended with the store's history.
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

// History returns how often the store had been replaced when the cache was loaded from it
// ([kv.Store].Replacements). If the store's count differs, the snapshot may show objects that
// the current store never held.
func (s Snapshot) History() uint64 { return s.state.history }

// Len returns the number of objects.
func (s Snapshot) Len() int { return s.state.objects.Len() }

// Bytes returns the size of all bodies together.
func (s Snapshot) Bytes() int64 { return s.state.bytes }

// Stored returns the size of all values together in the store.
func (s Snapshot) Stored() int64 { return s.state.stored }

// All returns every object in key order, corrupt ones too.
func (s Snapshot) All() iter.Seq[*Object] {
	return func(yield func(*Object) bool) { s.state.objects.Ascend(yield) }
}

// Get returns the object with a key, or nil. It may be corrupt: see Object.Err.
func (s Snapshot) Get(key string) *Object { return s.state.get(key) }
