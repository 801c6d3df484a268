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
// operation are derived from other fields, for other programs.
type resultJSON struct {
	*plain
	Rate     float64       `json:"opsPerSecond"`
	CPUPerOp time.Duration `json:"serverCPUPerOpNanoseconds"`
	// Latency has the mean and quantiles, and in hdr the whole histogram, of microseconds, as
	// HdrHistogram's tools read it.
	Latency map[string]any `json:"latency,omitempty"`
	Series  []secondJSON   `json:"series,omitempty"`
}

type secondJSON struct {
	Counts
	P50 time.Duration `json:"p50"`
	P99 time.Duration `json:"p99"`
	HDR string        `json:"hdr,omitempty"`
}

// MarshalJSON implements json.Marshaler.
func (r *Result) MarshalJSON() ([]byte, error) {
	out := resultJSON{plain: (*plain)(r), Rate: r.Rate(), CPUPerOp: r.CPUPerOp()}
	text, err := encodeHistogram(r.Latency)
	if err != nil {
		return nil, err
	}
	if text != "" {
		out.Latency = map[string]any{"mean": time.Duration(r.Latency.Mean() * float64(time.Microsecond)), "hdr": text}
		for _, q := range []float64{50, 75, 90, 95, 99, 99.9, 99.99, 100} {
			out.Latency[fmt.Sprintf("p%g", q)] = r.Quantile(q)
		}
	}
	for _, s := range r.Series {
		text, err := encodeHistogram(s.Latency)
		if err != nil {
			return nil, err
		}
		out.Series = append(out.Series, secondJSON{s, s.Quantile(50), s.Quantile(99), text})
	}
	return json.Marshal(out)
}

// encodeHistogram returns "" for an empty histogram.
func encodeHistogram(h *hdrhistogram.Histogram) (string, error) {
	if h == nil || h.TotalCount() == 0 {
		return "", nil
	}
	text, err := h.Encode(hdrhistogram.V2CompressedEncodingCookieBase)
	if err != nil {
		return "", fmt.Errorf("bench: histogram: %w", err)
	}
	return string(text), nil
}
