package storage

import (
	"sync"

	"github.com/larder-io/larder/kv"
)

// maxIssued limits the remembered revisions. It suffices for a client that takes long to read a list
// while many other lists are answered.
const maxIssued = 1 << 14

// issued remembers the revisions that this server has sent since the store was replaced: those of lists,
// and of the last deliveries of watches. Clients may resume at them.
//
// Revisions up to kv.Store.ReplacedRevision are ambiguous, because the lost history had them, too. So
// they are accepted only if this server has issued them. Revisions of earlier deliveries are not
// remembered: a client resumes there only if it missed the end of its watch, and each accepted number may
// also be one of the lost history.
type issued struct {
	store kv.Store

	mu sync.Mutex

	history uint64 // number of the history of all revisions
	// revisions and order hold the same, order the oldest first.
	revisions map[int64]struct{}
	order     []int64
}

// add adds a revision of a history.
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

// replaced reports whether a revision may belong to a replaced history: that history had reached it, and
// this server has not issued it since. In time the store's own history passes all such revisions.
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
