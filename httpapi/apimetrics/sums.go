package apimetrics

import (
	"slices"
	"strings"

	dto "github.com/prometheus/client_model/go"
)

// sum adds more to families: it adds up samples of the same metric with the same labels. It may
// change both, and returns the families in no order.
func sum(families, more []*dto.MetricFamily) []*dto.MetricFamily {
	known := make(map[string]*dto.MetricFamily, len(families))
	for _, f := range families {
		known[f.GetName()] = f
	}
	for _, f := range more {
		if to := known[f.GetName()]; to != nil {
			sumFamily(to, f)
			continue
		}
		known[f.GetName()] = f
		families = append(families, f)
	}
	return families
}

// flagged is a gauge whose samples are 1 or missing.
const flagged = "apiserver_requested_deprecated_apis"

// sumFamily adds the samples of more to those of to.
func sumFamily(to, more *dto.MetricFamily) {
	at := make(map[string]*dto.Metric, len(to.GetMetric()))
	for _, m := range to.GetMetric() {
		at[labelsOf(m)] = m
	}
	for _, m := range more.GetMetric() {
		same := at[labelsOf(m)]
		switch {
		case same == nil:
			to.Metric, at[labelsOf(m)] = append(to.Metric, m), m
		case to.GetName() != flagged:
			sumSample(same, m)
		}
	}
}

// labelsOf returns the labels of m as one string. Collectors sort them.
func labelsOf(m *dto.Metric) string {
	var all strings.Builder
	for _, l := range m.GetLabel() {
		all.WriteString(l.GetName() + "\xff" + l.GetValue() + "\xff")
	}
	return all.String()
}

// sumSample adds m to to.
func sumSample(to, m *dto.Metric) {
	switch {
	case to.Counter != nil && m.Counter != nil:
		to.Counter.Value = plus(to.Counter.Value, m.Counter.GetValue())
	case to.Gauge != nil && m.Gauge != nil:
		to.Gauge.Value = plus(to.Gauge.Value, m.Gauge.GetValue())
	case to.Histogram != nil && m.Histogram != nil:
		sumHistogram(to.Histogram, m.Histogram)
	}
}

// sumHistogram adds h to to. Both have the same bounds.
func sumHistogram(to, h *dto.Histogram) {
	to.SampleCount = plus(to.SampleCount, h.GetSampleCount())
	to.SampleSum = plus(to.SampleSum, h.GetSampleSum())
	for i, bucket := range to.GetBucket() {
		if i < len(h.GetBucket()) && h.GetBucket()[i].GetUpperBound() == bucket.GetUpperBound() {
			bucket.CumulativeCount = plus(bucket.CumulativeCount, h.GetBucket()[i].GetCumulativeCount())
		}
	}
}

// plus returns the sum of what a, which may be nil, points at and b.
func plus[N uint64 | float64](a *N, b N) *N {
	if a != nil {
		b += *a
	}
	return &b
}

// without returns families without those of the given names.
func without(families []*dto.MetricFamily, names ...string) []*dto.MetricFamily {
	return slices.DeleteFunc(families, func(f *dto.MetricFamily) bool { return slices.Contains(names, f.GetName()) })
}
