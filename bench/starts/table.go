package starts

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/larder-io/larder/bench"
	"github.com/larder-io/larder/bench/process"
	"github.com/larder-io/larder/bench/testservers"
)

// Cost is what a start took until the server was ready, or until the list was received.
type Cost struct {
	// Wall is the time since the start of the process, Server its usage.
	Wall   time.Duration `json:"wallNanoseconds"`
	Server process.Usage `json:"server"`
	// Etcd is the CPU time of etcd meanwhile.
	Etcd time.Duration `json:"etcdCPUNanoseconds"`
}

// Result is one start.
type Result struct {
	// Data is of Names, Server is Stock or Larder, Round counts from 1.
	Data   string `json:"data"`
	Server string `json:"server"`
	Round  int    `json:"round"`
	// Ready is until /readyz answered 200, Listed until the first list of all objects was
	// received, which has as many Bytes.
	Ready  Cost  `json:"ready"`
	Listed Cost  `json:"listed"`
	Bytes  int64 `json:"listBytes"`
}

// summary is the start in one line.
func (r *Result) summary() string {
	text := func(c *Cost) string {
		return fmt.Sprintf("%s (CPU %s, etcd's %s, at most %s)", bench.Duration(c.Wall), bench.Duration(c.Server.CPU), bench.Duration(c.Etcd), bench.Bytes(c.Server.PeakRSS))
	}
	return fmt.Sprintf("ready after %s, a list of %s after %s", text(&r.Ready), bench.Bytes(r.Bytes), text(&r.Listed))
}

// Table has the cost of all starts.
type Table struct {
	testservers.Head
	// Objects is how many objects of each kind there were.
	Objects int `json:"objects"`
	// Results are all starts, in the order in which they ran.
	Results []*Result `json:"results"`
}

// figure is a column of the table.
type figure struct {
	head   string
	of     func(*Result) float64
	format func(float64) string
	goal   int // its place in the goals; -1 for none
}

const noGoal = -1

// figures returns the columns of a table.
func figures(at func(*Result) *Cost) []figure {
	return []figure{
		{"CPU", func(r *Result) float64 { return at(r).Server.CPU.Seconds() }, seconds, 0},
		{"time", func(r *Result) float64 { return at(r).Wall.Seconds() }, seconds, 1},
		{"resident at most", func(r *Result) float64 { return float64(at(r).Server.PeakRSS) }, sizes, 2},
		{"etcd's CPU", func(r *Result) float64 { return at(r).Etcd.Seconds() }, seconds, noGoal},
	}
}

func seconds(v float64) string { return bench.Duration(time.Duration(v * float64(time.Second))) }
func sizes(v float64) string   { return bench.Bytes(int64(v)) }

// spread is the median of a figure over the rounds, with the least and the most.
type spread struct{ median, least, most float64 }

// over returns the spread of a figure; ok is false without any start.
func (t *Table) over(d *data, server string, f *figure) (s spread, ok bool) {
	var values []float64
	for _, r := range t.Results {
		if r.Data == d.name && r.Server == server {
			values = append(values, f.of(r))
		}
	}
	n := len(values)
	if n == 0 {
		return s, false
	}
	slices.Sort(values)
	return spread{(values[(n-1)/2] + values[n/2]) / 2, values[0], values[n-1]}, true
}

// cell is a figure of both servers and its ratio, and whether that is the goal.
func (t *Table) cell(d *data, f *figure) string {
	stock, had := t.over(d, testservers.Stock, f)
	larder, has := t.over(d, testservers.Larder, f)
	show := func(s spread, ok bool) string {
		switch {
		case !ok:
			return "–"
		case s.least == s.most:
			return f.format(s.median)
		}
		return fmt.Sprintf("%s (%s–%s)", f.format(s.median), f.format(s.least), f.format(s.most))
	}
	text := show(stock, had) + " / " + show(larder, has)
	if f.goal == noGoal || !had || !has || larder.median == 0 {
		return text
	}
	ratio := stock.median / larder.median
	text += fmt.Sprintf(", **%.3g**", ratio)
	if goal := d.goals[f.goal]; ratio < goal {
		text += fmt.Sprintf(" (goal %g)", goal)
	}
	return text
}

// Markdown is the table as text to paste: medians of the rounds with the least and the most.
func (t *Table) Markdown() string {
	var b strings.Builder
	b.WriteString(t.Head.Markdown(""))
	for _, until := range []struct {
		what string
		at   func(*Result) *Cost
	}{
		{"until /readyz answers 200", func(r *Result) *Cost { return &r.Ready }},
		{"until the first list of all objects has been received", func(r *Result) *Cost { return &r.Listed }},
	} {
		all, heads := figures(until.at), []string{"id", "objects"}
		for i := range all {
			heads = append(heads, all[i].head)
		}
		fmt.Fprintf(&b, "\n%d objects, kube-apiserver / Larder, %s:\n\n%s", t.Objects, until.what, bench.MarkdownHead(heads...))
		for _, d := range kinds() {
			if !slices.ContainsFunc(t.Results, func(r *Result) bool { return r.Data == d.name }) {
				continue
			}
			cells := []string{d.id, d.what}
			for i := range all {
				cells = append(cells, t.cell(d, &all[i]))
			}
			b.WriteString(bench.MarkdownRow(cells...))
		}
	}
	if text := t.differing(); text != "" {
		b.WriteString("\n" + text + "\n")
	}
	return b.String()
}

// differing names a list whose length differs from the first list of the same objects: one of
// them must be wrong. Revisions may differ in length.
func (t *Table) differing() string {
	const revision = 8
	first := make(map[string]*Result)
	for _, r := range t.Results {
		switch f := first[r.Data]; {
		case f == nil:
			first[r.Data] = r
		case f.Bytes-r.Bytes > revision || r.Bytes-f.Bytes > revision:
			return fmt.Sprintf("%s: a list of %s has %d bytes, and one of %s %d.", r.Data, f.Server, f.Bytes, r.Server, r.Bytes)
		}
	}
	return ""
}
