package costs

import (
	"cmp"
	"slices"
	"time"
	"unique"
)

// Window is the time that a [Report] is about.
type Window uint8

// The windows. Each begins where one of the periods does that the ledger keeps: a report says
// when.
const (
	LastMinute Window = iota // and up to ten seconds more
	LastFive                 // the last five minutes, and up to one more
	SinceStart               // all the time since the ledger was made
	lastWindow
)

// Query selects and orders the rows of a [Report].
type Query struct {
	Window Window
	By     Dimension
	Sort   Kind // which rows come first: those with the most of it
	Limit  int  // how many rows there are at most; 0 is all that are known
}

// Report is the costs of all clients in a window.
type Report struct {
	From, To time.Time
	Process  time.Duration // the CPU time of the whole process
	Total    Usage         // of everybody, without an error
	// Missed is what a name that has no row has cost at most, if Query.Limit did not leave
	// it out.
	Missed Usage
	Names  int // how many there are, of which Limit may have left some out
	Rows   []Row
}

// Row is the costs of one name: at least Used, and at most Used plus Missed.
type Row struct {
	Key
	Used, Missed Usage
}

// Report answers q with the costs up to now.
func (l *Ledger) Report(q Query) Report {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := time.Now()
	l.sweepByClockLocked(now)
	periods := []*period{l.all}
	switch q.Window {
	case LastMinute:
		periods = l.short.periods()
	case LastFive:
		periods = l.long.periods()
	}
	r := Report{From: periods[0].from, To: now}
	together := tally{rows: make(map[unique.Handle[Key]]*entry)}
	for _, p := range periods {
		together.merge(&p.by[q.By])
		r.Process += p.process
	}
	r.Total, r.Missed, r.Names = together.total, together.missed, len(together.rows)
	r.Rows = make([]Row, 0, len(together.rows))
	for key, e := range together.rows {
		r.Rows = append(r.Rows, Row{Key: key.Value(), Used: e.seen, Missed: e.missed})
	}
	slices.SortFunc(r.Rows, func(a, b Row) int {
		return cmp.Or(-cmp.Compare(a.Used[q.Sort], b.Used[q.Sort]), a.Key.compare(b.Key))
	})
	if q.Limit > 0 && len(r.Rows) > q.Limit {
		r.Rows = r.Rows[:q.Limit:q.Limit]
	}
	return r
}

// compare puts keys into an order.
func (k Key) compare(other Key) int {
	return cmp.Or(cmp.Compare(k.User, other.User), cmp.Compare(k.UserAgent, other.UserAgent),
		cmp.Compare(k.Resource, other.Resource), cmp.Compare(k.Verb, other.Verb))
}
