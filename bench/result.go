package bench

import (
	"encoding/json"
	"fmt"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"

	"github.com/larder-io/larder/bench/process"
)

// Result is what one run of a workload did and cost.
type Result struct {
	// Name says what was run.
	Name string
	// Unit is what Ops counts and costs are divided by: request, delivery, event,
	// watch, list, start.
	Unit string
	// Ops counts what was done, failures included.
	Ops, Errors int
	// FirstError is the first error's text, "" for none.
	FirstError string
	// Bytes counts bodies as they came, compressed if they were.
	Bytes int64
	// Wall is the time of the measured part.
	Wall time.Duration
	// ServerCPU is what the server used during the run; 0 without a Process.
	ServerCPU time.Duration
	// ClientCPU is what this process used: on a shared machine it must stay small
	// beside the server's.
	ClientCPU time.Duration
	// Before and Server are the server's state before and after the run. The counts of
	// calls in Calls are their difference.
	Before, Server process.Usage
	// Reads and Writes are the server's system calls of these kinds during the run.
	Reads, Writes int64
	// Beside is the CPU time that the target's other processes used.
	Beside []Cost
	// Latency holds the time of each successful operation in microseconds.
	Latency *hdrhistogram.Histogram
	// Values are figures that only this workload has.
	Values []Value
}

// Cost is the CPU time of one process.
type Cost struct {
	Name string        `json:"name"`
	CPU  time.Duration `json:"cpuNanoseconds"`
}

// Value is one more figure of a Result.
type Value struct {
	Name  string  `json:"name"`
	Value float64 `json:"value"`
	// Unit is "B", "s", "/s" or "" for a count.
	Unit string `json:"unit"`
}

// String formats the figure for people.
func (v Value) String() string {
	switch v.Unit {
	case "B":
		return Bytes(int64(v.Value))
	case "s":
		return Duration(time.Duration(v.Value * float64(time.Second)))
	}
	return fmt.Sprintf("%.4g%s", v.Value, v.Unit)
}

// Value returns the named figure, 0 if the Result has none of the name.
func (r *Result) Value(name string) float64 {
	for _, v := range r.Values {
		if v.Name == name {
			return v.Value
		}
	}
	return 0
}

func (r *Result) add(name string, value float64, unit string) {
	r.Values = append(r.Values, Value{name, value, unit})
}

// CPUPerOp is the server's CPU time per operation that succeeded.
func (r *Result) CPUPerOp() time.Duration {
	return time.Duration(r.perOp(float64(r.ServerCPU)))
}

// BytesPerOp is the size of one operation's body.
func (r *Result) BytesPerOp() int64 { return int64(r.perOp(float64(r.Bytes))) }

// WritesPerOp is the server's write system calls per operation that succeeded.
func (r *Result) WritesPerOp() float64 { return r.perOp(float64(r.Writes)) }

func (r *Result) perOp(total float64) float64 {
	if n := r.Ops - r.Errors; n > 0 {
		return total / float64(n)
	}
	return 0
}

// Rate is the number of successful operations per second.
func (r *Result) Rate() float64 {
	if r.Wall <= 0 {
		return 0
	}
	return float64(r.Ops-r.Errors) / r.Wall.Seconds()
}

// Quantile returns the latency that q percent of the operations did not exceed.
func (r *Result) Quantile(q float64) time.Duration {
	if r.Latency == nil || r.Latency.TotalCount() == 0 {
		return 0
	}
	return time.Duration(r.Latency.ValueAtQuantile(q)) * time.Microsecond
}

// quantiles are those that JSON holds.
var quantiles = []float64{50, 75, 90, 95, 99, 99.9, 99.99, 100}

// MarshalJSON implements json.Marshaler. Times are in nanoseconds; the whole
// histogram, of microseconds, stands as HdrHistogram's tools read it.
func (r *Result) MarshalJSON() ([]byte, error) {
	out := map[string]any{
		"name": r.Name, "unit": r.Unit, "ops": r.Ops, "errors": r.Errors, "bytes": r.Bytes,
		"wallNanoseconds": r.Wall, "serverCPUNanoseconds": r.ServerCPU, "clientCPUNanoseconds": r.ClientCPU,
		"serverCPUPerOpNanoseconds": r.CPUPerOp(), "opsPerSecond": r.Rate(),
		"serverBefore": r.Before, "serverAfter": r.Server, "serverReadCalls": r.Reads, "serverWriteCalls": r.Writes,
	}
	if r.FirstError != "" {
		out["firstError"] = r.FirstError
	}
	if len(r.Beside) > 0 {
		out["beside"] = r.Beside
	}
	if len(r.Values) > 0 {
		out["values"] = r.Values
	}
	if r.Latency != nil && r.Latency.TotalCount() > 0 {
		raw, err := r.Latency.Encode(hdrhistogram.V2CompressedEncodingCookieBase)
		if err != nil {
			return nil, fmt.Errorf("bench: histogram: %w", err)
		}
		latency := map[string]any{"hdr": string(raw), "mean": int64(r.Latency.Mean() * 1000)}
		for _, q := range quantiles {
			latency[fmt.Sprintf("p%g", q)] = r.Quantile(q)
		}
		out["latency"] = latency
	}
	return json.Marshal(out)
}

// Merge adds up the runs of one workload, to tell of all of them what one tells of
// itself. Memory is that of the last.
func Merge(runs ...*Result) *Result {
	if len(runs) == 0 {
		return nil
	}
	sum := *runs[0]
	sum.Latency = newHistogram()
	sum.Ops, sum.Errors, sum.Bytes, sum.Wall, sum.ServerCPU, sum.ClientCPU, sum.Reads, sum.Writes = 0, 0, 0, 0, 0, 0, 0, 0
	sum.FirstError = ""
	for _, r := range runs {
		sum.Ops += r.Ops
		sum.Errors += r.Errors
		sum.Bytes += r.Bytes
		sum.Wall += r.Wall
		sum.ServerCPU += r.ServerCPU
		sum.ClientCPU += r.ClientCPU
		sum.Reads += r.Reads
		sum.Writes += r.Writes
		sum.Server = r.Server
		if sum.FirstError == "" {
			sum.FirstError = r.FirstError
		}
		if r.Latency != nil {
			sum.Latency.Merge(r.Latency)
		}
	}
	return &sum
}

// Duration formats d with three digits, as people write it.
func Duration(d time.Duration) string {
	switch abs := d.Abs(); {
	case abs >= 10*time.Second:
		return fmt.Sprintf("%.1f s", d.Seconds())
	case abs >= time.Second:
		return fmt.Sprintf("%.2f s", d.Seconds())
	case abs >= time.Millisecond:
		return digits(float64(d)/1e6) + " ms"
	case abs == 0:
		return "0"
	}
	return digits(float64(d)/1e3) + " µs"
}

// Bytes formats a size with three digits, in powers of ten.
func Bytes(n int64) string {
	switch v := float64(n); {
	case n >= 1e9 || n <= -1e9:
		return digits(v/1e9) + " GB"
	case n >= 1e6 || n <= -1e6:
		return digits(v/1e6) + " MB"
	case n >= 1e3 || n <= -1e3:
		return digits(v/1e3) + " KB"
	}
	return fmt.Sprintf("%d B", n)
}

// digits prints three digits of v.
func digits(v float64) string {
	switch {
	case v >= 100 || v <= -100:
		return fmt.Sprintf("%.0f", v)
	case v >= 10 || v <= -10:
		return fmt.Sprintf("%.1f", v)
	}
	return fmt.Sprintf("%.2f", v)
}

// newHistogram takes microseconds up to ten minutes with three significant digits.
func newHistogram() *hdrhistogram.Histogram {
	const longest = int64(10 * time.Minute / time.Microsecond)
	return hdrhistogram.New(1, longest, 3)
}
