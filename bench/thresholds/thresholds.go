package thresholds

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/larder-io/larder/bench"
)

// ErrThreshold is wrapped by errors about crossed bounds.
var ErrThreshold = errors.New("threshold crossed")

// Figure is a figure of a Result that can have a bound.
type Figure struct {
	// Name is the name of its flag, such as max-p99 or min-rate.
	Name string
	Help string
	// Default is the default bound, -1 for none.
	Default float64
	// Cost means that the figure is read from the server's process. It is unknown for parts of a result.
	Cost bool

	unit string // of a bench.Value
	of   func(*bench.Result) float64
	// compared is the name of the figure in comparisons with an earlier run, "" for none.
	compared string
	least    bool // whether the bound is a minimum, so that more is better
}

// known reports whether the figure was measured. Figures without a unit are counts, which are
// always known.
func (f *Figure) known(r *bench.Result) bool { return f.unit == "" || f.of(r) > 0 }

// none is the Default of figures without a default bound.
const none = -1

// Figures returns all figures that can have a bound.
func Figures() []*Figure {
	quantile := func(q float64) func(*bench.Result) float64 {
		return func(r *bench.Result) float64 { return r.Quantile(q).Seconds() }
	}
	return []*Figure{
		{Name: "max-p50", Help: "median latency", Default: none, unit: "s", of: quantile(50), compared: "p50"},
		{Name: "max-p99", Help: "99th percentile of the latency", Default: none, unit: "s", of: quantile(99), compared: "p99"},
		{Name: "max-latency", Help: "longest latency", Default: none, unit: "s", of: quantile(100)},
		{Name: "min-rate", Help: "operations per second", Default: none, of: (*bench.Result).Rate, least: true, compared: "operations per second"},
		{Name: "max-errors", Help: "failed operations, except timeouts and responses of 429; -1 for any number (default 0)", of: func(r *bench.Result) float64 { return float64(r.Errors) }},
		{Name: "max-timeouts", Help: "operations that exceed --timeout; -1 for any number (default 0)", of: func(r *bench.Result) float64 { return float64(r.Timeouts) }},
		{Name: "max-refused", Help: "operations that get 429; -1 for any number (default 0)", of: func(r *bench.Result) float64 { return float64(r.Refused) }},
		{
			Name: "max-cpu-per-op", Help: "server CPU time per operation; needs --pid", Default: none, unit: "s", Cost: true,
			of: func(r *bench.Result) float64 { return r.CPUPerOp().Seconds() }, compared: "server CPU per operation",
		},
		{
			Name: "max-rss", Help: "the server's resident bytes afterwards; needs --pid", Default: none, unit: "B", Cost: true,
			of: func(r *bench.Result) float64 { return float64(r.Server.RSS) },
		},
		{
			Name: "max-peak-rss", Help: "the server's resident bytes at any time; needs --pid", Default: none, unit: "B", Cost: true,
			of: func(r *bench.Result) float64 { return float64(r.Server.PeakRSS) },
		},
	}
}

// text formats a value of the figure with its unit.
func (f *Figure) text(v float64) string { return bench.Value{Value: v, Unit: f.unit}.String() }

// Bound is the maximum, or minimum, of a figure.
type Bound struct {
	Figure *Figure
	// Of is a result's name. The bound also applies to results whose names begin with Of and a space. If
	// Of is "", the bound applies to every result that is not part of another.
	Of    string
	Limit float64
}

// ParseBound parses a bound such as 20ms or list=200ms.
func ParseBound(f *Figure, text string) (Bound, error) {
	b := Bound{Figure: f}
	value := text
	if cut := strings.LastIndexByte(text, '='); cut >= 0 {
		b.Of, value = text[:cut], text[cut+1:]
		if b.Of == "" {
			return b, fmt.Errorf("thresholds: %q names no kind before the =", text)
		}
	}
	if f.unit == "s" {
		d, err := time.ParseDuration(value)
		if err != nil || d <= 0 {
			return b, fmt.Errorf("thresholds: %q is not a duration such as 20ms", value)
		}
		b.Limit = d.Seconds()
		return b, nil
	}
	v, err := strconv.ParseFloat(value, 64)
	if err != nil || !(v >= 0 || (v == none && f.Default != none)) {
		return b, fmt.Errorf("thresholds: %q is not a number of 0 or more", value)
	}
	b.Limit = v
	return b, nil
}

// Thresholds holds the bounds of results.
type Thresholds struct{ Bounds []Bound }

// complete returns the bounds, and the default bounds of figures without a general bound.
func (t Thresholds) complete() []Bound {
	bounds := slices.Clone(t.Bounds)
	for _, f := range Figures() {
		general := func(b Bound) bool { return b.Figure.Name == f.Name && b.Of == "" }
		if f.Default != none && !slices.ContainsFunc(t.Bounds, general) {
			bounds = append(bounds, Bound{Figure: f, Limit: f.Default})
		}
	}
	return bounds
}

// bounds reports whether the bound applies to the result.
func (b Bound) bounds(r *bench.Result) bool {
	if b.Of == "" {
		return !r.Part
	}
	return r.Name == b.Of || strings.HasPrefix(r.Name, b.Of+" ")
}

// Check returns an error for a bound that applies to no result of a workload, or whose figure is not measured. results
// has the Name and Part of each result that the workload will return.
func (t Thresholds) Check(results []*bench.Result) error {
	for _, b := range t.Bounds {
		var names []string
		found := false
		for _, r := range results {
			names = append(names, strconv.Quote(r.Name))
			if !b.bounds(r) {
				continue
			}
			found = true
			if r.Part && b.Figure.Cost {
				return fmt.Errorf("thresholds: --%s of %q cannot be checked, because the server's usage is measured for all kinds together; omit %q", b.Figure.Name, r.Name, b.Of+"=")
			}
		}
		if !found {
			return fmt.Errorf("thresholds: --%s %s=…: no result has this name; there are %s", b.Figure.Name, b.Of, strings.Join(names, ", "))
		}
	}
	return nil
}

// Case is one bound on one result.
type Case struct {
	// Result is the name of the result, Bound the flag with its value.
	Result string `json:"result"`
	Bound  string `json:"bound"`
	// Is is the formatted figure. Crossed means that the figure is beyond the bound.
	Is      string `json:"is"`
	Crossed bool   `json:"crossed"`
}

// Evaluate compares results with all bounds. A bound on a figure that was not measured is crossed, so that it
// cannot pass unnoticed.
func (t Thresholds) Evaluate(results []*bench.Result) []Case {
	var cases []Case
	for _, r := range results {
		for _, b := range t.complete() {
			if !b.bounds(r) || b.Limit == none {
				continue
			}
			v := b.Figure.of(r)
			c := Case{Result: r.Name, Bound: fmt.Sprintf("--%s %s", b.Figure.Name, b.Figure.text(b.Limit)), Is: b.Figure.text(v)}
			if r.Round > 0 {
				c.Result += fmt.Sprintf(", round %d", r.Round)
			}
			switch {
			case !b.Figure.known(r):
				c.Is, c.Crossed = "unknown", true
				if r.Succeeded() == 0 {
					c.Is += fmt.Sprintf(", because none of %s has succeeded", r.Counted())
				}
				if r.FirstError != "" {
					c.Is += "; first error: " + r.FirstError
				}
			case b.Figure.least:
				c.Crossed = v < b.Limit
			default:
				c.Crossed = v > b.Limit
			}
			cases = append(cases, c)
		}
	}
	return cases
}

// Err returns an error that names each crossed bound, nil if there is none.
func Err(cases []Case) error {
	var crossed []error
	for _, c := range cases {
		if c.Crossed {
			crossed = append(crossed, fmt.Errorf("%w: %s: %s, but it is %s", ErrThreshold, c.Result, c.Bound, c.Is))
		}
	}
	return errors.Join(crossed...)
}
