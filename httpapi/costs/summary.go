package costs

import (
	"encoding/json"
	"maps"
	"math"
	"slices"
	"time"
	"unique"
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

const (
	// keep is how many rows, for each kind of costs, stay when a summary drops some.
	keep = 100
	// mostEntries is the largest number of rows of a summary.
	mostEntries = 6 * keep
)

// summary adds up costs by name, for no more than mostEntries names at a time. The zero summary is empty.
//
// Invariant: what a name has been charged of a kind is between the row's seen and seen plus
// missed, or at most missed of the summary if it has no row. missed*(keep+1) <= total.
type summary struct {
	total  Usage
	missed Usage // what a name without a row has been charged at most
	rows   map[unique.Handle[Key]]*entry
}

// entry is what a summary knows of one name.
type entry struct {
	seen   Usage // what it was charged since the entry was made
	missed Usage // what it was charged before that at most
	left   Usage // seen, less what all entries lost when some were dropped
}

// row returns the row of key, and makes it if there is none.
func (s *summary) row(key unique.Handle[Key]) *entry {
	e := s.rows[key]
	if e == nil {
		if s.rows == nil {
			s.rows = make(map[unique.Handle[Key]]*entry)
		}
		e = &entry{missed: s.missed}
		s.rows[key] = e
	}
	return e
}

// add charges key with u.
func (s *summary) add(key unique.Handle[Key], u *Usage) {
	s.total.add(u)
	if len(s.rows) == mostEntries && s.rows[key] == nil {
		s.prune()
	}
	e := s.row(key)
	e.seen.add(u)
	e.left.add(u)
}

// prune drops rows. Of each kind, all rows lose what the one behind the first keep has. Then at
// most keep rows have anything left of that kind, and rows without anything left are dropped.
func (s *summary) prune() {
	column := make([]int64, 0, len(s.rows))
	for k := range kinds {
		column = column[:0]
		for _, e := range s.rows {
			column = append(column, e.left[k])
		}
		slices.Sort(column)
		floor := column[len(column)-1-keep]
		s.missed[k] += floor
		for _, e := range s.rows {
			e.left[k] = max(0, e.left[k]-floor)
		}
	}
	maps.DeleteFunc(s.rows, func(_ unique.Handle[Key], e *entry) bool { return e.left == Usage{} })
}

// merge adds other, which is of a later time. The result may have more than mostEntries rows.
func (s *summary) merge(other *summary) {
	for key, e := range other.rows {
		row := s.row(key)
		row.seen.add(&e.seen)
		row.missed.add(&e.missed)
	}
	for key, row := range s.rows {
		if other.rows[key] == nil {
			row.missed.add(&other.missed)
		}
	}
	s.total.add(&other.total)
	s.missed.add(&other.missed)
}

// period is what was used in some time.
type period struct {
	from, to time.Time // to is zero while it lasts
	process  time.Duration
	by       [dimensions]summary
}

func newPeriod(from time.Time) *period { return &period{from: from} }

// add charges the names in keys with u.
func (p *period) add(keys *[dimensions]unique.Handle[Key], u *Usage) {
	for d := range p.by {
		p.by[d].add(keys[d], u)
	}
}

// series is the latest periods of some length, and the present one.
type series struct {
	length  time.Duration
	most    int // periods before the present one
	past    []*period
	current *period
}

// roll ends the present period if it has lasted for its length, and discards old ones. A
// period lasts longer if nobody looks.
func (s *series) roll(now time.Time) {
	if now.Sub(s.current.from) >= s.length {
		s.current.to = now
		s.past = append(s.past, s.current)
		s.current = newPeriod(now)
	}
	oldest := now.Add(-time.Duration(s.most) * s.length)
	for len(s.past) > s.most || len(s.past) > 0 && !s.past[0].to.After(oldest) {
		s.past = slices.Delete(s.past, 0, 1)
	}
}

// periods returns all of them, in their order.
func (s *series) periods() []*period { return append(s.past[:len(s.past):len(s.past)], s.current) }
