package storage

import (
	"sync"

	"github.com/larder-io/larder/kv"
)

// maxIssued is how many revisions are remembered: enough for a client that takes long to
// read a list while many other lists are answered.
const maxIssued = 1 << 14

// issued are the revisions that clients know from this server and may resume at: those of
// lists, and of the last deliveries of watches, since the store was replaced. They are only
// remembered up to kv.Store.ReplacedRevision, because the history before had revisions of
// the same numbers: a client that comes with such a revision may mean that history, unless
// the revision was issued here. Revisions of earlier deliveries are not remembered: a client
// resumes there only if it missed the end of its watch, and with each revision that is
// accepted one of the replaced history is.
type issued struct {
	store kv.Store

	mu sync.Mutex

	history uint64 // the store's that all are of
	// revisions and order hold the same, order the oldest first.
	revisions map[int64]struct{}
	order     []int64
}

// add takes in a revision of a history.
func (h *issued) add(history uint64, revision int64) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.history != history || h.revisions == nil {
		h.history, h.revisions, h.order = history, make(map[int64]struct{}), nil
	}
	if _, known := h.revisions[revision]; known {
		return
	}
	h.revisions[revision] = struct{}{}
	if h.order = append(h.order, revision); len(h.order) > maxIssued {
		delete(h.revisions, h.order[0])
		h.order = h.order[1:]
	}
}

func (h *issued) has(history uint64, revision int64) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	_, known := h.revisions[revision]
	return known && h.history == history
}

// replaced reports whether a revision may be of a replaced history: that had reached it, and
// it was not issued here since. With time the store's own history gets beyond all such
// revisions.
func (h *issued) replaced(revision int64) bool {
	return revision <= h.store.ReplacedRevision() && !h.has(h.store.Replacements(), revision)
}

// issue remembers the revision of a list or of a watch's last delivery. history is the
// store's when the list was asked for, or the watch's.
func (h *issued) issue(history uint64, revision int64) {
	if revision <= h.store.ReplacedRevision() && h.store.Replacements() == history {
		h.add(history, revision)
	}
}
