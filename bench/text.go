package bench

import (
	"bytes"
	"fmt"
	"io"
	"maps"
	"os"
	"runtime"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/larder-io/larder/bench/process"
)

// WriteText prints an aligned table with one row for all rounds of each workload, and notes below it.
func WriteText(w io.Writer, results ...*Result) error {
	loops, protocols := make(map[string]bool), make(map[string]bool)
	var notes strings.Builder
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(tw, "workload\tops\tfailed\tbytes/op\tops/s\tserver CPU/op\tp50\tp99\tmax\twall\tRSS\tclient CPU\t")
	for _, each := range Rounds(results) {
		r := Merge(each...)
		fmt.Fprintf(tw, "%s\t%s\t%d\t%s\t%.4g\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t\n",
			r.Name, r.Counted(), r.Failures(), Bytes(r.BytesPerOp()), r.Rate(), known(r.ServerCPU, Duration(r.CPUPerOp())),
			Duration(r.Quantile(50)), Duration(r.Quantile(99)), Duration(r.Quantile(100)), Duration(r.Wall), known(r.Server.RSS, Bytes(r.Server.RSS)), known(r.ClientCPU, Duration(r.ClientCPU)))
		loops[r.Loop] = true
		if r.Protocol != "" {
			protocols[r.Protocol] = true
		}
		for _, more := range []string{r.Details(), r.Endings(), Spread(each)} {
			if more != "" {
				fmt.Fprintf(&notes, "%s: %s\n", r.Name, more)
			}
		}
		if r.FirstError != "" {
			fmt.Fprintf(&notes, "%s: first error: %s\n", r.Name, r.FirstError)
		}
	}
	if err := tw.Flush(); err != nil {
		return fmt.Errorf("bench: %w", err)
	}
	fmt.Fprint(w, &notes)
	if len(protocols) > 0 {
		fmt.Fprintf(w, "Protocol: %s.\n", strings.Join(slices.Sorted(maps.Keys(protocols)), ", "))
	}
	if loops[OpenLoop] {
		fmt.Fprintln(w, "Open loop: latency counts from when an operation was due, so a stall counts for every operation that it delayed (no coordinated omission).")
	}
	if loops[ClosedLoop] {
		fmt.Fprintln(w, "Closed loop: latency counts from each request, so a stall counts only once (coordinated omission).")
	}
	return nil
}

// MarkdownRow returns a row of a Markdown table.
func MarkdownRow(cells ...string) string { return "| " + strings.Join(cells, " | ") + " |\n" }

// MarkdownHead returns the head of a Markdown table.
func MarkdownHead(cells ...string) string {
	return MarkdownRow(cells...) + strings.Repeat("|---", len(cells)) + "|\n"
}

// Rounds groups results by name, in the order in which names first appear.
func Rounds(results []*Result) [][]*Result {
	var groups [][]*Result
	at := make(map[string]int)
	for _, r := range results {
		i, ok := at[r.Name]
		if !ok {
			i = len(groups)
			at[r.Name] = i
			groups = append(groups, nil)
		}
		groups[i] = append(groups[i], r)
	}
	return groups
}

// Endings describes failures, retries and late operations, "" if there are none.
func (r *Result) Endings() string {
	var parts []string
	if r.Interrupted {
		parts = append(parts, "interrupted: the figures cover the completed operations")
	}
	if r.Late > 0 {
		parts = append(parts, fmt.Sprintf("%d began late because no client was free: add clients to keep the rate", r.Late))
	}
	if r.Failures() > 0 {
		parts = append(parts, fmt.Sprintf("%d errors, %d timeouts, %d refused (429), which latencies exclude", r.Errors, r.Timeouts, r.Refused))
	}
	if r.Retries > 0 {
		parts = append(parts, fmt.Sprintf("%d sent again after Retry-After", r.Retries))
	}
	others := false
	var responses []string
	for _, status := range slices.Sorted(maps.Keys(r.Statuses)) {
		responses = append(responses, fmt.Sprintf("%d of %d", r.Statuses[status], status))
		others = others || status/100 != 2
	}
	if others {
		parts = append(parts, "responses: "+strings.Join(responses, ", "))
	}
	return strings.Join(parts, "; ")
}

// Spread describes how the rounds of a workload differ, "" for a single round.
func Spread(rounds []*Result) string {
	if len(rounds) < 2 {
		return ""
	}
	var parts []string
	figures := func(r *Result) []Value {
		return []Value{{"p50", r.Quantile(50).Seconds(), "s"}, {"p99", r.Quantile(99).Seconds(), "s"}, {"ops/s", r.Rate(), ""}, {"server CPU/op", r.CPUPerOp().Seconds(), "s"}}
	}
	for i, figure := range figures(rounds[0]) {
		var values []float64
		var texts []string
		for _, r := range rounds {
			v := figures(r)[i]
			values, texts = append(values, v.Value), append(texts, v.String())
		}
		if median := Median(values); median > 0 {
			parts = append(parts, fmt.Sprintf("%s %s (spread %.0f %%)", figure.Name, strings.Join(texts, ", "), 100*(slices.Max(values)-slices.Min(values))/median))
		}
	}
	return fmt.Sprintf("%d rounds: %s", len(rounds), strings.Join(parts, "; "))
}

// Median returns the median of values, which must not be empty.
func Median(values []float64) float64 {
	sorted := slices.Sorted(slices.Values(values))
	return (sorted[(len(sorted)-1)/2] + sorted[len(sorted)/2]) / 2
}

// Counted returns the number of operations with their unit.
func (r *Result) Counted() string {
	if r.Ops == 1 {
		return "1 " + r.Unit
	}
	return fmt.Sprintf("%d %s", r.Ops, strings.NewReplacer("ys", "ies", "chs", "ches").Replace(r.Unit+"s"))
}

// known returns text, or "-" if figure is 0. Figures of the server are unknown without its process.
func known[N int64 | time.Duration](figure N, text string) string {
	if figure == 0 {
		return "-"
	}
	return text
}

// Details returns the figures that have no column.
func (r *Result) Details() string {
	var parts []string
	for _, v := range r.Values {
		parts = append(parts, v.Name+" "+v.String())
	}
	for _, c := range r.Beside {
		parts = append(parts, "CPU of "+c.Name+" "+Duration(c.CPU))
	}
	return strings.Join(parts, ", ")
}

// Machine describes this machine in one line.
func Machine() string {
	parts := []string{fmt.Sprintf("%d CPUs", runtime.NumCPU())}
	if info, err := os.ReadFile("/proc/cpuinfo"); err == nil {
		if _, rest, found := bytes.Cut(info, []byte("model name")); found {
			line, _, _ := bytes.Cut(rest, []byte("\n"))
			parts[0] += " (" + strings.Trim(string(line), " \t:") + ")"
		}
	}
	if info, err := os.ReadFile("/proc/meminfo"); err == nil {
		parts = append(parts, Bytes(process.Figure(info, "MemTotal:")<<10)+" of memory")
	}
	system := runtime.GOOS + "/" + runtime.GOARCH
	if release, err := os.ReadFile("/proc/sys/kernel/osrelease"); err == nil {
		system += " " + strings.TrimSpace(string(release))
	}
	return strings.Join(append(parts, system, runtime.Version()), ", ")
}
