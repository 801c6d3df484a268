package watchtest

import (
	"fmt"
	"maps"
	"slices"
)

// State is an object at a revision.
type State struct {
	// Key is "namespace/name", or "name".
	Key      string
	Revision int64
	// Labels and Fields are the values that selectors match.
	Labels, Fields map[string]string
	// Digest identifies the object's content. Reports that carry one must carry this one.
	Digest string
}

// Change is a new state of a key; State is nil when the object was deleted.
type Change struct {
	Key   string
	State *State
}

type revision struct {
	number  int64
	changes []Change
}

// History is every change, in order. The zero History is empty.
type History struct {
	revisions []revision // Invariant: numbers increase
}

// Add appends the changes of a revision. Deletions of keys that do not exist count as no change.
func (h *History) Add(number int64, changes ...Change) {
	if n := len(h.revisions); n > 0 && h.revisions[n-1].number >= number {
		panic(fmt.Sprintf("watchtest: revision %d added after %d", number, h.revisions[n-1].number))
	}
	h.revisions = append(h.revisions, revision{number, changes})
}

// Last is the newest revision, 0 if there is none.
func (h *History) Last() int64 {
	if len(h.revisions) == 0 {
		return 0
	}
	return h.revisions[len(h.revisions)-1].number
}

// Replay calls visit for every change up to a revision, with the key's state before.
func (h *History) Replay(upTo int64, visit func(number int64, before *State, change Change)) {
	state := make(map[string]*State)
	for _, r := range h.revisions {
		if r.number > upTo {
			return
		}
		for _, change := range r.changes {
			before := state[change.Key]
			if before == nil && change.State == nil {
				continue
			}
			visit(r.number, before, change)
			if change.State == nil {
				delete(state, change.Key)
			} else {
				state[change.Key] = change.State
			}
		}
	}
}

// At returns the objects that exist at a revision, in key order.
func (h *History) At(number int64) []*State {
	state := make(map[string]*State)
	h.Replay(number, func(_ int64, _ *State, change Change) {
		if change.State == nil {
			delete(state, change.Key)
		} else {
			state[change.Key] = change.State
		}
	})
	var sorted []*State
	for _, key := range slices.Sorted(maps.Keys(state)) {
		sorted = append(sorted, state[key])
	}
	return sorted
}
