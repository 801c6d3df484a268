package costs

import (
	"encoding/json"
	"math"
	"time"
)

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

// String is what clients call the kind.
func (k Kind) String() string { return kindNames[k] }

var kindNames = [kinds]string{"cpu", "bytes", "requests", "events"}

// Usage is an amount of each kind of cost. In JSON, CPU time is in seconds.
type Usage [kinds]int64

// add adds other to u.
func (u *Usage) add(other *Usage) {
	for k := range u {
		u[k] += other[k]
	}
}

// Time is the CPU time.
func (u *Usage) Time() time.Duration { return time.Duration(u[CPU]) }

// usageJSON is the JSON form of a Usage.
type usageJSON struct {
	CPUSeconds float64 `json:"cpuSeconds"`
	Bytes      int64   `json:"bytes"`
	Requests   int64   `json:"requests"`
	Events     int64   `json:"events"`
}

// MarshalJSON implements json.Marshaler.
func (u Usage) MarshalJSON() ([]byte, error) {
	return json.Marshal(usageJSON{u.Time().Seconds(), u[Bytes], u[Requests], u[Events]})
}

// UnmarshalJSON implements json.Unmarshaler.
func (u *Usage) UnmarshalJSON(data []byte) error {
	var form usageJSON
	err := json.Unmarshal(data, &form)
	*u = Usage{int64(math.Round(form.CPUSeconds * 1e9)), form.Bytes, form.Requests, form.Events}
	return err
}

// Key names a client, and what it asks for. A key that stands for many leaves fields empty.
type Key struct {
	User      string `json:"user,omitempty"`      // "" if nobody was authenticated
	UserAgent string `json:"userAgent,omitempty"` // as the client says
	Resource  string `json:"resource,omitempty"`  // resource.group/subresource, or the first part of another path
	Verb      string `json:"verb,omitempty"`
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

// String is what clients call the dimension.
func (d Dimension) String() string { return dimensionNames[d] }

var dimensionNames = [dimensions]string{"client", "user", "agent", "resource", "verb"}

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
