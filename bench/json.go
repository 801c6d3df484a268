package bench

import (
	"encoding/json"
	"fmt"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"

	"github.com/larder-io/larder/bench/process"
)

// resultJSON is a Result as JSON. Times are in nanoseconds. What is derived from other
// fields stands for readers that are no Go programs; UnmarshalJSON leaves it out of account.
type resultJSON struct {
	Name        string        `json:"name"`
	Unit        string        `json:"unit"`
	Part        bool          `json:"part,omitempty"`
	Round       int           `json:"round,omitempty"`
	Loop        string        `json:"loop,omitempty"`
	Late        int           `json:"late,omitempty"`
	Protocol    string        `json:"protocol,omitempty"`
	Interrupted bool          `json:"interrupted,omitempty"`
	Ops         int           `json:"ops"`
	Errors      int           `json:"errors"`
	Timeouts    int           `json:"timeouts"`
	Refused     int           `json:"refused"`
	Retries     int           `json:"retries,omitempty"`
	Statuses    map[int]int   `json:"statuses,omitempty"`
	FirstError  string        `json:"firstError,omitempty"`
	Bytes       int64         `json:"bytes"`
	Wall        time.Duration `json:"wallNanoseconds"`
	Rate        float64       `json:"opsPerSecond"`
	ServerCPU   time.Duration `json:"serverCPUNanoseconds"`
	CPUPerOp    time.Duration `json:"serverCPUPerOpNanoseconds"`
	ClientCPU   time.Duration `json:"clientCPUNanoseconds"`
	Before      process.Usage `json:"serverBefore"`
	Server      process.Usage `json:"serverAfter"`
	Reads       int64         `json:"serverReadCalls"`
	Writes      int64         `json:"serverWriteCalls"`
	Beside      []Cost        `json:"beside,omitempty"`
	Values      []Value       `json:"values,omitempty"`
	Latency     *latencyJSON  `json:"latency,omitempty"`
	Series      []secondJSON  `json:"series,omitempty"`
}

// latencyJSON has quantiles, and the whole histogram, of microseconds, as HdrHistogram's tools
// read it.
type latencyJSON struct {
	Mean  time.Duration `json:"mean"`
	P50   time.Duration `json:"p50"`
	P75   time.Duration `json:"p75"`
	P90   time.Duration `json:"p90"`
	P95   time.Duration `json:"p95"`
	P99   time.Duration `json:"p99"`
	P999  time.Duration `json:"p99.9"`
	P9999 time.Duration `json:"p99.99"`
	P100  time.Duration `json:"p100"`
	HDR   string        `json:"hdr"`
}

type secondJSON struct {
	Ops      int           `json:"ops"`
	Errors   int           `json:"errors"`
	Timeouts int           `json:"timeouts"`
	Refused  int           `json:"refused"`
	P50      time.Duration `json:"p50"`
	P99      time.Duration `json:"p99"`
	HDR      string        `json:"hdr,omitempty"`
}

// MarshalJSON implements json.Marshaler.
func (r *Result) MarshalJSON() ([]byte, error) {
	out := resultJSON{
		Name: r.Name, Unit: r.Unit, Part: r.Part, Round: r.Round, Loop: r.Loop, Late: r.Late, Protocol: r.Protocol, Interrupted: r.Interrupted,
		Ops: r.Ops, Errors: r.Errors, Timeouts: r.Timeouts, Refused: r.Refused, Retries: r.Retries, Statuses: r.Statuses, FirstError: r.FirstError,
		Bytes: r.Bytes, Wall: r.Wall, Rate: r.Rate(), ServerCPU: r.ServerCPU, CPUPerOp: r.CPUPerOp(), ClientCPU: r.ClientCPU,
		Before: r.Before, Server: r.Server, Reads: r.Reads, Writes: r.Writes, Beside: r.Beside, Values: r.Values,
	}
	if r.Latency != nil && r.Latency.TotalCount() > 0 {
		text, err := encodeHistogram(r.Latency)
		if err != nil {
			return nil, err
		}
		out.Latency = &latencyJSON{
			Mean: r.Mean(), P50: r.Quantile(50), P75: r.Quantile(75), P90: r.Quantile(90), P95: r.Quantile(95), P99: r.Quantile(99),
			P999: r.Quantile(99.9), P9999: r.Quantile(99.99), P100: r.Quantile(100), HDR: text,
		}
	}
	for i := range r.Series {
		s := &r.Series[i]
		second := secondJSON{Ops: s.Ops, Errors: s.Errors, Timeouts: s.Timeouts, Refused: s.Refused, P50: s.Quantile(50), P99: s.Quantile(99)}
		if s.Latency != nil && s.Latency.TotalCount() > 0 {
			text, err := encodeHistogram(s.Latency)
			if err != nil {
				return nil, err
			}
			second.HDR = text
		}
		out.Series = append(out.Series, second)
	}
	return json.Marshal(out)
}

// UnmarshalJSON implements json.Unmarshaler: it reads what MarshalJSON writes, histograms
// included.
func (r *Result) UnmarshalJSON(text []byte) error {
	var in resultJSON
	if err := json.Unmarshal(text, &in); err != nil {
		return err
	}
	*r = Result{
		Name: in.Name, Unit: in.Unit, Part: in.Part, Round: in.Round, Loop: in.Loop, Late: in.Late, Protocol: in.Protocol, Interrupted: in.Interrupted,
		Ops: in.Ops, Errors: in.Errors, Timeouts: in.Timeouts, Refused: in.Refused, Retries: in.Retries, Statuses: in.Statuses, FirstError: in.FirstError,
		Bytes: in.Bytes, Wall: in.Wall, ServerCPU: in.ServerCPU, ClientCPU: in.ClientCPU,
		Before: in.Before, Server: in.Server, Reads: in.Reads, Writes: in.Writes, Beside: in.Beside, Values: in.Values, Latency: newHistogram(),
	}
	if in.Latency != nil {
		var err error
		if r.Latency, err = decodeHistogram(in.Latency.HDR); err != nil {
			return err
		}
	}
	for _, s := range in.Series {
		second := Second{Ops: s.Ops, Errors: s.Errors, Timeouts: s.Timeouts, Refused: s.Refused, Latency: secondHistogram()}
		if s.HDR != "" {
			var err error
			if second.Latency, err = decodeHistogram(s.HDR); err != nil {
				return err
			}
		}
		r.Series = append(r.Series, second)
	}
	return nil
}

func encodeHistogram(h *hdrhistogram.Histogram) (string, error) {
	text, err := h.Encode(hdrhistogram.V2CompressedEncodingCookieBase)
	if err != nil {
		return "", fmt.Errorf("bench: histogram: %w", err)
	}
	return string(text), nil
}

func decodeHistogram(text string) (*hdrhistogram.Histogram, error) {
	h, err := hdrhistogram.Decode([]byte(text))
	if err != nil {
		return nil, fmt.Errorf("bench: histogram: %w", err)
	}
	return h, nil
}
