package costs

import (
	"time"
	"unique"
)

// period is what was used in some time.
type period struct {
	from, to time.Time // to is zero while it lasts
	process  time.Duration
	by       [dimensions]summary
}

func newPeriod(from time.Time) *period { return &period{from: from} }

// add charges whoever keys name with u.
func (p *period) add(keys *[dimensions]unique.Handle[Key], u *Usage) {
	for d := range p.by {
		p.by[d].add(keys[d], u)
	}
}

// series is the periods of some length that came last, and the present one.
type series struct {
	length  time.Duration
	most    int // periods before the present one
	past    []*period
	current *period
}

// roll ends the present period if it has lasted for its length, and forgets old ones. A
// period lasts longer if nobody looks.
func (s *series) roll(now time.Time) {
	if now.Sub(s.current.from) >= s.length {
		s.current.to = now
		s.past = append(s.past, s.current)
		s.current = newPeriod(now)
	}
	oldest := now.Add(-time.Duration(s.most) * s.length)
	for len(s.past) > s.most || len(s.past) > 0 && !s.past[0].to.After(oldest) {
		s.past[0] = nil
		s.past = s.past[1:]
	}
}

// periods returns all of them, in their order.
func (s *series) periods() []*period { return append(s.past[:len(s.past):len(s.past)], s.current) }
