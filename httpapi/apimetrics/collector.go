package apimetrics

import (
	"strings"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apiserver/pkg/endpoints/metrics"
)

// collector reports what monitors count, under upstream's names (apiserver
// pkg/endpoints/metrics/metrics.go). It is immutable.
type collector struct {
	of []*Resources

	requests, durations, indicators, sizes *prometheus.Desc
	deprecated, own, open                  *prometheus.Desc
	events, eventSizes, initial            *prometheus.Desc
}

// NewCollector returns a collector of the counts of the resources' monitors.
func NewCollector(of ...*Resources) prometheus.Collector {
	labels := []string{"verb", "group", "version", "resource", "subresource", "scope", "component"}
	desc := func(level, name, help string, of ...string) *prometheus.Desc {
		return prometheus.NewDesc("apiserver_"+name, "["+level+"] "+help, of, nil)
	}
	dry := append([]string{"dry_run"}, labels...)
	c := &collector{
		of:         of,
		requests:   desc("STABLE", "request_total", "Counter of apiserver requests broken out for each verb, dry run value, group, version, resource, scope, component, and HTTP response code.", append([]string{"code"}, dry...)...),
		durations:  desc("STABLE", "request_duration_seconds", "Response latency distribution in seconds for each verb, dry run value, group, version, resource, subresource, scope and component.", dry...),
		indicators: desc("ALPHA", "request_sli_duration_seconds", "Response latency distribution (not counting webhook duration and priority & fairness queue wait times) in seconds for each verb, group, version, resource, subresource, scope and component.", labels...),
		sizes:      desc("STABLE", "response_sizes", "Response size distribution in bytes for each group, version, verb, resource, subresource, scope and component.", labels...),
		deprecated: desc("STABLE", "requested_deprecated_apis", "Gauge of deprecated APIs that have been requested, broken out by API group, version, resource, subresource, and removed_release.", "group", "version", "resource", "subresource", "removed_release"),
		own:        desc("ALPHA", "selfrequest_total", "Counter of apiserver self-requests broken out for each verb, API resource and subresource.", "verb", "group", "resource", "subresource"),
		open:       desc("STABLE", "longrunning_requests", "Gauge of all active long-running apiserver requests broken out by verb, group, version, resource, scope and component. Not all requests are tracked this way.", labels...),
		events:     desc("ALPHA", "watch_events_total", "Number of events sent in watch clients", "group", "version", "resource"),
		eventSizes: desc("ALPHA", "watch_events_sizes", "Watch event size distribution in bytes", "group", "version", "resource"),
		initial:    desc("BETA", "watch_list_duration_seconds", "Response latency distribution in seconds for watch list requests broken by group, version, resource and scope.", "group", "version", "resource", "scope"),
	}
	return prometheus.CollectorFunc(c.collectAll)
}

// collectAll is a prometheus.CollectorFunc. Like upstream's metrics, it has no samples with the value 0.
func (c *collector) collectAll(ch chan<- prometheus.Metric) {
	own := make(map[[4]string]int64) // requests that this process has sent, by labels
	for _, ms := range monitors(c.of) {
		gvr := ms.gvr
		if removed := ms.removed.Load(); removed != nil {
			ch <- prometheus.MustNewConstMetric(c.deprecated, prometheus.GaugeValue, 1, gvr.Group, gvr.Version, gvr.Resource, ms.subresource, *removed)
		}
		if total := ms.eventSizes.report(ch, c.eventSizes, frameBounds, gvr.Group, gvr.Version, gvr.Resource); total > 0 {
			ch <- prometheus.MustNewConstMetric(c.events, prometheus.CounterValue, float64(total), gvr.Group, gvr.Version, gvr.Resource)
		}
		for _, m := range ms.reads {
			c.collect(ch, m, own)
		}
	}
	for labels, n := range own {
		if n > 0 {
			ch <- prometheus.MustNewConstMetric(c.own, prometheus.CounterValue, float64(n), labels[:]...)
		}
	}
}

// collect reports the reads that m counts, all with the status 200. It adds those that this process has
// sent to own, whose labels all versions of a resource share.
func (c *collector) collect(ch chan<- prometheus.Metric, m *Monitor, own map[[4]string]int64) {
	gvr, verb := m.of.gvr, strings.ToUpper(m.verb)
	own[[4]string{verb, gvr.Group, gvr.Resource, m.of.subresource}] += m.own.Load()
	labels := []string{verb, gvr.Group, gvr.Version, gvr.Resource, m.of.subresource, m.scope, metrics.APIServerComponent}
	dry := append([]string{""}, labels...)
	if total := m.durations.report(ch, c.durations, durationBounds, dry...); total > 0 {
		ch <- prometheus.MustNewConstMetric(c.requests, prometheus.CounterValue, float64(total), append([]string{"200"}, dry...)...)
	}
	if m.verb != "watch" {
		m.durations.report(ch, c.indicators, durationBounds[2:], labels...)
	}
	m.sizes.report(ch, c.sizes, sizeBounds, labels...)
	m.initial.report(ch, c.initial, initialBounds, gvr.Group, gvr.Version, gvr.Resource, m.scope)
	if m.opened.Load() {
		ch <- prometheus.MustNewConstMetric(c.open, prometheus.GaugeValue, float64(m.open.Load()), labels...)
	}
}
