package storage

import (
	"sync"

	"k8s.io/utils/lru"

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

	mu        sync.Mutex
	history   uint64     // number of the history of all revisions
	revisions *lru.Cache // nil if there are none
}

// add adds a revision of a history.
func (h *issued) add(history uint64, revision int64) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.history != history || h.revisions == nil {
		h.history, h.revisions = history, lru.New(maxIssued)
	}
	h.revisions.Add(revision, nil)
}

func (h *issued) has(history uint64, revision int64) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.history != history || h.revisions == nil {
		return false
	}
	_, known := h.revisions.Get(revision)
	return known
}

// replaced reports whether a revision may belong to a replaced history: that history had reached it, and
// this server has not issued it since. In time the store's own history passes all such revisions.
func (h *issued) replaced(revision int64) bool {
	return revision <= h.store.ReplacedRevision() && !h.has(h.store.Replacements(), revision)
}

// issue remembers the revision of a list or of a watch's last delivery. history is the store's at the time of the
// list's request, or the watch's.
func (h *issued) issue(history uint64, revision int64) {
	if revision <= h.store.ReplacedRevision() && h.store.Replacements() == history {
		h.add(history, revision)
	}
}
