package definitions

import (
	"fmt"
	"strings"
	"time"

	"github.com/larder-io/larder/bench"
	"github.com/larder-io/larder/bench/testservers"
)

// Memory is the memory of a server in bytes: the live heap after a garbage collection, and the
// resident memory.
type Memory struct {
	Heap int64 `json:"heapBytes"`
	RSS  int64 `json:"rssBytes"`
}

// Step is the cost of one step. PeakRSS is the peak of the resident memory until its end.
type Step struct {
	Name    string        `json:"name"`
	CPU     time.Duration `json:"cpuNanoseconds"`
	Wall    time.Duration `json:"wallNanoseconds"`
	PeakRSS int64         `json:"peakRSSBytes"`
}

// Result is the cost of one server.
type Result struct {
	// Server is Stock or Larder, Round counts from 1.
	Server string `json:"server"`
	Round  int    `json:"round"`
	Steps  []Step `json:"steps"`
	// Empty is the memory of the server before there are CRDs, Described after all
	// documents were read, InUse with one object of each, Idle after a start with all of them.
	Empty     Memory `json:"empty"`
	Described Memory `json:"described"`
	InUse     Memory `json:"inUse"`
	Idle      Memory `json:"idle"`
}

// Table has the results of all servers.
type Table struct {
	testservers.Head
	// Count is how many definitions there were.
	Count   int       `json:"count"`
	Results []*Result `json:"results"`
}

// figure is one row: ok is false if a result does not have it.
type figure struct {
	name   string
	of     func(*Result) (v float64, ok bool)
	format func(float64) string
}

func asTime(v float64) string  { return bench.Duration(time.Duration(v)) }
func asBytes(v float64) string { return bench.Bytes(int64(v)) }

// figures are the rows.
func (t *Table) figures() []figure {
	var all []figure
	for _, name := range []string{stepCreate, stepServed, stepV2, stepV2again, stepV3, stepUse, stepStart} {
		all = append(all, figure{"CPU: " + name, func(r *Result) (float64, bool) {
			for _, s := range r.Steps {
				if s.Name == name {
					return float64(s.CPU), true
				}
			}
			return 0, false
		}, asTime})
	}
	memories := []struct {
		name string
		of   func(*Result) Memory
	}{
		{"after all documents", func(r *Result) Memory { return r.Described }},
		{"in use", func(r *Result) Memory { return r.InUse }},
		{"idle, after a start", func(r *Result) Memory { return r.Idle }},
	}
	for _, m := range memories {
		all = append(all,
			figure{"heap of each, " + m.name, func(r *Result) (float64, bool) {
				return float64(m.of(r).Heap-r.Empty.Heap) / float64(t.Count), m.of(r).Heap > 0
			}, asBytes},
			figure{"resident of each, " + m.name, func(r *Result) (float64, bool) {
				return float64(m.of(r).RSS-r.Empty.RSS) / float64(t.Count), m.of(r).Heap > 0
			}, asBytes})
	}
	return append(all, figure{"resident at most", func(r *Result) (most float64, ok bool) {
		for _, s := range r.Steps {
			most = max(most, float64(s.PeakRSS))
		}
		return most, most > 0
	}, asBytes})
}

// mean is the mean of a figure at a server.
func (t *Table) mean(server string, f figure) (v float64, ok bool) {
	n := 0
	for _, r := range t.Results {
		if one, has := f.of(r); has && r.Server == server {
			v += one
			n++
		}
	}
	return v / float64(max(n, 1)), n > 0
}

// Markdown is the table with both servers and their ratio, for people.
func (t *Table) Markdown() string {
	var b strings.Builder
	b.WriteString(t.Head.Markdown(fmt.Sprintf(" %d definitions.", t.Count)) + "\n" + bench.MarkdownHead("", "kube-apiserver", "Larder", "ratio"))
	for _, f := range t.figures() {
		stock, had := t.mean(testservers.Stock, f)
		larder, has := t.mean(testservers.Larder, f)
		if !had && !has {
			continue
		}
		show := func(v float64, ok bool) string {
			if !ok {
				return "–"
			}
			return f.format(v)
		}
		ratio := "–"
		if had && has && larder > 0 {
			ratio = fmt.Sprintf("%.1f", stock/larder)
		}
		b.WriteString(bench.MarkdownRow(f.name, show(stock, had), show(larder, has), ratio))
	}
	return b.String()
}
