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
	if o == nil {
		return Limits{}, nil
	}
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
