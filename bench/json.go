package bench

import (
	"encoding/json"
	"fmt"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
)

// plain is a Result without its methods.
type plain Result

// resultJSON is a Result as JSON. Times are in nanoseconds. The rate and the CPU time of an
// operation are derived from other fields, for readers other than this program.
type resultJSON struct {
	*plain
	Rate     float64       `json:"opsPerSecond"`
	CPUPerOp time.Duration `json:"serverCPUPerOpNanoseconds"`
	Latency  *latencyJSON  `json:"latency,omitempty"`
	Series   []secondJSON  `json:"series,omitempty"`
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
	out := resultJSON{plain: (*plain)(r), Rate: r.Rate(), CPUPerOp: r.CPUPerOp()}
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
	*r = Result{Latency: newHistogram()}
	in := resultJSON{plain: (*plain)(r)}
	if err := json.Unmarshal(text, &in); err != nil {
		return err
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
