package revocation

import (
	"crypto/sha256"
	"sync"
)

// table has the rights that watches rest on, by credential.
type table struct {
	ended losses

	mu       sync.Mutex
	known    map[[sha256.Size]byte]*credential // guarded by mu
	schedule schedule                          // guarded by mu
}

func newTable() *table {
	return &table{known: make(map[[sha256.Size]byte]*credential), schedule: newSchedule()}
}

// join returns the right that the watches of a credential share which ask for what, and counts
// one more of them; leave ends that. If the credential is not known yet, first makes it; if the
// right is not, enter makes it.
func (l *table) join(key [sha256.Size]byte, what string, first func() *credential, enter func() *right) *right {
	l.mu.Lock()
	defer l.mu.Unlock()
	c := l.known[key]
	if c == nil {
		c = first()
		c.key, c.rights = key, make(map[string]*right)
		l.known[key] = c
		l.schedule.enter(c)
	}
	held := c.rights[what]
	if held == nil {
		held = enter()
		held.of, held.key, held.ended, held.leave = c, what, &l.ended, l.leave
		c.rights[what] = held
		l.schedule.next[c] = struct{}{}
		if held.single {
			l.schedule.tie(c, onNodes)
		}
	}
	held.holders++
	return held
}

// leave takes away a holder that join counted.
func (l *table) leave(held *right) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if held.holders--; held.holders == 0 {
		l.dropLocked(held)
	}
}

// lose forgets held and marks it as lost.
func (l *table) lose(held *right, loss uint32) {
	l.mu.Lock()
	l.dropLocked(held)
	l.mu.Unlock()
	held.lost.Store(loss)
}

// dropLocked forgets a right that is lost, or that no watch holds any more.
func (l *table) dropLocked(held *right) {
	c := held.of
	if c.rights[held.key] == held {
		delete(c.rights, held.key)
	}
	if len(c.rights) == 0 && l.known[c.key] == c {
		delete(l.known, c.key)
		l.schedule.leave(c)
	}
}

// lookAgain has c looked at in the next round.
func (l *table) lookAgain(c *credential) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.known[c.key] == c {
		l.schedule.next[c] = struct{}{}
	}
}

// rightsOf returns the rights of c.
func (l *table) rightsOf(c *credential) []*right {
	l.mu.Lock()
	defer l.mu.Unlock()
	return c.allLocked()
}

// due returns the credentials that are to be asked about at m, and the rights of each.
func (l *table) due(m *state) map[*credential][]*right {
	l.mu.Lock()
	defer l.mu.Unlock()
	var due map[*credential][]*right
	for _, c := range l.schedule.candidates(m, l.known) {
		switch {
		case c.busy: // lookAgain is called when it no longer is
		case m.dueLocked(c):
			if due == nil {
				due = make(map[*credential][]*right)
			}
			due[c] = c.allLocked()
		default:
			l.schedule.alarm(c, m.now, m.soonestLocked(c))
		}
	}
	return due
}

// unseen reports whether a round would have anything to look at, with its counters at now.
func (l *table) unseen(now counters) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.schedule.seen != now || len(l.schedule.next) > 0
}

// credentialReader returns how many credentials have a watch open.
func (l *table) senders() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.known)
}
