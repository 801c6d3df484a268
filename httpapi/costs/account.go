package costs

import (
	"strings"
	"sync/atomic"
	"unique"
)

// Names are cut to these lengths.
const (
	maxUser     = 192
	maxAgent    = 128
	maxResource = 64 // of each part
	maxVerb     = 32
)

// Caller names who asks for what: a [Key] in parts, so that a request need not build one.
// Resource is the path of a request that is for no resource.
type Caller struct {
	User                         string
	Agent                        []byte
	Group, Resource, Subresource string
	Verb                         string
}

// cut cuts all names to their lengths.
func (c *Caller) cut() {
	c.User = c.User[:min(len(c.User), maxUser)]
	c.Agent = c.Agent[:min(len(c.Agent), maxAgent)]
	c.Group = c.Group[:min(len(c.Group), maxResource)]
	c.Resource = c.Resource[:min(len(c.Resource), maxResource)]
	c.Subresource = c.Subresource[:min(len(c.Subresource), maxResource)]
	c.Verb = c.Verb[:min(len(c.Verb), maxVerb)]
}

// key returns the names as a Key that shares no memory with c.
func (c *Caller) key() Key {
	k := Key{User: strings.Clone(c.User), UserAgent: string(c.Agent), Resource: strings.Clone(c.Resource), Verb: strings.Clone(c.Verb)}
	if c.Group != "" {
		k.Resource += "." + c.Group
	}
	if c.Subresource != "" {
		k.Resource += "/" + c.Subresource
	}
	return k
}

// callerKey is a Caller that can be a key of a map.
type callerKey struct{ user, agent, group, resource, subresource, verb string }

// Account is what one caller has cost since the last sweep of the ledger.
type Account struct {
	ledger *Ledger
	caller callerKey
	keys   [dimensions]unique.Handle[Key]

	used    [kinds]atomic.Int64
	retired atomic.Bool // the ledger does not read it again

	fresh bool // guarded by ledger.mu: it was made or used since the last but one sweep by the clock
}

// Key names whose account it is.
func (a *Account) Key() Key { return a.keys[ByClient].Value() }

// Add charges u, and returns the account to charge the next time: the ledger may have removed
// this one. A nil account ignores u.
func (a *Account) Add(u Usage) *Account {
	if a == nil {
		return nil
	}
	for k, n := range u {
		if n != 0 {
			a.used[k].Add(n)
		}
	}
	if !a.retired.Load() {
		return a
	}
	// The ledger has read a after it set retired: what was added before is taken by it or here.
	return a.ledger.open(a.caller, a.Key()).Add(a.take())
}

// take empties the account.
func (a *Account) take() (u Usage) {
	for k := range u {
		if a.used[k].Load() != 0 {
			u[k] = a.used[k].Swap(0)
		}
	}
	return u
}
