package storage

import (
	"sync/atomic"
)

// listedRevision is the newest revision of a list that was answered from the store, in the
// newest history of it. A later read from the cache must not show an older state.
type listedRevision struct {
	newest atomic.Pointer[revisionOfHistory]
}

type revisionOfHistory struct {
	revision     int64
	replacements uint64 // of the store before the list was read: the number of its history
}

// note records the revision of a list of the store's present state.
func (t *listedRevision) note(revision int64, replacements uint64) {
	next := &revisionOfHistory{revision, replacements}
	for {
		last := t.newest.Load()
		if last != nil && last.replacements == replacements && last.revision >= revision || t.newest.CompareAndSwap(last, next) {
			return
		}
	}
}

// of returns the newest revision of a list in a history of the store, 0 if there was none.
func (t *listedRevision) of(replacements uint64) uint64 {
	last := t.newest.Load()
	if last == nil || last.replacements != replacements {
		return 0
	}
	return uint64(last.revision)
}
