package costs

import "time"

// Kind is a kind of cost.
type Kind uint8

// The kinds of costs.
const (
	CPU      Kind = iota // nanoseconds
	Bytes                // of answers
	Requests             // that were answered
	Events               // that watches were sent
	kinds
)

// Usage is an amount of each kind of cost.
type Usage [kinds]int64

// add adds other to u.
func (u *Usage) add(other *Usage) {
	for k := range u {
		u[k] += other[k]
	}
}

// Time is the CPU time.
func (u *Usage) Time() time.Duration { return time.Duration(u[CPU]) }

// Key names a client, and what it asks for. A key that stands for many leaves fields empty.
type Key struct {
	User      string // "" if nobody was authenticated
	UserAgent string // as the client says
	Resource  string // resource.group/subresource, or the first part of another path
	Verb      string
}

// Dimension is a way to group costs.
type Dimension uint8

// The dimensions.
const (
	ByClient   Dimension = iota // of a user, by an agent, for a verb and a resource
	ByUser                      // all of a user's
	ByAgent                     // all of an agent's
	ByResource                  // all for a resource
	ByVerb                      // all of a verb
	dimensions
)

// project returns the key of k's group in dimension d.
func (k Key) project(d Dimension) Key {
	switch d {
	case ByUser:
		return Key{User: k.User}
	case ByAgent:
		return Key{UserAgent: k.UserAgent}
	case ByResource:
		return Key{Resource: k.Resource}
	case ByVerb:
		return Key{Verb: k.Verb}
	}
	return k
}
