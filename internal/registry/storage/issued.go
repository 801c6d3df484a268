package storage

import (
	"sync"

	"k8s.io/utils/lru"

	"github.com/larder-io/larder/kv"
)

// maxIssued limits the remembered revisions. It suffices for a client that reads a list slowly while the server serves
// many other lists.
const maxIssued = 1 << 14

// issued remembers the revisions that this server has sent since the store was replaced: those of lists,
// and of the last deliveries of watches. Clients may resume at them.
//
// Revisions up to kv.Store.ReplacedRevision are ambiguous, because the lost history had them, too. So they are accepted
// only if this server has issued them. An accepted revision may still be of the lost history, so few are remembered: of
// a watch, only the last, because clients rarely resume at an earlier one.
type issued struct {
	store kv.Store

	mu        sync.Mutex
	history   uint64     // number of the history of all revisions
	revisions *lru.Cache // nil if there are none
}

// replaced reports whether a revision may belong to a replaced history: that history had reached it, and this server
// has not issued it since.
func (i *issued) replaced(revision int64) bool {
	if revision > i.store.ReplacedRevision() {
		return false
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.history != i.store.Replacements() || i.revisions == nil {
		return true
	}
	_, known := i.revisions.Get(revision)
	return !known
}

// issue remembers the revision of a list or of a watch's last delivery. history is the store's at the time of the
// list's request, or the watch's.
func (i *issued) issue(history uint64, revision int64) {
	if revision > i.store.ReplacedRevision() || i.store.Replacements() != history {
		return
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.history != history || i.revisions == nil {
		i.history, i.revisions = history, lru.New(maxIssued)
	}
	i.revisions.Add(revision, nil)
}
