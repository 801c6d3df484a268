package apimetrics

import (
	"slices"
	"sync/atomic"
	"time"

	dto "github.com/prometheus/client_model/go"
)

// tally counts answers of one kind for upstream's metrics. Upstream finds each of its
// five metrics by nine labels, which costs a tenth of a small request (B10); so it is
// told the first time, that there are such answers, and what comes then is added to
// its metrics when they are asked for.
type tally struct {
	known     atomic.Bool // upstream has the metrics
	nanos     atomic.Int64
	bytes     atomic.Int64
	durations [len(durationBounds) + 1]atomic.Int64 // by bound, not cumulative
	sizes     [len(sizeBounds) + 1]atomic.Int64
}

// The bounds of upstream's buckets, of which some metrics have but a part (apiserver
// pkg/endpoints/metrics/metrics.go).
var (
	durationBounds = [...]float64{
		0.005, 0.025, 0.05, 0.1, 0.2, 0.4, 0.6, 0.8, 1, 1.25, 1.5, 2, 3, 4, 5, 6, 8, 10, 15, 20, 30, 45, 60,
	}
	sizeBounds = [...]float64{1e3, 1e4, 1e5, 1e6, 1e7, 1e8, 1e9}
)

// add counts one answer.
func (t *tally) add(size int, elapsed time.Duration) {
	t.nanos.Add(int64(elapsed))
	t.bytes.Add(int64(size))
	t.durations[bucketOf(durationBounds[:], elapsed.Seconds())].Add(1)
	t.sizes[bucketOf(sizeBounds[:], float64(size))].Add(1)
}

// bucketOf returns the first bound that v does not exceed.
func bucketOf(bounds []float64, v float64) int {
	for i, bound := range bounds {
		if v <= bound {
			return i
		}
	}
	return len(bounds)
}

func (t *tally) reset() {
	t.known.Store(false)
	t.nanos.Store(0)
	t.bytes.Store(0)
	for i := range t.durations {
		t.durations[i].Store(0)
	}
	for i := range t.sizes {
		t.sizes[i].Store(0)
	}
}

// addTo adds to a counter or to a histogram of sizes or durations.
func (t *tally) addTo(sample *dto.Metric, sizes bool) {
	bounds, counts, sum := durationBounds[:], t.durations[:], time.Duration(t.nanos.Load()).Seconds()
	if sizes {
		bounds, counts, sum = sizeBounds[:], t.sizes[:], float64(t.bytes.Load())
	}
	if c := sample.GetCounter(); c != nil {
		value := c.GetValue() + float64(cumulate(counts))
		c.Value = &value
		return
	}
	h := sample.GetHistogram()
	if h == nil {
		return
	}
	total, sum := h.GetSampleCount()+cumulate(counts), h.GetSampleSum()+sum
	h.SampleCount, h.SampleSum = &total, &sum
	for _, bucket := range h.GetBucket() {
		upTo, _ := slices.BinarySearch(bounds, bucket.GetUpperBound())
		if bucket.GetUpperBound() > bounds[len(bounds)-1] {
			upTo = len(bounds)
		}
		count := bucket.GetCumulativeCount() + cumulate(counts[:upTo+1])
		bucket.CumulativeCount = &count
	}
}

func cumulate(counts []atomic.Int64) (sum uint64) {
	for i := range counts {
		sum += uint64(counts[i].Load())
	}
	return sum
}
