// Package report writes results as text, JSON and Markdown, and their time series as CSV.
package report

import (
	"encoding/csv"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/larder-io/larder/bench"
	"github.com/larder-io/larder/bench/compare"
	"github.com/larder-io/larder/bench/testservers"
	"github.com/larder-io/larder/bench/thresholds"
)

// Report has all results of one run of a program.
type Report struct {
	SchemaVersion int       `json:"schemaVersion"`
	Title         string    `json:"title"`
	Command       string    `json:"command"`
	Machine       string    `json:"machine"`
	Date          time.Time `json:"date"`
	// Results are the results of single workloads, nil in a report with a Table. Pairs means that they come from
	// several servers and have names of the form "SERVER: WORK".
	Results []*bench.Result `json:"results,omitempty"`
	Pairs   bool            `json:"-"`
	// Cases are the checked thresholds, Changes the differences from an earlier run.
	Cases   []thresholds.Case   `json:"thresholds,omitempty"`
	Changes []thresholds.Change `json:"baseline,omitempty"`
	Table   *compare.Table      `json:"table,omitempty"`
}

// SchemaVersion is the version of the JSON. It increases when a field is removed or changes its meaning, but not when
// a field is added.
const SchemaVersion = 4

// All returns the results of all rounds.
func (r *Report) All() []*bench.Result {
	if r.Table == nil {
		return r.Results
	}
	return r.Table.EachRound()
}

// Read reads the output of Report.JSON.
func Read(from io.Reader) (*Report, error) {
	r := &Report{}
	if err := json.NewDecoder(from).Decode(r); err != nil {
		return nil, fmt.Errorf("report: not JSON from larder-bench: %w", err)
	}
	if r.SchemaVersion != SchemaVersion {
		return nil, fmt.Errorf("report: the JSON has schema version %d, want %d: measure again with this larder-bench", r.SchemaVersion, SchemaVersion)
	}
	return r, nil
}

// JSON writes the report as JSON.
func (r *Report) JSON(w io.Writer) error {
	r.SchemaVersion = SchemaVersion
	encoder := json.NewEncoder(w)
	encoder.SetIndent("", "  ")
	if err := encoder.Encode(r); err != nil {
		return fmt.Errorf("report: %w", err)
	}
	return nil
}

// Evaluated returns the results that thresholds apply to: in a comparison, Larder's.
func (r *Report) Evaluated() []*bench.Result {
	if r.Table == nil {
		return r.Results
	}
	return r.Table.Larder()
}

// Markdown writes the table that compares servers.
func (r *Report) Markdown(w io.Writer) error {
	head, table := fmt.Sprintf("%s, %s.", r.Date.Format(time.DateOnly), r.Machine), ""
	if r.Table != nil {
		head, table = head+" "+r.Table.Servers, r.Table.Markdown()
	} else {
		table = pairs(r.Results)
	}
	if _, err := fmt.Fprintf(w, "%s\n\n    %s\n\n%s", head, r.Command, table); err != nil {
		return fmt.Errorf("report: %w", err)
	}
	return nil
}

// Text writes the report as text.
func (r *Report) Text(w io.Writer) error {
	var err error
	if r.Table != nil || r.Pairs {
		err = r.Markdown(w)
	} else {
		err = bench.WriteText(w, r.Results...)
	}
	if err == nil && len(r.Changes) > 0 {
		err = thresholds.WriteChanges(w, r.Changes)
	}
	return err
}

// pairs returns a Markdown table that compares the servers. Results have names of the form
// "SERVER: WORK". Each row is one figure: the median of all rounds with minimum and maximum, and kube-apiserver's
// figure divided by Larder's.
func pairs(results []*bench.Result) string {
	type key struct{ server, work, figure string }
	values := make(map[key][]bench.Value)
	var works []string
	figures := make(map[string][]string) // by work
	for _, r := range results {
		server, work, _ := strings.Cut(r.Name, ": ")
		if !slices.Contains(works, work) {
			works = append(works, work)
		}
		for _, v := range r.Figures() {
			if !slices.Contains(figures[work], v.Name) {
				figures[work] = append(figures[work], v.Name)
			}
			k := key{server, work, v.Name}
			values[k] = append(values[k], v)
		}
	}
	var b strings.Builder
	b.WriteString(bench.MarkdownHead("work", "figure", testservers.Stock, testservers.Larder, "ratio"))
	for _, work := range works {
		for _, figure := range figures[work] {
			stock, stockText := spread(values[key{testservers.Stock, work, figure}])
			larder, larderText := spread(values[key{testservers.Larder, work, figure}])
			ratio := ""
			if stock > 0 && larder > 0 {
				ratio = fmt.Sprintf("%.3g", stock/larder)
			}
			b.WriteString(bench.MarkdownRow(work, figure, stockText, larderText, ratio))
		}
	}
	for _, r := range results {
		if r.FirstError != "" {
			fmt.Fprintf(&b, "\n%s: %d failures, the first: %s\n", r.Name, r.Failures(), r.FirstError)
		}
	}
	return b.String()
}

// spread returns the median of the values of all rounds, and a text with median, minimum and maximum.
func spread(values []bench.Value) (median float64, text string) {
	if len(values) == 0 {
		return 0, ""
	}
	var figures []float64
	for _, v := range values {
		figures = append(figures, v.Value)
	}
	format := func(v float64) string { return bench.Value{Value: v, Unit: values[0].Unit}.String() }
	median, least, most := bench.Median(figures), slices.Min(figures), slices.Max(figures)
	if text = format(median); least != most {
		text += fmt.Sprintf(" (%s–%s)", format(least), format(most))
	}
	return median, text
}

// CSV writes the counts of each second.
func (r *Report) CSV(w io.Writer) error {
	out := csv.NewWriter(w)
	rows := [][]string{{"result", "round", "second", "ops", "errors", "timeouts", "refused", "p50_ms", "p99_ms"}}
	milliseconds := func(d time.Duration) string { return strconv.FormatFloat(float64(d)/1e6, 'f', 3, 64) }
	for _, result := range r.Results {
		for i := range result.Series {
			s := &result.Series[i]
			rows = append(rows, []string{
				result.Name, strconv.Itoa(max(1, result.Round)), strconv.Itoa(i),
				strconv.Itoa(s.Ops), strconv.Itoa(s.Errors), strconv.Itoa(s.Timeouts), strconv.Itoa(s.Refused),
				milliseconds(s.Quantile(50)), milliseconds(s.Quantile(99)),
			})
		}
	}
	if err := out.WriteAll(rows); err != nil {
		return fmt.Errorf("report: %w", err)
	}
	return nil
}
