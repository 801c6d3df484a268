package report

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/larder-io/larder/bench"
	"github.com/larder-io/larder/bench/testservers"
)

// pairs returns a Markdown table that compares the servers. Results have names of the form
// "SERVER: WORK". Each row is one figure: the median of all rounds with minimum and maximum, and kube-apiserver's
// figure divided by Larder's.
func pairs(results []*bench.Result) string {
	type key struct{ work, figure string }
	var order []key
	values := make(map[key]map[string][]bench.Value) // by server
	for _, r := range results {
		server, work, _ := strings.Cut(r.Name, ": ")
		for _, v := range r.Figures() {
			k := key{work, v.Name}
			if values[k] == nil {
				values[k] = make(map[string][]bench.Value)
				order = append(order, k)
			}
			values[k][server] = append(values[k][server], v)
		}
	}
	works := make(map[string]int) // keeps the figures of a workload together
	for _, k := range order {
		if _, ok := works[k.work]; !ok {
			works[k.work] = len(works)
		}
	}
	slices.SortStableFunc(order, func(a, b key) int { return cmp.Compare(works[a.work], works[b.work]) })
	var b strings.Builder
	b.WriteString(bench.MarkdownHead("work", "figure", testservers.Stock, testservers.Larder, "ratio"))
	for _, k := range order {
		stock, stockText := spread(values[k][testservers.Stock])
		larder, larderText := spread(values[k][testservers.Larder])
		ratio := ""
		if stock > 0 && larder > 0 {
			ratio = fmt.Sprintf("%.3g", stock/larder)
		}
		b.WriteString(bench.MarkdownRow(k.work, k.figure, stockText, larderText, ratio))
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
	slices.SortFunc(values, func(a, b bench.Value) int { return cmp.Compare(a.Value, b.Value) })
	least, most, middle := values[0], values[len(values)-1], values[0]
	middle.Value = (values[(len(values)-1)/2].Value + values[len(values)/2].Value) / 2
	if text = middle.String(); least.Value != most.Value {
		text += fmt.Sprintf(" (%s–%s)", least, most)
	}
	return middle.Value, text
}
