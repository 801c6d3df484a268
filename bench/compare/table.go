package compare

import (
	"cmp"
	"fmt"
	"strings"

	"github.com/larder-io/larder/bench"
	"github.com/larder-io/larder/bench/testservers"
)

// The servers that are compared.
const (
	Stock  = testservers.Stock
	Limit  = "limit"
	Larder = testservers.Larder
)

// kinds are all servers, in the order of their columns.
var kinds = []string{Stock, Limit, Larder}

// Unit is the unit of a Figure.
type Unit string

// Units of figures.
const (
	Seconds   Unit = "s"  // of CPU or time
	Memory    Unit = "B"  // resident
	PerSecond Unit = "/s" // more is better
	Times     Unit = "x"  // a multiple of another figure
)

// Format formats a figure with its unit.
func (u Unit) Format(v float64) string {
	switch u {
	case PerSecond:
		return fmt.Sprintf("%.0f%s", v, u)
	case Times:
		return fmt.Sprintf("%.3g times", v)
	}
	return bench.Value{Value: v, Unit: string(u)}.String()
}

// Figure is one measurement of all servers.
type Figure struct {
	// Name names the figure, "" for the server's CPU time for one operation.
	Name string `json:"name,omitempty"`
	Unit Unit   `json:"unit"`
	// Best holds each server's best value. It lacks servers that were not measured.
	Best map[string]float64 `json:"best"`

	of func(*bench.Result) float64 // takes it from a result
}

// Ratio returns how many times better Larder is than kube-apiserver. It is 0 if a value is missing or not positive.
func (f Figure) Ratio() float64 {
	larder, stock := max(0, f.Best[Larder]), max(0, f.Best[Stock])
	switch {
	case larder*stock == 0:
		return 0
	case f.Unit == PerSecond:
		return larder / stock
	}
	return stock / larder
}

// OfLimit returns Larder's value divided by the limit's, 0 if unknown.
func (f Figure) OfLimit() float64 {
	if limit := f.Best[Limit]; limit > 0 {
		return max(0, f.Best[Larder]) / limit
	}
	return 0
}

// Row is one line of the table.
type Row struct {
	// ID identifies the row in documents and comments. It never changes.
	ID   string `json:"id"`
	Work string `json:"work"`
	// Body is the size of Larder's response, 0 if the table does not show it.
	Body    int64                      `json:"bodyBytes,omitempty"`
	Figures []Figure                   `json:"figures"`
	Results map[string][]*bench.Result `json:"results"`

	body   bool // whether to show the size of the response
	worst  bool // use the worst round, because the others may reuse memory that was free before
	median bool // use the median, because a single round may have no slow request
}

// RSS returns the resident memory of a server after the row's last round.
func (r *Row) RSS(k string) int64 {
	if n := len(r.Results[k]); n > 0 {
		return r.Results[k][n-1].Server.RSS
	}
	return 0
}

// Errors returns the number of a server's failed operations and the first error.
func (r *Row) Errors(k string) (n int, first string) {
	for _, result := range r.Results[k] {
		n += result.Failures()
		first = cmp.Or(first, result.FirstError)
	}
	return n, first
}

// Table is the whole comparison.
type Table struct {
	// Servers describes the compared versions, the protocol and the etcd.
	Servers string `json:"servers"`
	// Rounds is how often each server ran each row.
	Rounds int    `json:"rounds"`
	Rows   []*Row `json:"rows"`
}

// each joins the texts of all figures, "" for none.
func (r *Row) each(text func(Figure) string) string {
	var parts []string
	for _, f := range r.Figures {
		if part := text(f); part != "" {
			parts = append(parts, part)
		}
	}
	return strings.Join(parts, ", ")
}

func (r *Row) cell(k string) string {
	return r.each(func(f Figure) string {
		if f.Best[k] <= 0 {
			return ""
		}
		return strings.TrimSuffix(f.Unit.Format(f.Best[k])+" "+f.Name, " ")
	})
}

func (r *Row) ratios(ratio func(Figure) float64) string {
	return r.each(func(f Figure) string {
		if ratio(f) == 0 {
			return ""
		}
		return fmt.Sprintf("%.3g", ratio(f))
	})
}

func (r *Row) cells() []string {
	body, memory := "", ""
	if r.Body > 0 {
		body = bench.Bytes(r.Body)
	}
	if stock, larder := r.RSS(Stock), r.RSS(Larder); stock+larder > 0 {
		memory = bench.Bytes(stock) + " / " + bench.Bytes(larder)
	}
	return []string{r.ID, r.Work, body, r.cell(Stock), r.cell(Limit), r.cell(Larder), r.ratios(Figure.Ratio), r.ratios(Figure.OfLimit), memory}
}

// legend explains the figures of the table. It is a format for the number of rounds.
const legend = "CPU time of the server's process for one operation: the best of %d rounds, or the median in rows with p99.9. Some rows also have latencies, rates and resident memory. " +
	"The limit is a bare TLS server that sends Larder's recorded responses from memory. Ratios above 1 are in Larder's favour. \"Of the limit\" is Larder's figure divided by the limit's.\n\n"

// Markdown returns the table in Markdown.
func (t *Table) Markdown() string {
	var b strings.Builder
	fmt.Fprintf(&b, legend, t.Rounds)
	b.WriteString(bench.MarkdownHead("id", "work", "body", "kube-apiserver", "limit", "Larder", "ratio", "of the limit", "RSS, kube-apiserver / Larder"))
	for _, r := range t.Rows {
		b.WriteString(bench.MarkdownRow(r.cells()...))
	}
	for _, r := range t.Rows {
		for _, k := range kinds {
			if len(r.Results[k]) > 1 {
				fmt.Fprintf(&b, "\n%s, %s: %s\n", r.ID, k, bench.Spread(r.Results[k]))
			}
			if n, first := r.Errors(k); n > 0 {
				fmt.Fprintf(&b, "\n%s: %s had %d errors, the first: %s\n", r.ID, k, n, first)
			}
		}
	}
	return b.String()
}

// EachRound returns the results of all rounds, named by row and server.
func (t *Table) EachRound() []*bench.Result {
	var all []*bench.Result
	for _, r := range t.Rows {
		for _, k := range kinds {
			for i, result := range r.Results[k] {
				named := *result
				named.Name, named.Round = r.ID+" "+k, i+1
				all = append(all, &named)
			}
		}
	}
	return all
}

// Larder returns Larder's results, merged over all rounds of a row and named by the row.
func (t *Table) Larder() []*bench.Result {
	var all []*bench.Result
	for _, r := range t.Rows {
		if merged := bench.Merge(r.Results[Larder]...); merged != nil {
			merged.Name = r.ID
			all = append(all, merged)
		}
	}
	return all
}
