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
	Bytes                // of responses
	Requests             // that got a response
	Events               // that watches were sent
	kinds
)

// String returns the name of the kind in requests.
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

// Key identifies a client and its requests. The key of a group of clients has empty fields.
type Key struct {
	User      string `json:"user,omitempty"`      // "" for unauthenticated requests
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

// String returns the name of the dimension in requests.
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
	// keep is the number of rows of each kind of cost that a summary keeps when it drops others.
	keep = 100
	// maxEntries is the largest number of rows of a summary.
	maxEntries = 6 * keep
)

// summary adds up costs by name, for at most maxEntries names. The zero summary is empty.
//
// Invariant: for each kind, the charges of a name with a row are between the row's seen and seen+missed. The
// charges of another name are at most the summary's missed. missed*(keep+1) <= total.
type summary struct {
	total  Usage
	missed Usage // the maximum that a name without a row has been charged
	rows   map[unique.Handle[Key]]*entry
}

// entry is the row of one name.
type entry struct {
	seen   Usage // charges since the entry was created
	missed Usage // the maximum that was charged before
	left   Usage // seen, minus the deductions of all prunes
}

// row returns the row of key, and creates it if necessary.
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
	if len(s.rows) == maxEntries && s.rows[key] == nil {
		s.prune()
	}
	e := s.row(key)
	e.seen.add(u)
	e.left.add(u)
}

// prune drops rows. For each kind, it deducts from all rows what the largest row after the first keep rows
// has left. Then at most keep rows have anything left of that kind. Rows with nothing left of any kind are
// dropped.
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

// merge adds other, which is of a later time. The result may have more than maxEntries rows.
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

// period has the costs of a period of time.
type period struct {
	from, to time.Time // to is zero in the current period
	process  time.Duration
	by       [dimensions]summary
}

// add charges the names in keys with u.
func (p *period) add(keys *[dimensions]unique.Handle[Key], u *Usage) {
	for d := range p.by {
		p.by[d].add(keys[d], u)
	}
}

// series has the current period and the latest ones before it.
type series struct {
	length  time.Duration
	most    int // periods before the current one
	past    []*period
	current *period
}

// roll ends the current period if it has reached its length, and discards old ones. A period lasts until
// roll is called.
func (s *series) roll(now time.Time) {
	if now.Sub(s.current.from) >= s.length {
		s.current.to = now
		s.past = append(s.past, s.current)
		s.current = &period{from: now}
	}
	oldest := now.Add(-time.Duration(s.most) * s.length)
	for len(s.past) > s.most || len(s.past) > 0 && !s.past[0].to.After(oldest) {
		s.past = slices.Delete(s.past, 0, 1)
	}
}

// periods returns all of them, in their order.
func (s *series) periods() []*period { return append(s.past[:len(s.past):len(s.past)], s.current) }
