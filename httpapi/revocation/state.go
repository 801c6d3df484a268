package revocation

import (
	"time"

	"k8s.io/apiserver/pkg/authentication/user"

	"github.com/larder-io/larder/internal/auth"
)

// counters has the counters of changes that may concern all rights.
type counters struct {
	generation uint64
	authorizer authorizerChanges
	remote     bool // the authorizer asks a webhook
}

// authorizerChanges counts changes of what the authorizer decides by; see auth.Revocation.
type authorizerChanges struct{ all, nodes uint64 }

// countersOf reads the counters. A round does so before it asks any question: the next round sees
// what changes meanwhile.
func countersOf(config *auth.Revocation) counters {
	m := counters{generation: config.Generation(), remote: config.Remote()}
	m.authorizer.all, m.authorizer.nodes = config.AuthorizerChanges()
	return m
}

// state is the time of a round, and what rights rest on at that time. It says which questions
// are to be asked.
type state struct {
	counters
	now     time.Time
	objects objects
	losses  func(node user.Info) uint64 // see auth.Revocation.Node; read before the question is asked
}

// dueLocked reports whether there is anything to ask about c.
func (m *state) dueLocked(c *credential) bool {
	if m.dueCredential(c) {
		return true
	}
	if c.impersonates && !c.asked {
		return false // the requester must be authenticated first
	}
	for _, held := range c.rights {
		if m.dueRight(held) {
			return true
		}
	}
	return false
}

// dueCredential reports whether c must be authenticated again.
func (m *state) dueCredential(c *credential) bool {
	if c.asking || m.now.Before(c.retry) {
		return false
	}
	if !c.asked || c.generation != m.generation {
		return true
	}
	if c.ties.Ends && m.expired(c) || (c.ties.Remote || m.expired(c)) && !m.now.Before(c.next) {
		return true
	}
	for i, name := range c.ties.Objects {
		if revision, known := m.objects.revision(name); known && revision != c.revisions[i] {
			return true
		}
	}
	return false
}

// expired reports whether c has expired. Unless its ties say that it ends then, it may be
// accepted for a little longer, from a cache.
func (m *state) expired(c *credential) bool {
	return !c.ties.Expires.IsZero() && !m.now.Before(c.ties.Expires)
}

// dueRight reports whether held must be authorized again.
func (m *state) dueRight(held *right) bool {
	if held.asking || m.now.Before(held.retry) {
		return false
	}
	return !held.asked || held.all != m.authorizer.all || held.losses != m.lossesOf(held) ||
		m.remote && !m.now.Before(held.next)
}

// lossesOf counts the changes that may have taken held from a node.
func (m *state) lossesOf(held *right) uint64 {
	if !held.single {
		return 0
	}
	return m.losses(held.attributes.User)
}
