package apimetrics

import (
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// histogram counts values of upstream's metrics, which are built from it for each request for /metrics.
// Upstream finds each of five metrics of a request by nine labels, which costs a tenth of a small
// request (B10).
type histogram struct {
	sum    atomic.Int64   // nanoseconds or bytes
	counts []atomic.Int64 // by bound, not cumulative; the last one counts values above all bounds
	bounds []float64      // seconds or bytes
	unit   float64        // of sum, in the unit of bounds
}

// The bounds of upstream's buckets (apiserver pkg/endpoints/metrics/metrics.go). Some metrics have
// only a part of them.
var (
	durationBounds = []float64{
		0.005, 0.025, 0.05, 0.1, 0.2, 0.4, 0.6, 0.8, 1, 1.25, 1.5, 2, 3, 4, 5, 6, 8, 10, 15, 20, 30, 45, 60,
	}
	sizeBounds    = []float64{1e3, 1e4, 1e5, 1e6, 1e7, 1e8, 1e9}
	frameBounds   = []float64{1 << 10, 2 << 10, 4 << 10, 8 << 10, 16 << 10, 32 << 10, 64 << 10, 128 << 10}
	initialBounds = []float64{0.05, 0.1, 0.2, 0.4, 0.6, 0.8, 1, 2, 4, 6, 8, 10, 15, 20, 30, 45, 60}
)

// newDurations returns a histogram of nanoseconds whose bounds are seconds.
func newDurations(bounds []float64) *histogram {
	return &histogram{counts: make([]atomic.Int64, len(bounds)+1), bounds: bounds, unit: float64(time.Second)}
}

// newSizes returns a histogram of bytes.
func newSizes(bounds []float64) *histogram {
	return &histogram{counts: make([]atomic.Int64, len(bounds)+1), bounds: bounds, unit: 1}
}

// add counts a value in the unit of h.sum.
func (h *histogram) add(n int64) {
	h.sum.Add(n)
	at, v := 0, float64(n)/h.unit
	for at < len(h.bounds) && v > h.bounds[at] {
		at++
	}
	h.counts[at].Add(1)
}

// merge adds the values of other, which has the same bounds.
func (h *histogram) merge(other *histogram) {
	h.sum.Add(other.sum.Load())
	for i := range other.counts {
		h.counts[i].Add(other.counts[i].Load())
	}
}

func (h *histogram) reset() {
	h.sum.Store(0)
	for i := range h.counts {
		h.counts[i].Store(0)
	}
}

// report sends h to ch, and returns the number of values. It sends nothing if there are none, like upstream's
// metrics. bounds are some of h.bounds.
func (h *histogram) report(ch chan<- prometheus.Metric, desc *prometheus.Desc, bounds []float64, labels ...string) uint64 {
	buckets, total := make(map[float64]uint64, len(bounds)), uint64(0)
	for i := range h.counts {
		total += uint64(h.counts[i].Load())
		if at := len(buckets); at < len(bounds) && i < len(h.bounds) && bounds[at] == h.bounds[i] {
			buckets[bounds[at]] = total
		}
	}
	if total > 0 {
		ch <- prometheus.MustNewConstHistogram(desc, total, float64(h.sum.Load())/h.unit, buckets, labels...)
	}
	return total
}
