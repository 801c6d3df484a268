package bench

import (
	"fmt"
	"io"
	"sync"
	"text/tabwriter"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
)

// Result is what one run of a workload did and cost.
type Result struct {
	Name     string
	Requests int
	Errors   int
	// FirstError is the first error's text, "" for none.
	FirstError string
	// Bytes counts bodies as they came, compressed if they were.
	Bytes int64
	Wall  time.Duration
	// ServerCPU is what the server used during the run; 0 without a Process.
	ServerCPU time.Duration
	// Server is the server's state after the run.
	Server Usage
	// Latency holds each request's time in microseconds.
	Latency *hdrhistogram.Histogram
}

// CPUPerRequest is the server's CPU time per request that succeeded.
func (r *Result) CPUPerRequest() time.Duration {
	if n := r.Requests - r.Errors; n > 0 {
		return r.ServerCPU / time.Duration(n)
	}
	return 0
}

// WriteText prints results as an aligned table, one row each.
func WriteText(w io.Writer, results ...*Result) error {
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(tw, "workload\trequests\terrors\tMB\tserver CPU/request\tp50\tp99\twall\tRSS\t")
	for _, r := range results {
		fmt.Fprintf(tw, "%s\t%d\t%d\t%.1f\t%v\t%v\t%v\t%v\t%.0f MB\t\n",
			r.Name, r.Requests, r.Errors, float64(r.Bytes)/1e6, r.CPUPerRequest(),
			r.quantile(50), r.quantile(99), r.Wall.Round(time.Millisecond), float64(r.Server.RSS)/1e6)
	}
	if err := tw.Flush(); err != nil {
		return fmt.Errorf("bench: %w", err)
	}
	for _, r := range results {
		if r.FirstError != "" {
			fmt.Fprintf(w, "%s: first error: %s\n", r.Name, r.FirstError)
		}
	}
	return nil
}

func (r *Result) quantile(q float64) time.Duration {
	return time.Duration(r.Latency.ValueAtQuantile(q)) * time.Microsecond
}

// recorder gathers what concurrent workers saw.
type recorder struct {
	mu     sync.Mutex
	result *Result
}

func newRecorder(name string) *recorder {
	const longest = int64(10 * time.Minute / time.Microsecond)
	return &recorder{result: &Result{Name: name, Latency: hdrhistogram.New(1, longest, 3)}}
}

func (r *recorder) record(took time.Duration, bytes int64, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.result.Requests++
	r.result.Bytes += bytes
	if err != nil {
		r.result.Errors++
		if r.result.FirstError == "" {
			r.result.FirstError = err.Error()
		}
		return
	}
	// Out of range cannot happen: a request that takes ten minutes has failed.
	_ = r.result.Latency.RecordValue(max(1, took.Microseconds()))
}

// measure runs work between two readings of the server's usage.
func measure(t *Target, name string, work func(*recorder) error) (*Result, error) {
	rec := newRecorder(name)
	before, err := t.Process.Usage()
	if err != nil {
		return nil, err
	}
	start := time.Now()
	if err := work(rec); err != nil {
		return nil, err
	}
	rec.result.Wall = time.Since(start)
	after, err := t.Process.Usage()
	if err != nil {
		return nil, err
	}
	rec.result.ServerCPU = after.CPU - before.CPU
	rec.result.Server = after
	return rec.result, nil
}
