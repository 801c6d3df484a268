package bench

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"net/http"
	"slices"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"

	"github.com/larder-io/larder/bench/process"
)

// Result is the result of one run of a workload.
type Result struct {
	Name string `json:"name"`
	// Unit is the unit of Ops and of costs: request, delivery, event, watch, list, start.
	Unit string `json:"unit"`
	// Part means that this Result holds one kind of the operations of another Result, which holds the server's cost.
	Part bool `json:"part,omitempty"`
	// Round numbers several runs of a workload from 1; 0 for a single run.
	Round int `json:"round,omitempty"`
	// Loop is OpenLoop or ClosedLoop, or "" without a loop. Late counts the operations of an open loop that began
	// late because no client was free. Their latency includes the wait.
	Loop     string `json:"loop,omitempty"`
	Late     int    `json:"late,omitempty"`
	Protocol string `json:"protocol,omitempty"`
	// Interrupted means that the workload was stopped before its end.
	Interrupted bool `json:"interrupted,omitempty"`
	Counts
	// Retries counts responses of 429 that caused a retry. They are not failures.
	Retries  int         `json:"retries,omitempty"`
	Statuses map[int]int `json:"statuses,omitempty"`
	// FirstError is the text of the first failure, "" without failures.
	FirstError string `json:"firstError,omitempty"`
	// Bytes is the size of the bodies as transferred, possibly compressed.
	Bytes int64         `json:"bytes"`
	Wall  time.Duration `json:"wallNanoseconds"`
	// ServerCPU is the CPU time of the server during the run; 0 without a Process.
	ServerCPU time.Duration `json:"serverCPUNanoseconds"`
	// ClientCPU is the CPU time of this process. On a shared machine it must be small compared with the
	// server's.
	ClientCPU time.Duration `json:"clientCPUNanoseconds"`
	// Before and Server are the server's usage before and after the run.
	Before process.Usage `json:"serverBefore"`
	Server process.Usage `json:"serverAfter"`
	// Reads and Writes count the server's read and write system calls during the run.
	Reads  int64 `json:"serverReadCalls"`
	Writes int64 `json:"serverWriteCalls"`
	// Beside is the CPU time that the target's other processes used.
	Beside []Cost  `json:"beside,omitempty"`
	Values []Value `json:"values,omitempty"`
	// Series has the counts of each second of the measured time, if Target.Series is set. An operation counts in
	// the second in which it ended.
	Series []Counts `json:"-"`
}

// NewResult returns an empty Result.
func NewResult(name, unit string) *Result {
	return &Result{Name: name, Unit: unit, Counts: Counts{Latency: newHistogram(latencyDigits)}}
}

// MarshalJSON implements json.Marshaler. Times are in nanoseconds. For other programs, it adds the rate and the CPU
// time of an operation, which it derives from other fields.
func (r *Result) MarshalJSON() ([]byte, error) {
	type fields Result // without its methods
	out := struct {
		*fields
		Rate     float64       `json:"opsPerSecond"`
		CPUPerOp time.Duration `json:"serverCPUPerOpNanoseconds"`
		// Latency has the mean and percentiles. Its hdr is the whole histogram of microseconds, in the format of
		// HdrHistogram's tools.
		Latency map[string]any `json:"latency,omitempty"`
	}{fields: (*fields)(r), Rate: r.Rate(), CPUPerOp: r.CPUPerOp()}
	if r.Latency != nil && r.Latency.TotalCount() > 0 {
		text, err := r.Latency.Encode(hdrhistogram.V2CompressedEncodingCookieBase)
		if err != nil {
			return nil, fmt.Errorf("bench: histogram: %w", err)
		}
		out.Latency = map[string]any{"mean": time.Duration(r.Latency.Mean() * float64(time.Microsecond)), "hdr": string(text)}
		for _, q := range []float64{50, 75, 90, 95, 99, 99.9, 99.99, 100} {
			out.Latency[fmt.Sprintf("p%g", q)] = r.Quantile(q)
		}
	}
	return json.Marshal(out)
}

// UnmarshalJSON implements json.Unmarshaler.
func (r *Result) UnmarshalJSON(text []byte) error {
	type fields Result // without its methods
	*r = *NewResult("", "")
	in := struct {
		*fields
		Latency struct {
			HDR string `json:"hdr"`
		} `json:"latency"`
	}{fields: (*fields)(r)}
	if err := json.Unmarshal(text, &in); err != nil || in.Latency.HDR == "" {
		return err
	}
	h, err := hdrhistogram.Decode([]byte(in.Latency.HDR))
	if err != nil {
		return fmt.Errorf("bench: histogram: %w", err)
	}
	r.Latency = h
	return nil
}

// Record counts one operation. status is the status of its response, 0 without a response.
func (r *Result) Record(took time.Duration, status int, err error) {
	r.Counts.record(took, status, err)
	if status != 0 {
		r.addStatus(status, 1)
	}
	if err != nil && r.FirstError == "" {
		r.FirstError = err.Error()
	}
}

func (r *Result) addStatus(status, n int) {
	if r.Statuses == nil {
		r.Statuses = make(map[int]int)
	}
	r.Statuses[status] += n
}

// Cost is the CPU time of one process.
type Cost struct {
	Name string        `json:"name"`
	CPU  time.Duration `json:"cpuNanoseconds"`
}

// Value is a named figure of a Result.
type Value struct {
	Name  string  `json:"name"`
	Value float64 `json:"value"`
	// Unit is "B", "s", "/s" or "" for a count.
	Unit string `json:"unit"`
}

// String formats the figure with its unit.
func (v Value) String() string {
	switch v.Unit {
	case "B":
		return Bytes(int64(v.Value))
	case "s":
		return Duration(time.Duration(math.Round(v.Value * float64(time.Second))))
	}
	return fmt.Sprintf("%.4g%s", v.Value, v.Unit)
}

// Value returns the named figure, 0 if the Result does not have it.
func (r *Result) Value(name string) float64 {
	for _, v := range r.Values {
		if v.Name == name {
			return v.Value
		}
	}
	return 0
}

// Add adds a figure.
func (r *Result) Add(name string, value float64, unit string) {
	r.Values = append(r.Values, Value{name, value, unit})
}

// Figures returns all known figures of the result, for tables.
func (r *Result) Figures() []Value {
	var all []Value
	add := func(name string, value float64, unit string) {
		if value != 0 {
			all = append(all, Value{name, value, unit})
		}
	}
	add("CPU of the server", r.ServerCPU.Seconds(), "s")
	for _, c := range r.Beside {
		add("CPU of "+c.Name, c.CPU.Seconds(), "s")
	}
	if r.Part {
		add("a second", r.Rate(), "")
	} else {
		add("CPU of the client", r.ClientCPU.Seconds(), "s")
		add("time", r.Wall.Seconds(), "s")
	}
	add("resident", float64(r.Server.RSS), "B")
	add("resident at most", float64(r.Server.PeakRSS), "B")
	add("bytes", float64(r.Bytes), "B")
	for _, q := range []float64{50, 99, 99.9} {
		add(fmt.Sprintf("p%g", q), r.Quantile(q).Seconds(), "s")
	}
	add("failed", float64(r.Failures()), "")
	return append(all, r.Values...)
}

// CPUPerOp returns the server's CPU time per successful operation.
func (r *Result) CPUPerOp() time.Duration {
	return time.Duration(r.perOp(float64(r.ServerCPU)))
}

// BytesPerOp returns the average size of a body.
func (r *Result) BytesPerOp() int64 { return int64(r.perOp(float64(r.Bytes))) }

func (r *Result) perOp(total float64) float64 {
	if n := r.Succeeded(); n > 0 {
		return total / float64(n)
	}
	return 0
}

// Rate returns the number of successful operations per second.
func (r *Result) Rate() float64 {
	if r.Wall <= 0 {
		return 0
	}
	return float64(r.Succeeded()) / r.Wall.Seconds()
}

// Merge adds up consecutive runs of one workload. It takes the memory from the last run and the Values from the
// first, and concatenates the series.
func Merge(runs ...*Result) *Result {
	if len(runs) == 0 {
		return nil
	}
	sum := runs[0].bare()
	for n, r := range runs {
		sum.include(r)
		for i := range sum.Beside {
			if n > 0 && i < len(r.Beside) {
				sum.Beside[i].CPU += r.Beside[i].CPU
			}
		}
		sum.Wall += r.Wall
		sum.ClientCPU += r.ClientCPU
		sum.ServerCPU += r.ServerCPU
		sum.Reads += r.Reads
		sum.Writes += r.Writes
		sum.Server = r.Server
		sum.Series = append(sum.Series, r.Series...)
	}
	return sum
}

// MergeParallel adds up the Results of one or more concurrent workloads. It omits their times and costs, because a
// Meter measures those of all together.
func MergeParallel(shares ...*Result) *Result {
	sum := shares[0].bare()
	sum.Values = nil
	for _, r := range shares {
		sum.include(r)
		for i := range r.Series {
			if i == len(sum.Series) {
				sum.Series = append(sum.Series, Counts{Latency: newHistogram(secondDigits)})
			}
			sum.Series[i].merge(&r.Series[i])
		}
	}
	return sum
}

// bare copies the fields that are common to all runs of a workload.
func (r *Result) bare() *Result {
	return &Result{
		Name: r.Name, Unit: r.Unit, Part: r.Part, Loop: r.Loop, Protocol: r.Protocol,
		Before: r.Before, Beside: slices.Clone(r.Beside), Values: slices.Clone(r.Values), Counts: Counts{Latency: newHistogram(latencyDigits)},
	}
}

func (r *Result) include(other *Result) {
	r.Counts.merge(&other.Counts)
	r.Retries += other.Retries
	r.Late += other.Late
	r.Bytes += other.Bytes
	r.Interrupted = r.Interrupted || other.Interrupted
	r.FirstError = cmp.Or(r.FirstError, other.FirstError)
	for status, n := range other.Statuses {
		r.addStatus(status, n)
	}
}

// Duration formats d with three digits.
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

// Bytes formats a size with three digits and a decimal unit.
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

func digits(v float64) string {
	switch {
	case v >= 100 || v <= -100:
		return fmt.Sprintf("%.0f", v)
	case v >= 10 || v <= -10:
		return fmt.Sprintf("%.1f", v)
	}
	return fmt.Sprintf("%.2f", v)
}

// Counts counts operations by how they ended.
type Counts struct {
	// Ops counts all operations. Each failure is counted once: in Timeouts if it took longer than
	// Target.Timeout, in Refused if it got 429 (Too Many Requests), otherwise in Errors.
	Ops      int `json:"ops"`
	Errors   int `json:"errors"`
	Timeouts int `json:"timeouts"`
	Refused  int `json:"refused"`
	// Latency holds the duration of each successful operation in microseconds. It excludes failures, whose duration
	// depends on the client's timeout.
	Latency *hdrhistogram.Histogram `json:"-"`
}

// Significant digits of histograms. A long run has one histogram per second, so these have fewer digits to save memory.
const (
	latencyDigits = 3
	secondDigits  = 2
)

// newHistogram returns a histogram of microseconds, up to ten minutes.
func newHistogram(digits int) *hdrhistogram.Histogram {
	return hdrhistogram.New(1, (10 * time.Minute).Microseconds(), digits)
}

// record counts one operation. status is the status of its response, 0 without a response.
func (c *Counts) record(took time.Duration, status int, err error) {
	c.Ops++
	switch {
	case err == nil:
		// An operation that took longer than the histogram's ten minutes is counted without its latency.
		_ = c.Latency.RecordValue(max(1, took.Microseconds()))
	case errors.Is(err, ErrTimeout):
		c.Timeouts++
	case status == http.StatusTooManyRequests:
		c.Refused++
	default:
		c.Errors++
	}
}

func (c *Counts) merge(other *Counts) {
	c.Ops += other.Ops
	c.Errors += other.Errors
	c.Timeouts += other.Timeouts
	c.Refused += other.Refused
	if other.Latency != nil {
		c.Latency.Merge(other.Latency)
	}
}

// Failures returns the number of operations that failed.
func (c *Counts) Failures() int { return c.Errors + c.Timeouts + c.Refused }

// Succeeded returns the number of operations that did not fail.
func (c *Counts) Succeeded() int { return c.Ops - c.Failures() }

// Quantile returns the q-th percentile of the latency, 0 if no operation has succeeded.
func (c *Counts) Quantile(q float64) time.Duration {
	if c.Latency == nil || c.Latency.TotalCount() == 0 {
		return 0
	}
	return time.Duration(c.Latency.ValueAtQuantile(q)) * time.Microsecond
}
