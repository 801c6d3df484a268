package stages

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"
)

// Stage is a part of a Plan.
type Stage struct {
	Length time.Duration
	// From and To are the levels at the beginning and at the end.
	From, To float64
}

// Plan is a sequence of stages. The zero Plan has no stages.
type Plan struct {
	// Open means that levels are operations per second. Otherwise they are numbers of clients.
	Open   bool
	Stages []Stage
}

// Syntax describes the input of Parse for users.
const Syntax = "LENGTH:LEVEL or LENGTH:FROM..TO, separated by commas; levels end in /s (operations per second) or are numbers of clients, as in 10s:0..500/s,1m:500/s"

// Parse reads stages such as 10s:0..500/s,1m:500/s.
func Parse(text string) (Plan, error) {
	var p Plan
	for i, part := range strings.Split(text, ",") {
		part = strings.TrimSpace(part)
		stage, open, err := parseStage(part)
		if err != nil {
			return Plan{}, fmt.Errorf("stages: stage %d, %q: %w; want %s", i+1, part, err, Syntax)
		}
		if i > 0 && open != p.Open {
			return Plan{}, fmt.Errorf("stages: stage %d, %q: rates and numbers of clients cannot be mixed", i+1, part)
		}
		p.Open = open
		p.Stages = append(p.Stages, stage)
	}
	return p, p.check()
}

func parseStage(text string) (s Stage, open bool, err error) {
	length, level, found := strings.Cut(text, ":")
	if !found {
		return s, false, errors.New("no colon")
	}
	if s.Length, err = time.ParseDuration(length); err != nil {
		return s, false, fmt.Errorf("%q is not a duration", length)
	}
	level, open = strings.CutSuffix(level, "/s")
	from, to, ramp := strings.Cut(level, "..")
	if !ramp {
		to = from
	}
	if s.From, err = strconv.ParseFloat(from, 64); err != nil {
		return s, false, fmt.Errorf("%q is not a number", from)
	}
	if s.To, err = strconv.ParseFloat(to, 64); err != nil {
		return s, false, fmt.Errorf("%q is not a number", to)
	}
	return s, open, nil
}

// Constant returns a plan of one level.
func Constant(open bool, length time.Duration, level float64) Plan {
	return Plan{Open: open, Stages: []Stage{{length, level, level}}}
}

// Levels that no client can reach.
const (
	mostRate    = 1e7
	mostClients = 1e5
)

// check returns an error for a plan that cannot be run.
func (p Plan) check() error {
	const longest = 1000 * time.Hour
	for i, s := range p.Stages {
		switch {
		case s.Length <= 0 || s.Length > longest:
			return fmt.Errorf("stages: stage %d lasts %v: want more than 0 and at most %v", i+1, s.Length, longest)
		case !(s.From >= 0 && s.To >= 0) || math.IsInf(s.From+s.To, 0): // also rejects NaN
			return fmt.Errorf("stages: stage %d goes from %g to %g: want levels of 0 or more", i+1, s.From, s.To)
		case p.Open && max(s.From, s.To) > mostRate, !p.Open && max(s.From, s.To) > mostClients:
			return fmt.Errorf("stages: stage %d goes from %g to %g: want at most %g/s or %g clients", i+1, s.From, s.To, mostRate, mostClients)
		case !p.Open && (s.From != math.Trunc(s.From) || s.To != math.Trunc(s.To)):
			return fmt.Errorf("stages: stage %d goes from %g to %g clients: want whole numbers, or rates, which end in /s", i+1, s.From, s.To)
		}
	}
	if p.Most() == 0 || (p.Open && p.Operations() == 0) {
		return errors.New("stages: all levels are 0")
	}
	return nil
}

// IsZero reports whether p has no stages.
func (p Plan) IsZero() bool { return len(p.Stages) == 0 }

// Length returns the length of all stages.
func (p Plan) Length() time.Duration {
	var sum time.Duration
	for _, s := range p.Stages {
		sum += s.Length
	}
	return sum
}

// Most returns the highest level.
func (p Plan) Most() float64 {
	most := 0.0
	for _, s := range p.Stages {
		most = max(most, s.From, s.To)
	}
	return most
}

// First returns the first level that is not 0, for a warm-up.
func (p Plan) First() float64 {
	for _, s := range p.Stages {
		if level := cmp.Or(s.From, s.To); level > 0 {
			return level
		}
	}
	return 0
}

// total returns how many operations are due in a stage of an open plan.
func (s Stage) total() float64 { return (s.From + s.To) / 2 * s.Length.Seconds() }

// Operations returns the number of operations of an open plan.
func (p Plan) Operations() int {
	const rounding = 1e-6 // of the sum
	sum := 0.0
	for _, s := range p.Stages {
		sum += s.total()
	}
	return int(math.Ceil(sum - rounding))
}

// Due returns when operation i of an open plan is due, counted from the plan's beginning.
func (p Plan) Due(i int) time.Duration {
	var before time.Duration
	left := float64(i)
	for _, s := range p.Stages {
		if total := s.total(); left >= total {
			left -= total
			before += s.Length
			continue
		}
		return before + s.due(left)
	}
	return before
}

// due returns when operation n of a stage is due, which is when the integral of its rate reaches n.
func (s Stage) due(n float64) time.Duration {
	if n <= 0 {
		return 0
	}
	slope := (s.To - s.From) / s.Length.Seconds()
	seconds := 2 * n / (s.From + math.Sqrt(s.From*s.From+2*slope*n))
	return time.Duration(seconds * float64(time.Second))
}

// Clients returns the number of clients of a closed plan at a time since its beginning, rounded up; 0 after its end.
func (p Plan) Clients(at time.Duration) int {
	for _, s := range p.Stages {
		if at < s.Length {
			return int(math.Ceil(s.From + (s.To-s.From)*float64(at)/float64(s.Length)))
		}
		at -= s.Length
	}
	return 0
}
