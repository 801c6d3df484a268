package storage

import (
	"sync/atomic"
)

// told is the newest revision that a list of the store was given, in the newest history
// of the store that one was given in. Reads must not show less than another before them.
type told struct{ newest atomic.Pointer[toldRevision] }

type toldRevision struct {
	revision     int64
	replacements uint64 // of the store before the list was read: which history it is of
}

// tell takes down the revision of a list of what the store holds now.
func (t *told) tell(revision int64, replacements uint64) {
	next := &toldRevision{revision, replacements}
	for {
		last := t.newest.Load()
		if last != nil && last.replacements == replacements && last.revision >= revision || t.newest.CompareAndSwap(last, next) {
			return
		}
	}
}

// since returns what was told of a history of the store, 0 if nothing was.
func (t *told) since(replacements uint64) uint64 {
	last := t.newest.Load()
	if last == nil || last.replacements != replacements {
		return 0
	}
	return uint64(last.revision)
}
