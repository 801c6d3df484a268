package relay

import (
	"sync"
	"sync/atomic"
)

// history checks that the upstream's revisions only grow. A consistent response has at least the revision of every
// response and event seen before its request; one with a lower revision comes from a restored etcd.
type history struct {
	replacements atomic.Uint64
	replaced     atomic.Int64 // highest revision of the histories that were replaced

	mu       sync.Mutex
	revision int64 // highest that was shown
}

// historyMark is the known history when a request began.
type historyMark struct {
	replacements uint64
	revision     int64
}

func (h *history) mark() historyMark {
	h.mu.Lock()
	defer h.mu.Unlock()
	return historyMark{h.replacements.Load(), h.revision}
}

// observe records the revision of a consistent response. It reports whether that is the first response of
// another history.
func (h *history) observe(mark historyMark, revision int64) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	switch {
	case h.replacements.Load() != mark.replacements: // the response may be of either history
		return false
	case revision >= mark.revision:
		h.revision = max(h.revision, revision)
		return false
	}
	h.replaced.Store(max(h.replaced.Load(), h.revision))
	h.revision = revision
	h.replacements.Add(1)
	return true
}

// raise records a revision that a watch has delivered, unless the history was replaced since the watch began.
func (h *history) raise(replacements uint64, revision int64) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.replacements.Load() == replacements {
		h.revision = max(h.revision, revision)
	}
}
