package costs

import (
	"hash/maphash"
	"sync/atomic"
	"unique"
)

// How much of names is kept.
const (
	maxUser     = 192
	maxAgent    = 128
	maxResource = 64 // of each of the parts
	maxVerb     = 32
)

// Caller names who asks for what: a [Key] in parts, so that it need not be put together for
// each request. Resource is the path of a request that is for no resource.
type Caller struct {
	User                         string
	Agent                        []byte
	Group, Resource, Subresource string
	Verb                         string
}

// cut cuts all names to a length.
func (c *Caller) cut() {
	c.User = c.User[:min(len(c.User), maxUser)]
	c.Agent = c.Agent[:min(len(c.Agent), maxAgent)]
	c.Group = c.Group[:min(len(c.Group), maxResource)]
	c.Resource = c.Resource[:min(len(c.Resource), maxResource)]
	c.Subresource = c.Subresource[:min(len(c.Subresource), maxResource)]
	c.Verb = c.Verb[:min(len(c.Verb), maxVerb)]
}

// hash is equal for callers of one account.
func (c *Caller) hash(seed maphash.Seed) uint64 {
	const odd = 0x9e3779b97f4a7c15
	h := maphash.String(seed, c.User)
	h = h*odd ^ maphash.Bytes(seed, c.Agent)
	h = h*odd ^ maphash.String(seed, c.Resource)
	return h*odd ^ uint64(len(c.Group)+len(c.Subresource)<<8+len(c.Verb)<<16)
}

// key puts the names together.
func (c *Caller) key() Key {
	k := Key{User: c.User, UserAgent: string(c.Agent), Resource: c.Resource, Verb: c.Verb}
	if c.Group != "" {
		k.Resource += "." + c.Group
	}
	if c.Subresource != "" {
		k.Resource += "/" + c.Subresource
	}
	return k
}

// Account is what one caller has cost since the ledger looked last.
type Account struct {
	ledger *Ledger
	next   atomic.Pointer[Account] // in its bucket. Only changed with ledger.mu held

	caller Caller
	hash   uint64
	keys   [dimensions]unique.Handle[Key]

	used    [kinds]atomic.Int64
	retired atomic.Bool // the ledger will not look again

	fresh bool // guarded by ledger.mu: it was made or used since the last but one sweep by the clock
}

// is reports whether a is c's account.
func (a *Account) is(hash uint64, c *Caller) bool {
	return a.hash == hash && a.caller.User == c.User && string(a.caller.Agent) == string(c.Agent) && a.caller.Verb == c.Verb &&
		a.caller.Resource == c.Resource && a.caller.Group == c.Group && a.caller.Subresource == c.Subresource
}

// Key names whose account it is.
func (a *Account) Key() Key { return a.keys[ByClient].Value() }

// Add charges u, and returns the account to charge the next time: the ledger may have given
// this one up. A nil account takes nothing.
func (a *Account) Add(u Usage) *Account {
	if a == nil {
		return nil
	}
	for k, n := range u {
		if n != 0 {
			a.used[k].Add(n)
		}
	}
	if a.retired.Load() {
		return a.move()
	}
	return a
}

// move charges the caller's present account with what nobody has taken from a. The ledger
// takes it after it has retired a: what was added before is taken by one of the two.
func (a *Account) move() *Account {
	present, rest := a.ledger.Account(a.caller), a.take()
	return present.Add(rest)
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
