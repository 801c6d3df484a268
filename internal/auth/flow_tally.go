package auth

import (
	"maps"
	"slices"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
)

// flowTally counts the requests of one class that upstream was not asked about. Upstream's
// metrics of the class exist, because it was asked about the first one; these counts are
// added to them when metrics are collected.
type flowTally struct {
	began, ended atomic.Int64 // requests
	seats        atomic.Int64 // taken now
	nanos        atomic.Int64 // durations of requests that have ended
	seatSum      atomic.Int64 // sum of seats
	durations    [len(flowDurations) + 1]atomic.Int64
	sizes        [len(flowSizes) + 1]atomic.Int64
}

// The bounds of upstream's buckets: apiserver pkg/util/flowcontrol/metrics/metrics.go.
var (
	flowDurations = [...]float64{0, 0.005, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 15, 30}
	flowSizes     = [...]float64{1, 2, 4, 8, 16, 32, 64, 100}
)

func (t *flowTally) begin(seats int) {
	t.began.Add(1)
	t.seats.Add(int64(seats))
	t.seatSum.Add(int64(seats))
	t.sizes[bucketOf(flowSizes[:], float64(seats))].Add(1)
}

func (t *flowTally) end(seats int, took time.Duration) {
	t.ended.Add(1)
	t.seats.Add(-int64(seats))
	t.nanos.Add(int64(took))
	t.durations[bucketOf(flowDurations[:], took.Seconds())].Add(1)
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

const flowPrefix = "apiserver_flowcontrol_"

// flowCollector reports what upstream's queues would have told of the requests that they were not
// asked about. It is immutable.
type flowCollector struct {
	flow                    *Flow
	requests, seats, length *prometheus.Desc
}

// flowLengths are the bounds of upstream's buckets.
var flowLengths = []float64{0, 10, 25, 50, 100, 250, 500, 1000}

// Collector reports how many requests wait, beside what upstream's metrics tell: none, where
// upstream was not asked.
func (f *Flow) Collector() prometheus.Collector {
	desc := func(level, name, help string) *prometheus.Desc {
		return prometheus.NewDesc(flowPrefix+name, "["+level+"] "+help, []string{"priority_level", "flow_schema"}, nil)
	}
	return &flowCollector{
		flow:     f,
		requests: desc("BETA", "current_inqueue_requests", "Number of requests currently pending in queues of the API Priority and Fairness subsystem"),
		seats:    desc("ALPHA", "current_inqueue_seats", "Number of seats currently pending in queues of the API Priority and Fairness subsystem"),
		length:   desc("ALPHA", "request_queue_length_after_enqueue", "Length of queue in the API Priority and Fairness subsystem, as seen by each request after it is enqueued"),
	}
}

// Describe implements prometheus.Collector.
func (c *flowCollector) Describe(ch chan<- *prometheus.Desc) {
	ch <- c.requests
	ch <- c.seats
	ch <- c.length
}

// Collect implements prometheus.Collector. A request that found no other waiting was alone in
// its queue.
func (c *flowCollector) Collect(ch chan<- prometheus.Metric) {
	for class, alone := range c.flow.alone() {
		level, schema := class[0], class[1]
		ch <- prometheus.MustNewConstMetric(c.requests, prometheus.GaugeValue, 0, level, schema)
		ch <- prometheus.MustNewConstMetric(c.seats, prometheus.GaugeValue, 0, level, schema)
		buckets := make(map[float64]uint64, len(flowLengths))
		for _, bound := range flowLengths {
			if bound >= 1 {
				buckets[bound] = alone
			} else {
				buckets[bound] = 0
			}
		}
		ch <- prometheus.MustNewConstHistogram(c.length, alone, float64(alone), buckets, level, schema)
	}
}

// alone returns how many requests found no other waiting, by priority level and flow schema.
// Requests of exempt levels never wait.
func (f *Flow) alone() map[[2]string]uint64 {
	found := make(map[[2]string]uint64)
	f.mu.Lock()
	levels := maps.Clone(f.queueSets)
	for _, class := range f.classes {
		if l := levels[class.Level]; l != nil && !l.exempt && class.tally.began.Load() > 0 {
			found[[2]string{class.Level, class.Schema}] += uint64(class.tally.began.Load())
		}
	}
	f.mu.Unlock()
	for name, l := range levels {
		l.addAlone(name, found)
	}
	return found
}

// AddTo adds the counts to upstream's metrics.
func (f *Flow) AddTo(families []*dto.MetricFamily) {
	tallies := f.tallies()
	for _, family := range families {
		name := family.GetName()
		if len(name) <= len(flowPrefix) || name[:len(flowPrefix)] != flowPrefix {
			continue
		}
		for _, sample := range family.GetMetric() {
			labels := make(map[string]string)
			for _, l := range sample.GetLabel() {
				labels[l.GetName()] = l.GetValue()
			}
			for _, t := range tallies[[2]string{labels["priority_level"], labels["flow_schema"]}] {
				t.addTo(sample, name[len(flowPrefix):], labels)
			}
		}
	}
}

// tallies returns the counts by priority level and flow schema. A level or schema that was
// deleted and created again has more than one.
func (f *Flow) tallies() map[[2]string][]*flowTally {
	f.mu.Lock()
	defer f.mu.Unlock()
	tallies := make(map[[2]string][]*flowTally)
	for _, class := range f.classes {
		key := [2]string{class.Level, class.Schema}
		tallies[key] = append(tallies[key], &class.tally)
	}
	return tallies
}

// addTo adds to one sample of a metric of upstream's.
func (t *flowTally) addTo(sample *dto.Metric, name string, labels map[string]string) {
	switch {
	case name == "dispatched_requests_total":
		value := sample.GetCounter().GetValue() + float64(t.began.Load())
		sample.Counter.Value = &value
	case name == "current_executing_requests":
		addGauge(sample, t.began.Load()-t.ended.Load())
	case name == "current_executing_seats", name == "request_concurrency_in_use":
		addGauge(sample, t.seats.Load())
	case name == "work_estimated_seats":
		addHistogram(sample.GetHistogram(), flowSizes[:], t.sizes[:], float64(t.seatSum.Load()))
	case name == "request_execution_seconds" && labels["type"] == "regular":
		addHistogram(sample.GetHistogram(), flowDurations[:], t.durations[:], time.Duration(t.nanos.Load()).Seconds())
	case name == "request_wait_duration_seconds" && labels["execute"] == "true":
		var atOnce [1]atomic.Int64
		atOnce[0].Store(t.began.Load())
		addHistogram(sample.GetHistogram(), flowDurations[:], atOnce[:], 0)
	}
}

func addGauge(sample *dto.Metric, more int64) {
	value := sample.GetGauge().GetValue() + float64(more)
	sample.Gauge.Value = &value
}

// addHistogram adds counts, which are by bound and not cumulative.
func addHistogram(h *dto.Histogram, bounds []float64, counts []atomic.Int64, sum float64) {
	var total uint64
	for i := range counts {
		total += uint64(counts[i].Load())
	}
	total, sum = h.GetSampleCount()+total, h.GetSampleSum()+sum
	h.SampleCount, h.SampleSum = &total, &sum
	for _, bucket := range h.GetBucket() {
		upTo, _ := slices.BinarySearch(bounds, bucket.GetUpperBound())
		count := bucket.GetCumulativeCount()
		for i := range counts {
			if i <= upTo {
				count += uint64(counts[i].Load())
			}
		}
		bucket.CumulativeCount = &count
	}
}
