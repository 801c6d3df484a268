package relay

import (
	"cmp"
	"slices"
	"sync"
	"time"
)

const (
	// rejectedFor is how long requests go through for a resource that has no room or may not be watched.
	rejectedFor = 5 * time.Minute
	// unreadFor is the time without a read after which a resource makes room first.
	unreadFor = time.Minute
)

// MemoryLimit limits the bytes of the objects that relays hold together. Relays are added to it before they run.
type MemoryLimit struct {
	limit  int64 // 0 means no limit
	relays []*Relay

	mu sync.Mutex // orders makeRoom; Relay.mu is locked under it
}

// NewMemoryLimit returns a MemoryLimit of limit bytes; 0 sets no limit.
func NewMemoryLimit(limit int64) *MemoryLimit { return &MemoryLimit{limit: limit} }

// The order in which resources have to make room.
const (
	tooLarge = iota // for the limit, even without other resources
	unread
	loading
	inUse
)

// candidate is a resource that may have to make room.
type candidate struct {
	*followed
	relay       *Relay
	bytes       int64
	class, then int64 // the sort key: class first
}

// makeRoom stops following resources until the others are within the limit: first unread ones by the time of their
// last read, then others by size.
func (m *MemoryLimit) makeRoom() {
	if m.limit == 0 {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	all, total := m.candidates()
	slices.SortFunc(all, func(a, b candidate) int { return cmp.Or(cmp.Compare(a.class, b.class), cmp.Compare(a.then, b.then)) })
	for _, c := range all {
		if total <= m.limit {
			return
		}
		if c.gvr == crdResource() { // without which custom resources are not followed
			continue
		}
		c.relay.config.Logger.Warn("no room for a resource, its requests go through", "resource", c.gvr, "bytes", c.bytes)
		c.rejected.Store(true)
		c.cancel()
		total -= c.bytes
	}
}

// candidates returns the resources that have a cache, and the sum of their bytes.
func (m *MemoryLimit) candidates() (all []candidate, total int64) {
	for _, r := range m.relays {
		for _, f := range r.cached() {
			c := candidate{followed: f, relay: r, bytes: f.bytes(), class: inUse}
			c.then = -c.bytes
			switch {
			case c.bytes > m.limit:
				c.class = tooLarge
			case !f.stored().Ready():
				c.class = loading
			case f.idle(unreadFor):
				c.class, c.then = unread, f.lastUsed.Load()
			}
			all = append(all, c)
			total += c.bytes
		}
	}
	return all, total
}

// bytes returns the size of the objects that f, which has a cache, holds.
func (f *followed) bytes() int64 {
	if !f.stored().Ready() {
		return f.loaded.Load()
	}
	return f.stored().Cache.Snapshot().Bytes()
}
