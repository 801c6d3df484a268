package storage

import (
	"sync"

	"github.com/larder-io/larder/kv"
)

// maxHanded is how many revisions are remembered: enough for a client that takes long to
// read a list while many others are asked for.
const maxHanded = 1 << 14

// handed are the revisions that lists were given out with since the store was replaced,
// and those that watches had come to when they ended, as far as the history that is lost
// had revisions of the same numbers. Who comes with one of those may mean either, unless
// it was given out here. What watches told before their last is not remembered: nobody
// goes on there, but for who missed the end, and the fewer revisions are believed, the
// fewer of the lost history are.
type handed struct {
	store kv.Store

	mu sync.Mutex

	history uint64 // the store's that all are of
	// revisions and order hold the same, order the oldest first.
	revisions map[int64]struct{}
	order     []int64
}

// add takes in a revision of a history.
func (h *handed) add(history uint64, revision int64) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.history != history || h.revisions == nil {
		h.history, h.revisions, h.order = history, make(map[int64]struct{}), nil
	}
	if _, known := h.revisions[revision]; known {
		return
	}
	h.revisions[revision] = struct{}{}
	if h.order = append(h.order, revision); len(h.order) > maxHanded {
		delete(h.revisions, h.order[0])
		h.order = h.order[1:]
	}
}

func (h *handed) has(history uint64, revision int64) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	_, known := h.revisions[revision]
	return known && h.history == history
}

// lost reports whether a revision may be of a history that the store has lost: that had
// reached it, and neither was a list given out with it since, nor did a watch end there.
// The store's own history gets beyond all such revisions with time.
func (h *handed) lost(revision int64) bool {
	return revision <= h.store.ReplacedRevision() && !h.has(h.store.Replacements(), revision)
}

// out remembers that a list was given out with a revision, or a watch ended with it,
// that was asked for when the store was in a history.
func (h *handed) out(history uint64, revision int64) {
	if revision <= h.store.ReplacedRevision() && h.store.Replacements() == history {
		h.add(history, revision)
	}
}
