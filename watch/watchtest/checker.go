package watchtest

import (
	"errors"
	"fmt"
	"maps"
	"slices"
)

// Type is the type of an event, as in Kubernetes' watch protocol. InitialEnd is the bookmark that ends the initial
// objects.
type Type string

// The types of reports.
const (
	Added      Type = "ADDED"
	Modified   Type = "MODIFIED"
	Deleted    Type = "DELETED"
	Bookmark   Type = "BOOKMARK"
	InitialEnd Type = "INITIAL-END"
)

// Report is one event as a client received it.
type Report struct {
	Type Type
	// Key is the key of the object, "" for bookmarks.
	Key string
	// Revision is the resourceVersion in the event.
	Revision int64
	// Digest identifies the content of the object; "" if it is unknown.
	Digest string
}

// String returns the report in one line.
func (r Report) String() string {
	return fmt.Sprintf("%s %s@%d %s", r.Type, r.Key, r.Revision, r.Digest)
}

// Request describes the watch.
type Request struct {
	Selects func(*State) bool
	// Initial says that the existing objects come first. After is not used then.
	Initial bool
	// At is the revision of the initial objects. If it is 0, the revision of the InitialEnd is used; without an
	// InitialEnd the initial objects cannot be verified.
	At    int64
	After int64
	// Resumed says that After comes from an earlier watch, so that a missing event breaks Resumable.
	Resumed bool
}

// violation returns the error of a broken guarantee. Its text begins with the guarantee.
func violation(guarantee, format string, args ...any) error {
	return errors.New(guarantee + ": " + fmt.Sprintf(format, args...))
}

// The guarantees. The errors of a Checker begin with one of them.
const (
	Ordered      = "W1 Ordered"
	Unique       = "W2 Unique"
	Reliable     = "W3 Reliable"
	Atomic       = "W4 Atomic"
	Resumable    = "W5 Resumable"
	Bookmarkable = "W6 Bookmarkable"
	Filtered     = "W7 Filtered"
)

// Checker records the deliveries of one watcher.
type Checker struct {
	request    Request
	initial    []Report // initial objects
	live       []Report // all other reports, except InitialEnd
	at         int64    // revision of the initial objects, 0 if unknown
	begun      bool     // the initial objects have ended
	newest     int64    // revision of the last live event, or the one after which the watch started
	bookmarked int64    // the newest bookmark's revision
	last       int64    // revision of the last event of the previous batch
	broken     []error
}

// NewChecker begins to check one watcher.
func NewChecker(request Request) *Checker {
	c := &Checker{request: request}
	if request.Initial {
		c.at, c.newest = request.At, request.At
	} else {
		c.begun, c.newest = true, request.After
	}
	return c
}

// Observe records a batch of reports that came together. It returns the guarantees that are known to be broken.
func (c *Checker) Observe(batch ...Report) error {
	for i, r := range batch {
		switch {
		case r.Type == InitialEnd:
			c.endInitial(r)
		case r.Type == Bookmark:
			c.bookmark(r)
		case !c.begun && r.Type == Added && (c.at == 0 || r.Revision <= c.at):
			c.initialObject(r)
		default:
			c.event(r, i == 0)
		}
	}
	c.last = c.newest
	return errors.Join(c.broken...)
}

func (c *Checker) fail(guarantee, format string, args ...any) {
	c.broken = append(c.broken, violation(guarantee, format, args...))
}

func (c *Checker) initialObject(r Report) {
	if n := len(c.initial); n > 0 {
		switch before := c.initial[n-1].Key; {
		case before == r.Key:
			c.fail(Unique, "initial object %v came twice", r)
		case before > r.Key:
			c.fail(Ordered, "initial object %v came after %s", r, before)
		}
	}
	c.initial = append(c.initial, r)
}

func (c *Checker) endInitial(r Report) {
	if c.begun {
		c.fail(Bookmarkable, "%v is not at the end of the initial objects", r)
		return
	}
	if c.at != 0 && c.at != r.Revision {
		c.fail(Bookmarkable, "%v, and the initial objects are of %d", r, c.at)
	}
	for _, object := range c.initial {
		if object.Revision > r.Revision {
			c.fail(Bookmarkable, "%v follows initial object %v", r, object)
		}
	}
	c.begun, c.at, c.newest, c.bookmarked = true, r.Revision, r.Revision, r.Revision
}

func (c *Checker) bookmark(r Report) {
	if !c.begun && c.at == 0 {
		c.fail(Bookmarkable, "%v among the initial objects", r)
	}
	c.begun = true
	if r.Revision < c.newest || r.Revision < c.bookmarked {
		c.fail(Ordered, "%v came after revision %d", r, max(c.newest, c.bookmarked))
	}
	c.bookmarked = max(c.bookmarked, r.Revision)
	c.live = append(c.live, r)
}

func (c *Checker) event(r Report, first bool) {
	c.begun = true
	switch {
	case r.Revision <= c.bookmarked:
		c.fail(Bookmarkable, "%v came after a bookmark of %d", r, c.bookmarked)
	case r.Revision <= c.request.After && !c.request.Initial || c.request.Initial && r.Revision <= c.at:
		c.fail(Unique, "%v, and the watch began after %d", r, max(c.request.After, c.at))
	case r.Revision < c.newest:
		c.fail(Ordered, "%v came after revision %d", r, c.newest)
	case first && r.Revision == c.last && len(c.live) > 0:
		c.fail(Atomic, "%v begins a batch, and revision %d ended one", r, c.last)
	}
	for i := len(c.live) - 1; i >= 0 && c.live[i].Revision == r.Revision; i-- {
		if c.live[i].Key == r.Key {
			c.fail(Unique, "%v came after %v", r, c.live[i])
		}
	}
	c.newest = max(c.newest, r.Revision)
	c.live = append(c.live, r)
}

// Resume returns the revision after which the client can resume.
func (c *Checker) Resume() int64 { return max(c.newest, c.bookmarked) }

// Verify compares the deliveries with the history. The watcher must have delivered everything up to the
// revision upTo; if that is 0, its deliveries must only have no gaps. Verify returns all broken guarantees.
func (c *Checker) Verify(h *History, upTo int64) error {
	start := c.request.After
	if c.request.Initial {
		start = c.at
		if c.at == 0 {
			return errors.Join(c.broken...)
		}
	}
	broken := slices.Clone(c.broken)
	if c.request.Initial && (c.begun || upTo != 0) {
		broken = append(broken, c.verifyInitial(h)...)
	}
	broken = append(broken, c.verifyLive(h, start, max(upTo, c.newest, c.bookmarked))...)
	return errors.Join(broken...)
}

func (c *Checker) verifyInitial(h *History) (broken []error) {
	delivered := make(map[string]Report)
	for _, r := range c.initial {
		delivered[r.Key] = r
	}
	for _, s := range h.At(c.at) {
		if !c.request.Selects(s) {
			continue
		}
		r, found := delivered[s.Key]
		if !found {
			broken = append(broken, violation(Reliable, "initial object %s@%d is missing", s.Key, s.Revision))
			continue
		}
		delete(delivered, s.Key)
		if want := report(Added, s, s.Revision); !want.agrees(r) {
			broken = append(broken, violation(Filtered, "initial object %v should be %v", r, want))
		}
	}
	for _, r := range delivered {
		broken = append(broken, violation(Filtered, "initial object %v is not selected", r))
	}
	return broken
}

// verifyLive compares the live part with the transitions in (start, upTo].
func (c *Checker) verifyLive(h *History, start, upTo int64) (broken []error) {
	type id struct {
		revision int64
		key      string
	}
	place := make(map[id]int, len(c.live))
	var bookmarks []int
	for i, r := range c.live {
		if r.Type == Bookmark {
			bookmarks = append(bookmarks, i)
			continue
		}
		place[id{r.Revision, r.Key}] = i
	}
	h.Replay(upTo, func(number int64, before *State, change Change) {
		want, selected := transition(c.request.Selects, number, before, change.State)
		if number <= start || !selected {
			return
		}
		at, found := place[id{number, change.Key}]
		if !found {
			broken = append(broken, c.missing(want))
			return
		}
		delete(place, id{number, change.Key})
		if r := c.live[at]; !want.agrees(r) {
			broken = append(broken, violation(Filtered, "%v should be %v", r, want))
		}
		for _, b := range bookmarks {
			if b < at && c.live[b].Revision >= number {
				broken = append(broken, violation(Bookmarkable, "%v came before %v", c.live[b], want))
			}
		}
	})
	for _, at := range place {
		broken = append(broken, violation(Filtered, "%v is not a transition of a selected object", c.live[at]))
	}
	return broken
}

// missing names the guarantee that is broken when a report is missing.
func (c *Checker) missing(want Report) error {
	switch {
	case want.Revision <= c.bookmarked:
		return violation(Bookmarkable, "%v is missing before a bookmark of %d", want, c.bookmarked)
	case c.request.Resumed:
		return violation(Resumable, "%v is missing after %d", want, c.request.After)
	default:
		return violation(Reliable, "%v is missing", want)
	}
}

// transition returns the report that a change should cause, if any.
func transition(selects func(*State) bool, number int64, before, now *State) (Report, bool) {
	was, is := before != nil && selects(before), now != nil && selects(now)
	switch {
	case was && is:
		return report(Modified, now, number), true
	case is:
		return report(Added, now, number), true
	case was:
		return report(Deleted, before, number), true
	}
	return Report{}, false
}

func report(t Type, s *State, number int64) Report {
	return Report{Type: t, Key: s.Key, Revision: number, Digest: s.Digest}
}

// agrees reports whether got equals r, except for unknown content.
func (r Report) agrees(got Report) bool {
	if got.Digest == "" {
		got.Digest = r.Digest
	}
	return r == got
}

// State is an object at a revision.
type State struct {
	// Key is "namespace/name", or "name".
	Key      string
	Revision int64
	// Labels and Fields are the values that selectors match.
	Labels, Fields map[string]string
	// Digest identifies the object's content. Reports with a digest must have this one.
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

// Replay calls visit for every change up to a revision, with the key's state before. It returns the objects that exist at
// the revision, by key.
func (h *History) Replay(upTo int64, visit func(number int64, before *State, change Change)) map[string]*State {
	state := make(map[string]*State)
	for _, r := range h.revisions {
		if r.number > upTo {
			break
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
	return state
}

// At returns the objects that exist at a revision, in key order.
func (h *History) At(number int64) []*State {
	state := h.Replay(number, func(int64, *State, Change) {})
	var sorted []*State
	for _, key := range slices.Sorted(maps.Keys(state)) {
		sorted = append(sorted, state[key])
	}
	return sorted
}
