package revocation

import (
	"crypto/sha256"
	"sync"
	"time"
)

// table has the rights that watches rest on, by credential.
type table struct {
	ended losses

	mu    sync.Mutex
	known map[[sha256.Size]byte]*credential // guarded by mu

	// What the last round saw, guarded by mu: whether there was one, the counters, and the
	// positions of the caches that have the objects of credentials.
	looked    bool
	seen      counters
	positions map[string]cachePosition
}

func newTable() *table {
	return &table{known: make(map[[sha256.Size]byte]*credential), positions: make(map[string]cachePosition)}
}

// join returns the right that the watches of a credential share which ask for what, and counts
// one more of them; leave ends that. first makes a credential that is not known yet, and enter
// makes a right that is not known yet.
func (t *table) join(key [sha256.Size]byte, what string, first func() *credential, enter func() *right) *right {
	t.mu.Lock()
	defer t.mu.Unlock()
	c := t.known[key]
	if c == nil {
		c = first()
		c.key, c.rights = key, make(map[string]*right)
		t.known[key] = c
	}
	held := c.rights[what]
	if held == nil {
		held = enter()
		held.of, held.key, held.ended, held.leave = c, what, &t.ended, t.leave
		c.rights[what] = held
		c.look = time.Time{}
		c.single = c.single || held.single
	}
	held.holders++
	return held
}

// leave takes away a holder that join counted.
func (t *table) leave(held *right) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if held.holders--; held.holders == 0 {
		t.dropLocked(held)
	}
}

// lose removes held and marks it as lost.
func (t *table) lose(held *right, loss uint32) {
	t.mu.Lock()
	t.dropLocked(held)
	t.mu.Unlock()
	held.lost.Store(loss)
}

// dropLocked removes a right that is lost, or that no watch holds any more.
func (t *table) dropLocked(held *right) {
	c := held.of
	if c.rights[held.key] == held {
		delete(c.rights, held.key)
	}
	if len(c.rights) == 0 && t.known[c.key] == c {
		delete(t.known, c.key)
	}
}

// lookAgain makes the next round look at c.
func (t *table) lookAgain(c *credential) {
	t.mu.Lock()
	defer t.mu.Unlock()
	c.look = time.Time{}
}

// rightsOf returns the rights of c.
func (t *table) rightsOf(c *credential) []*right {
	t.mu.Lock()
	defer t.mu.Unlock()
	return c.allLocked()
}

// mostAhead is the longest time in which a round does not look at a credential.
const mostAhead = time.Minute

// due returns the credentials that must be checked at s, and the rights of each. It looks at
// those that a change since the last round concerns or whose time has come, and at all of them if
// a counter has changed that all rest on.
func (t *table) due(s *state) map[*credential][]*right {
	t.mu.Lock()
	defer t.mu.Unlock()
	before := t.seen
	nodes := before.authority.nodes != s.authority.nodes
	before.authority.nodes = s.authority.nodes
	all := !t.looked || before != s.counters
	t.looked, t.seen = true, s.counters
	var due map[*credential][]*right
	moved := t.movedLocked(s.objects)
	for _, c := range t.known {
		switch concerned := all || !s.now.Before(c.look) || nodes && c.single || c.tiedTo(moved); {
		case !concerned, c.busy: // lookAgain is called when c is no longer busy
		case s.dueLocked(c):
			if due == nil {
				due = make(map[*credential][]*right)
			}
			due[c] = c.allLocked()
		default:
			c.look = s.now.Add(mostAhead)
			if soonest := s.soonestLocked(c); !soonest.IsZero() && soonest.Before(c.look) {
				c.look = soonest
			}
		}
	}
	return due
}

// movedLocked returns the resources whose caches have changed since the last round. due calls it
// before it compares any object: the next round sees what changes after that.
func (t *table) movedLocked(in objects) map[string]bool {
	moved := make(map[string]bool)
	for resource := range in {
		now, _ := in.position(resource)
		if before, seen := t.positions[resource]; !seen || before != now {
			t.positions[resource], moved[resource] = now, true
		}
	}
	return moved
}

// tiedTo reports whether c depends on an object of one of the resources.
func (c *credential) tiedTo(resources map[string]bool) bool {
	for _, name := range c.ties.Objects {
		if resources[name.Resource] {
			return true
		}
	}
	return false
}

// stats returns how many credentials are known, and whether the next round looks at any of them.
func (t *table) stats(now counters) (known int, waiting bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	waiting = t.seen != now
	for _, c := range t.known {
		waiting = waiting || c.look.IsZero()
	}
	return len(t.known), waiting
}
