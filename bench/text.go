package bench

import (
	"errors"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"
)

// WriteText prints results as an aligned table, one row each, and below it what only
// some of them have to say.
func WriteText(w io.Writer, results ...*Result) error {
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(tw, "workload\tops\terrors\tbytes/op\tops/s\tserver CPU/op\twrites/op\tp50\tp99\tmax\twall\tRSS\tclient CPU\t")
	for _, r := range results {
		fmt.Fprintf(tw, "%s\t%s\t%d\t%s\t%.4g\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t\n",
			r.Name, r.Counted(), r.Errors, Bytes(r.BytesPerOp()), r.Rate(), known(r.ServerCPU, Duration(r.CPUPerOp())), knownCount(r.Writes, r.WritesPerOp()),
			Duration(r.Quantile(50)), Duration(r.Quantile(99)), Duration(r.Quantile(100)), Duration(r.Wall), Bytes(r.Server.RSS), Duration(r.ClientCPU))
	}
	if err := tw.Flush(); err != nil {
		return fmt.Errorf("bench: %w", err)
	}
	for _, r := range results {
		if more := r.Details(); more != "" {
			fmt.Fprintf(w, "%s: %s\n", r.Name, more)
		}
		if r.FirstError != "" {
			fmt.Fprintf(w, "%s: first error: %s\n", r.Name, r.FirstError)
		}
	}
	return nil
}

// Counted is the number of operations with their unit.
func (r *Result) Counted() string {
	switch {
	case r.Ops == 1:
		return "1 " + r.Unit
	case strings.HasSuffix(r.Unit, "y"):
		return fmt.Sprintf("%d %sies", r.Ops, strings.TrimSuffix(r.Unit, "y"))
	case strings.HasSuffix(r.Unit, "ch"):
		return fmt.Sprintf("%d %ses", r.Ops, r.Unit)
	}
	return fmt.Sprintf("%d %ss", r.Ops, r.Unit)
}

// known shows a figure that exists only where the server's process is known.
func known(d time.Duration, text string) string {
	if d == 0 {
		return "-"
	}
	return text
}

func knownCount(n int64, perOp float64) string {
	if n == 0 {
		return "-"
	}
	return fmt.Sprintf("%.3g", perOp)
}

// Details are the figures that have no column.
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

// Thresholds are bounds that a Result must keep. Zero values bound nothing, but for
// MaxErrors, where a negative value bounds nothing.
type Thresholds struct {
	// MaxP50, MaxP99 and MaxLatency bound latencies.
	MaxP50, MaxP99, MaxLatency time.Duration
	// MaxCPUPerOp bounds the server's CPU time per operation.
	MaxCPUPerOp time.Duration
	// MaxErrors bounds the number of operations that failed.
	MaxErrors int
	// MinRate bounds operations per second from below.
	MinRate float64
	// MaxRSS and MaxPeakRSS bound the server's resident memory in bytes.
	MaxRSS, MaxPeakRSS int64
}

// ErrThreshold is wrapped by the errors of Thresholds.Check.
var ErrThreshold = errors.New("threshold crossed")

// Check returns an error that names each bound which a result crosses, nil if none
// does. A bound on what was not measured is crossed: it would pass unseen otherwise.
func (t Thresholds) Check(results ...*Result) error {
	var crossed []error
	fail := func(r *Result, format string, args ...any) {
		crossed = append(crossed, fmt.Errorf("%w: %s: %s", ErrThreshold, r.Name, fmt.Sprintf(format, args...)))
	}
	for _, r := range results {
		if t.MaxErrors >= 0 && r.Errors > t.MaxErrors {
			fail(r, "%d errors, at most %d allowed", r.Errors, t.MaxErrors)
		}
		for _, bound := range []struct {
			name string
			q    float64
			most time.Duration
		}{{"p50", 50, t.MaxP50}, {"p99", 99, t.MaxP99}, {"longest latency", 100, t.MaxLatency}} {
			if bound.most > 0 && (r.Quantile(100) == 0 || r.Quantile(bound.q) > bound.most) {
				fail(r, "%s is %s, at most %s allowed", bound.name, Duration(r.Quantile(bound.q)), Duration(bound.most))
			}
		}
		if t.MaxCPUPerOp > 0 && (r.ServerCPU == 0 || r.CPUPerOp() > t.MaxCPUPerOp) {
			fail(r, "server CPU per %s is %s, at most %s allowed", r.Unit, known(r.ServerCPU, Duration(r.CPUPerOp())), Duration(t.MaxCPUPerOp))
		}
		if r.Rate() < t.MinRate {
			fail(r, "%.4g per second, at least %.4g wanted", r.Rate(), t.MinRate)
		}
		for _, bound := range []struct {
			name      string
			is, limit int64
		}{{"RSS", r.Server.RSS, t.MaxRSS}, {"peak RSS", r.Server.PeakRSS, t.MaxPeakRSS}} {
			if bound.limit > 0 && (bound.is == 0 || bound.is > bound.limit) {
				fail(r, "%s is %s, at most %s allowed", bound.name, Bytes(bound.is), Bytes(bound.limit))
			}
		}
	}
	return errors.Join(crossed...)
}

// String is one line for people.
func (p Progress) String() string {
	if p.Name == "" {
		return ""
	}
	var b strings.Builder
	fmt.Fprintf(&b, "%s: %d", p.Name, p.Done)
	if p.Total > 0 {
		fmt.Fprintf(&b, "/%d", p.Total)
	}
	if p.Elapsed > 0 {
		fmt.Fprintf(&b, ", %.4g/s", float64(p.Done)/p.Elapsed.Seconds())
	}
	if p.Errors > 0 {
		fmt.Fprintf(&b, ", %d errors", p.Errors)
	}
	if p.P99 > 0 {
		fmt.Fprintf(&b, ", p50 %s, p99 %s", Duration(p.P50), Duration(p.P99))
	}
	if p.Total > p.Done && p.Done > 0 {
		left := p.Elapsed * time.Duration(p.Total-p.Done) / time.Duration(p.Done)
		fmt.Fprintf(&b, ", %s left", left.Round(time.Second))
	}
	return b.String()
}
