package bench

import (
	"sync/atomic"
	"time"
)

// clock is the measured time of a workload: it stops between pause and resume.
type clock struct{ now atomic.Pointer[clockState] }

type clockState struct {
	passed  time.Duration // in measured parts that have ended
	resumed time.Time     // zero outside of measured parts
}

func newClock() *clock {
	c := &clock{}
	c.now.Store(&clockState{})
	return c
}

func (c *clock) resume(at time.Time) {
	c.now.Store(&clockState{passed: c.now.Load().passed, resumed: at})
}

func (c *clock) pause(at time.Time) {
	s := c.now.Load()
	c.now.Store(&clockState{passed: s.passed + at.Sub(s.resumed)})
}

func (c *clock) passed() time.Duration {
	s := c.now.Load()
	if s.resumed.IsZero() {
		return s.passed
	}
	return s.passed + time.Since(s.resumed)
}

// series gathers the seconds of a Result. A recorder's lock guards it.
type series struct {
	clock *clock
	done  []Counts
}

// now is the second that passes, nil when there is no series.
func (s *series) now() *Counts {
	if s == nil {
		return nil
	}
	n := int(s.clock.passed() / time.Second)
	s.until(n)
	return &s.done[n]
}

// until adds the seconds up to number n.
func (s *series) until(n int) {
	for len(s.done) <= n {
		s.done = append(s.done, Counts{Latency: secondHistogram()})
	}
}

// close adds the seconds at the end in which nothing ended.
func (s *series) close() {
	if passed := s.clock.passed(); passed > 0 {
		s.until(int((passed - 1) / time.Second))
	}
}
