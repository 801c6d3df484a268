package revocation

import (
	"crypto/sha256"
	"sync"

	"github.com/prometheus/client_golang/prometheus"
)

// table has the rights that watches rest on, by credential.
type table struct {
	ended *prometheus.CounterVec // watches that ended, by what was lost

	mu    sync.Mutex
	known map[[sha256.Size]byte]*credential // guarded by mu
	seen  counters                          // guarded by mu: those of the last round
	due   bool                              // guarded by mu: the last round found something to check, or a right is new
}

func newTable() *table {
	t := &table{known: make(map[[sha256.Size]byte]*credential), ended: prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "larder_watches_revoked_total",
		Help: "Counter of watches that were ended because their sender lost the right to them, by what was lost: the credential or the permission.",
	}, []string{"lost"})}
	t.ended.WithLabelValues(lossNames[lossCredential])
	t.ended.WithLabelValues(lossNames[lossPermission])
	return t
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
		held.of, held.key, held.ended, held.leave = c, what, t.ended, t.leave
		c.rights[what], t.due = held, true
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

// rightsOf returns the rights of c.
func (t *table) rightsOf(c *credential) []*right {
	t.mu.Lock()
	defer t.mu.Unlock()
	return c.allLocked()
}

// toCheck returns the credentials that must be checked at s, and the rights of each.
func (t *table) toCheck(s *state) map[*credential][]*right {
	t.mu.Lock()
	defer t.mu.Unlock()
	due := make(map[*credential][]*right)
	for _, c := range t.known {
		if !c.busy && s.dueLocked(c) {
			due[c] = c.allLocked()
		}
	}
	t.seen, t.due = s.counters, len(due) > 0
	return due
}

// stats returns how many credentials are known, and whether the next round may check any.
func (t *table) stats(now counters) (known int, waiting bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return len(t.known), t.due || t.seen != now
}
