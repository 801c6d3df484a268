package httpapi

import (
	"crypto/sha256"
	"time"

	"github.com/larder-io/larder/cache"
	"github.com/larder-io/larder/internal/auth"
)

// mark counts what all rights rest on.
type mark struct {
	generation uint64
	authority  authority
	remote     bool // the authorizer asks others
}

// authority counts what the authorizer decides by.
type authority struct{ all, nodes uint64 }

// tide is where a cache has come to. While it stays, no object changes.
type tide struct {
	ready    bool
	epoch    uint64
	position cache.Position
}

// onNodes is what credentials hang on whose rights rest on what a node needs. It is no
// resource.
const onNodes = ""

// agenda says which credentials are to be looked at. A round looks at those that a change
// concerns, and at all of them only where something has changed that all rest on. Its fields are guarded by rights.mu.
type agenda struct {
	next   map[*credential]struct{}            // in the next round
	tied   map[string]map[*credential]struct{} // when a resource changes, or onNodes
	alarms map[int64][][sha256.Size]byte       // at a second, by key
	passed int64                               // the last second whose alarms were looked at

	// What the last round saw.
	seen  mark
	whole bool // all were looked at
	tides map[string]tide
}

func newAgenda() agenda {
	return agenda{
		next: make(map[*credential]struct{}), tied: make(map[string]map[*credential]struct{}),
		alarms: make(map[int64][][sha256.Size]byte), tides: make(map[string]tide),
	}
}

// tie has c looked at when on changes.
func (a *agenda) tie(c *credential, on string) {
	of := a.tied[on]
	if of == nil {
		of = make(map[*credential]struct{})
		a.tied[on] = of
	}
	of[c] = struct{}{}
}

// enter has c looked at in the next round, and whenever what it is tied to changes.
func (a *agenda) enter(c *credential) {
	a.next[c] = struct{}{}
	for _, name := range c.ties.Objects {
		a.tie(c, name.Resource)
	}
}

// leave forgets c.
func (a *agenda) leave(c *credential) {
	delete(a.next, c)
	for on, of := range a.tied {
		if delete(of, c); len(of) == 0 {
			delete(a.tied, on)
		}
	}
}

// alarmAhead is how far ahead alarms are set. The alarm of a client that has left is kept
// no longer than that, and every credential is looked at once in that time.
const alarmAhead = time.Minute

// alarm has c looked at again when something may come to its end by itself.
func (a *agenda) alarm(c *credential, now, at time.Time) {
	if ahead := now.Add(alarmAhead); at.IsZero() || at.After(ahead) {
		at = ahead
	}
	second := max(at.Unix(), a.passed)
	if c.alarm != 0 && c.alarm <= second {
		return
	}
	c.alarm = second
	a.alarms[second] = append(a.alarms[second], c.key)
}

// marks reads what all rights rest on. It does so before anybody is asked: what changes
// meanwhile is seen the next time.
func (r *rights) marks() mark {
	m := mark{generation: r.config.Generation(), remote: r.config.Remote()}
	m.authority.all, m.authority.nodes = r.config.Authority()
	return m
}

// lookAgain has c looked at in the next round.
func (r *rights) lookAgain(c *credential) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.known[c.key] == c {
		r.agenda.next[c] = struct{}{}
	}
}

// rightsOf returns the rights of c.
func (r *rights) rightsOf(c *credential) []*right {
	r.mu.Lock()
	defer r.mu.Unlock()
	return c.allLocked()
}

func (c *credential) allLocked() []*right {
	all := make([]*right, 0, len(c.rights))
	for _, held := range c.rights {
		all = append(all, held)
	}
	return all
}

// due returns the credentials that are to be asked about, and the rights of each.
func (t *round) due() map[*credential][]*right {
	t.mu.Lock()
	defer t.mu.Unlock()
	var due map[*credential][]*right
	for _, c := range t.candidatesLocked() {
		switch {
		case c.busy: // it is looked at when it is not
		case t.dueLocked(c):
			if due == nil {
				due = make(map[*credential][]*right)
			}
			due[c] = c.allLocked()
		default:
			t.agenda.alarm(c, t.now, t.soonest(c))
		}
	}
	return due
}

// dueLocked reports whether there is anything to ask about c.
func (t *round) dueLocked(c *credential) bool {
	if t.dueCredential(c) {
		return true
	}
	if c.impersonates && !c.asked {
		return false // first it must be known who the client is
	}
	for _, held := range c.rights {
		if t.dueRight(held) {
			return true
		}
	}
	return false
}

// candidatesLocked returns the credentials that something has happened to.
func (t *round) candidatesLocked() (list []*credential) {
	a := &t.agenda
	before, whole := a.seen, a.whole
	a.seen, a.whole = t.mark, true
	moved := t.movedLocked()
	if before.authority.nodes != t.authority.nodes {
		moved = append(moved, onNodes)
		before.authority.nodes = t.authority.nodes
	}
	entered := a.next
	if len(entered) > 0 {
		a.next = make(map[*credential]struct{})
	}
	rung := t.rungLocked()
	if !whole || before != t.mark {
		list = make([]*credential, 0, len(t.known))
		for _, c := range t.known {
			list = append(list, c)
		}
		return list
	}
	for c := range entered {
		list = append(list, c)
	}
	for _, on := range moved {
		for c := range a.tied[on] {
			list = append(list, c)
		}
	}
	return append(list, rung...)
}

// movedLocked returns the resources that have changed among those that somebody hangs on.
func (t *round) movedLocked() (moved []string) {
	for on := range t.agenda.tied {
		of := t.caches[on]
		if of == nil {
			continue
		}
		now := tide{ready: of.Ready()}
		if now.ready {
			snapshot := of.Snapshot()
			now.epoch, now.position = snapshot.Epoch(), snapshot.Position()
		}
		if before, known := t.agenda.tides[on]; !known || before != now {
			t.agenda.tides[on] = now
			moved = append(moved, on)
		}
	}
	return moved
}

// rungLocked returns those whose alarms have gone off.
func (t *round) rungLocked() (rung []*credential) {
	a, now := &t.agenda, t.now.Unix()
	if a.passed == 0 || now-a.passed > int64(alarmAhead/time.Second) {
		a.passed = now - int64(alarmAhead/time.Second) // no alarm is set for an earlier time
	}
	for ; a.passed <= now; a.passed++ {
		for _, key := range a.alarms[a.passed] {
			if c := t.known[key]; c != nil && c.alarm == a.passed {
				c.alarm = 0
				rung = append(rung, c)
			}
		}
		delete(a.alarms, a.passed)
	}
	a.passed = now
	return rung
}

// dueCredential reports whether to ask who c is.
func (t *round) dueCredential(c *credential) bool {
	if c.asking || t.now.Before(c.retry) {
		return false
	}
	if !c.asked || c.generation != t.generation {
		return true
	}
	if c.ties.Ends && t.expired(c) || (c.ties.Remote || t.expired(c)) && !t.now.Before(c.next) {
		return true
	}
	for i, name := range c.ties.Objects {
		if revision, known := t.revision(name); known && revision != c.revisions[i] {
			return true
		}
	}
	return false
}

// expired reports whether c will not be accepted much longer.
func (t *round) expired(c *credential) bool {
	return !c.ties.Expires.IsZero() && !t.now.Before(c.ties.Expires)
}

// dueRight reports whether to ask what held's owner may do.
func (t *round) dueRight(held *right) bool {
	if held.asking || t.now.Before(held.retry) {
		return false
	}
	return !held.asked || held.all != t.authority.all || held.single && held.nodes != t.authority.nodes ||
		t.remote && !t.now.Before(held.next)
}

// soonest is when to look at c even if nothing changes; zero is never.
func (t *round) soonest(c *credential) (at time.Time) {
	sooner := func(next time.Time) {
		if next.After(t.now) && (at.IsZero() || next.Before(at)) {
			at = next
		}
	}
	sooner(c.retry)
	sooner(c.ties.Expires)
	if c.ties.Remote || t.expired(c) {
		sooner(c.next)
	}
	for _, held := range c.rights {
		sooner(held.retry)
		if t.remote {
			sooner(held.next)
		}
	}
	return at
}

// revision is that of an object, 0 if there is none; known says that it can be told now.
func (r *rights) revision(name auth.ObjectName) (revision int64, known bool) {
	of := r.caches[name.Resource]
	if of == nil || !of.Ready() {
		return 0, false
	}
	key := name.Name
	if name.Namespace != "" {
		key = name.Namespace + "/" + name.Name
	}
	if o := of.Snapshot().Get(key); o != nil {
		return o.Revision(), true
	}
	return 0, true
}
