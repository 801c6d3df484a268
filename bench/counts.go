package bench

import (
	"errors"
	"net/http"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
)

// Counts counts operations by how they ended.
type Counts struct {
	// Ops counts all operations. Each failure is counted once: in Timeouts if it took longer than
	// Target.Timeout, in Refused if it was answered 429 (Too Many Requests), otherwise in Errors.
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

// merge adds the counts of other.
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
