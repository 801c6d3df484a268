package bench

import (
	"errors"
	"net/http"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
)

// Counts counts operations by how they ended.
type Counts struct {
	// Ops counts all operations. Each failure is counted once in Timeouts (longer than Target.Timeout),
	// Refused (answered 429, Too Many Requests) or Errors (all others).
	Ops      int `json:"ops"`
	Errors   int `json:"errors"`
	Timeouts int `json:"timeouts"`
	Refused  int `json:"refused"`
	// Latency holds the time of each successful operation in microseconds. Failures are left out: their time depends
	// on the client's timeout and not on the server's work.
	Latency *hdrhistogram.Histogram `json:"-"`
}

// Significant digits of histograms. A long run has one histogram for each second: more digits would fill the memory.
const (
	latencyDigits = 3
	secondDigits  = 2
)

// newHistogram takes microseconds up to ten minutes.
func newHistogram(digits int) *hdrhistogram.Histogram {
	return hdrhistogram.New(1, (10 * time.Minute).Microseconds(), digits)
}

// record counts one operation. status is the status of its answer, 0 if there was none.
func (c *Counts) record(took time.Duration, status int, err error) {
	c.Ops++
	switch {
	case err == nil:
		// Out of range cannot happen: an operation that takes ten minutes has failed.
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

// Failures counts the operations that failed, of all kinds.
func (c *Counts) Failures() int { return c.Errors + c.Timeouts + c.Refused }

// Succeeded counts the operations that did not fail.
func (c *Counts) Succeeded() int { return c.Ops - c.Failures() }

// Quantile returns the latency that q percent of the operations did not exceed, 0 if none has succeeded.
func (c *Counts) Quantile(q float64) time.Duration {
	if c.Latency == nil || c.Latency.TotalCount() == 0 {
		return 0
	}
	return time.Duration(c.Latency.ValueAtQuantile(q)) * time.Microsecond
}
