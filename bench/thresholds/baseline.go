package thresholds

import (
	"fmt"
	"io"
	"math"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"

	"github.com/aclements/go-moremath/stats"

	"github.com/larder-io/larder/bench"
)

// LeastRounds is the minimum number of rounds of both runs. With fewer, no difference is statistically significant.
const LeastRounds = 4

// significance is the p-value below which a difference is significant.
const significance = 0.05

// Change compares a figure of a workload with the same figure of an earlier run.
type Change struct {
	Result string `json:"result"`
	Figure string `json:"figure"`
	// Old and New are the medians of OldRounds and NewRounds rounds.
	Old       float64 `json:"old"`
	New       float64 `json:"new"`
	OldRounds int     `json:"oldRounds"`
	NewRounds int     `json:"newRounds"`
	Ratio     float64 `json:"ratio"`
	// P is the p-value of the Mann-Whitney U test, 1 with too few rounds.
	P float64 `json:"p"`
	// Worse means that the figure is significantly worse, by more than the allowed regression.
	Worse bool `json:"worse"`

	text func(float64) string
}

// Significant reports whether the difference is statistically significant.
func (c Change) Significant() bool { return c.P < significance }

// CanCompare returns an error if an earlier run cannot be compared with a run of rounds rounds whose results have
// these names. Nil allows any names.
func CanCompare(old []*bench.Result, names []string, rounds int) error {
	var have []string
	for _, each := range bench.Rounds(old) {
		name := each[0].Name
		have = append(have, strconv.Quote(name))
		if (names == nil || slices.Contains(names, name)) && min(len(each), rounds) < LeastRounds {
			return fmt.Errorf("thresholds: the baseline has %d rounds of %q and this run has %d: both need %d to distinguish a change from chance; run both with --rounds %d, or show only the ratios with --max-regression -1", len(each), name, rounds, LeastRounds, LeastRounds+1)
		}
	}
	for _, name := range names {
		if !slices.Contains(have, strconv.Quote(name)) {
			return fmt.Errorf("thresholds: the baseline has no result %q, but %s", name, strings.Join(have, ", "))
		}
	}
	return nil
}

// Compare compares results with the results of the same names of an earlier run. regression is the
// fraction by which a figure may be worse, such as 0.05. A negative regression allows any change. Results without an
// earlier one are omitted.
func Compare(old, now []*bench.Result, regression float64) ([]Change, error) {
	earlier := make(map[string][]*bench.Result)
	for _, r := range old {
		earlier[r.Name] = append(earlier[r.Name], r)
	}
	var changes []Change
	for _, each := range bench.Rounds(now) {
		for _, f := range Figures() {
			was, is := f.values(earlier[each[0].Name]), f.values(each)
			if f.compared == "" || len(was) == 0 || slices.Contains(was, 0) || slices.Contains(is, 0) {
				continue
			}
			c, err := f.compare(was, is)
			if err != nil {
				return nil, err
			}
			worse := c.Ratio - 1
			if f.least {
				worse = 1/c.Ratio - 1
			}
			c.Result, c.Figure = each[0].Name, f.compared
			c.Worse = regression >= 0 && worse > regression && c.Significant()
			changes = append(changes, c)
		}
	}
	if len(changes) == 0 {
		return nil, fmt.Errorf("thresholds: the baseline and this run have no result in common")
	}
	return changes, nil
}

func (f *Figure) values(results []*bench.Result) []float64 {
	var values []float64
	for _, r := range results {
		values = append(values, f.of(r))
	}
	return values
}

func (f *Figure) compare(old, now []float64) (Change, error) {
	c := Change{Old: bench.Median(old), New: bench.Median(now), OldRounds: len(old), NewRounds: len(now), P: 1, text: f.text}
	c.Ratio = c.New / c.Old
	if min(len(old), len(now)) < LeastRounds {
		return c, nil
	}
	u, err := stats.MannWhitneyUTest(old, now, stats.LocationDiffers)
	switch {
	case err == stats.ErrSamplesEqual: // all values are equal
	case err != nil:
		return c, fmt.Errorf("thresholds: %w", err)
	case !math.IsNaN(u.P):
		c.P = u.P
	}
	return c, nil
}

// WriteChanges prints changes as a table.
func WriteChanges(w io.Writer, changes []Change) error {
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(tw, "compared with the baseline\tfigure\twas\tis\tratio\tp\trounds\t")
	for _, c := range changes {
		p, verdict := fmt.Sprintf("%.3f", c.P), ""
		switch {
		case min(c.OldRounds, c.NewRounds) < LeastRounds:
			p = "too few rounds"
		case c.Worse:
			verdict = "worse"
		case !c.Significant():
			verdict = "no significant difference"
		}
		fmt.Fprintf(tw, "%s\t%s\t%s\t%s\t%.3g\t%s\t%d, %d\t%s\n", c.Result, c.Figure, c.text(c.Old), c.text(c.New), c.Ratio, p, c.OldRounds, c.NewRounds, verdict)
	}
	if err := tw.Flush(); err != nil {
		return fmt.Errorf("thresholds: %w", err)
	}
	return nil
}

// Cases returns the changes as Cases.
func Cases(changes []Change) []Case {
	var cases []Case
	for _, c := range changes {
		cases = append(cases, Case{
			Result: c.Result, Bound: "--baseline: " + c.Figure + " of " + c.text(c.Old),
			Is: fmt.Sprintf("%s, %.3g times as much (p=%.3f)", c.text(c.New), c.Ratio, c.P), Crossed: c.Worse,
		})
	}
	return cases
}
