package apimetrics

import (
	"fmt"
	"os"
	"slices"
	"strings"

	dto "github.com/prometheus/client_model/go"
	basemetrics "k8s.io/component-base/metrics"
	"sigs.k8s.io/yaml"
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

// plus returns *a + b, or b if a is nil.
func plus[N uint64 | float64](a *N, b N) *N {
	if a != nil {
		b += *a
	}
	return &b
}

// without returns families except those with the given names.
func without(families []*dto.MetricFamily, names ...string) []*dto.MetricFamily {
	return slices.DeleteFunc(families, func(f *dto.MetricFamily) bool { return slices.Contains(names, f.GetName()) })
}

// Limits restrict metrics and the values of their labels. Upstream's registry applies the same flags
// to the metrics that it counts.
type Limits struct {
	disabled []string
	allowed  map[string][]string // values of labels, by "metric,label"
}

// unexpected replaces label values that are not allowed (component-base metrics/opts.go).
const unexpected = "unexpected"

// NewLimits returns the limits of the flags --disabled-metrics, --allow-metric-labels and
// --allow-metric-labels-manifest. It reads the file of the last one.
func NewLimits(o *basemetrics.Options) (Limits, error) {
	l := Limits{disabled: o.DisabledMetrics, allowed: make(map[string][]string)}
	add := func(lists map[string]string) {
		for of, values := range lists {
			l.allowed[of] = strings.Split(values, ",")
		}
	}
	if o.AllowListMappingManifest != "" {
		data, err := os.ReadFile(o.AllowListMappingManifest)
		if err != nil {
			return Limits{}, fmt.Errorf("apimetrics: %w", err)
		}
		lists := make(map[string]string)
		if err := yaml.Unmarshal(data, &lists); err != nil {
			return Limits{}, fmt.Errorf("apimetrics: %s: %w", o.AllowListMappingManifest, err)
		}
		add(lists)
	}
	add(o.AllowListMapping)
	return l, nil
}

// apply returns families without disabled metrics and without label values that are not allowed. It
// may change families.
func (l Limits) apply(families []*dto.MetricFamily) []*dto.MetricFamily {
	if len(l.disabled) == 0 && len(l.allowed) == 0 {
		return families
	}
	families = without(families, l.disabled...)
	for _, f := range families {
		if !l.relabel(f) {
			continue
		}
		samples := f.Metric
		f.Metric = nil // samples whose labels have become the same are added up
		sumFamily(f, &dto.MetricFamily{Metric: samples})
	}
	return families
}

// relabel replaces label values that are not allowed, and reports whether there were any.
func (l Limits) relabel(f *dto.MetricFamily) bool {
	changed := false
	for _, m := range f.Metric {
		for _, label := range m.Label {
			values, limited := l.allowed[f.GetName()+","+label.GetName()]
			if limited && !slices.Contains(values, label.GetValue()) {
				value := unexpected
				label.Value, changed = &value, true
			}
		}
	}
	return changed
}

// hidden are the metrics that kube-apiserver of this release hides, because they were deprecated
// long ago (component-base metrics/registry.go). Upstream's registry hides them only in a program
// that the linker has given a release.
var hidden = []string{
	"apiserver_flowcontrol_request_concurrency_in_use", "apiserver_flowcontrol_request_concurrency_limit",
	"apiserver_request_slo_duration_seconds",
	"kube_apiserver_pod_logs_pods_logs_backend_tls_failure_total", "kube_apiserver_pod_logs_pods_logs_insecure_backend_total",
}

// visible returns families without the hidden ones, unless a flag enables them.
func visible(families []*dto.MetricFamily) []*dto.MetricFamily {
	if basemetrics.ShouldShowHidden() {
		return families
	}
	return without(families, hidden...)
}
