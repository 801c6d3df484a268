package apimetrics

import (
	"strings"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apiserver/pkg/endpoints/metrics"
)

// resetTallies forgets what was counted.
func resetTallies(of Resources) {
	for all := range of.AllMonitors() {
		if all == nil {
			continue
		}
		all.removed.Store(nil)
		all.frames.reset()
		all.writes.reset()
		for v := range all.all {
			all.own[v].Store(0)
			for _, m := range all.all[v] {
				if m != nil {
					m.tally.reset()
					if m.initial != nil {
						m.initial.reset()
					}
				}
			}
		}
	}
}

// collector reports what monitors count, under upstream's names (apiserver
// pkg/endpoints/metrics/metrics.go). It is immutable.
type collector struct {
	of Resources

	requests, durations, indicators, sizes *prometheus.Desc
	deprecated, own, open                  *prometheus.Desc
	events, eventSizes, initial            *prometheus.Desc
}

// NewCollector reports what the monitors of those count.
func NewCollector(of Resources) prometheus.Collector {
	shape := []string{"verb", "group", "version", "resource", "subresource", "scope", "component"}
	desc := func(level, name, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc("apiserver_"+name, "["+level+"] "+help, labels, nil)
	}
	dry := append([]string{"dry_run"}, shape...)
	return &collector{
		of:         of,
		requests:   desc("STABLE", "request_total", "Counter of apiserver requests broken out for each verb, dry run value, group, version, resource, scope, component, and HTTP response code.", append([]string{"code"}, dry...)...),
		durations:  desc("STABLE", "request_duration_seconds", "Response latency distribution in seconds for each verb, dry run value, group, version, resource, subresource, scope and component.", dry...),
		indicators: desc("ALPHA", "request_sli_duration_seconds", "Response latency distribution (not counting webhook duration and priority & fairness queue wait times) in seconds for each verb, group, version, resource, subresource, scope and component.", shape...),
		sizes:      desc("STABLE", "response_sizes", "Response size distribution in bytes for each group, version, verb, resource, subresource, scope and component.", shape...),
		deprecated: desc("STABLE", "requested_deprecated_apis", "Gauge of deprecated APIs that have been requested, broken out by API group, version, resource, subresource, and removed_release.", "group", "version", "resource", "subresource", "removed_release"),
		own:        desc("ALPHA", "selfrequest_total", "Counter of apiserver self-requests broken out for each verb, API resource and subresource.", "verb", "group", "resource", "subresource"),
		open:       desc("STABLE", "longrunning_requests", "Gauge of all active long-running apiserver requests broken out by verb, group, version, resource, scope and component. Not all requests are tracked this way.", shape...),
		events:     desc("ALPHA", "watch_events_total", "Number of events sent in watch clients", "group", "version", "resource"),
		eventSizes: desc("ALPHA", "watch_events_sizes", "Watch event size distribution in bytes", "group", "version", "resource"),
		initial:    desc("BETA", "watch_list_duration_seconds", "Response latency distribution in seconds for watch list requests broken by group, version, resource and scope.", "group", "version", "resource", "scope"),
	}
}

// Describe implements prometheus.Collector.
func (c *collector) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{c.requests, c.durations, c.indicators, c.sizes, c.deprecated, c.own, c.open, c.events, c.eventSizes, c.initial} {
		ch <- d
	}
}

// Collect implements prometheus.Collector. What has not happened has no sample, as with
// upstream's.
func (c *collector) Collect(ch chan<- prometheus.Metric) {
	for all := range c.of.AllMonitors() {
		if all == nil {
			continue
		}
		gvr := all.gvr
		if removed := all.removed.Load(); removed != nil {
			ch <- prometheus.MustNewConstMetric(c.deprecated, prometheus.GaugeValue, 1, gvr.Group, gvr.Version, gvr.Resource, all.subresource, *removed)
		}
		if sent, total := buckets(frameBounds[:], frameBounds[:], all.frames.sizes[:]); total > 0 {
			labels := []string{gvr.Group, gvr.Version, gvr.Resource}
			ch <- prometheus.MustNewConstMetric(c.events, prometheus.CounterValue, float64(total), labels...)
			ch <- prometheus.MustNewConstHistogram(c.eventSizes, total, float64(all.frames.bytes.Load()), sent, labels...)
		}
		c.collectWrites(ch, all)
		for v := range all.all {
			if n := all.own[v].Load(); n > 0 {
				ch <- prometheus.MustNewConstMetric(c.own, prometheus.CounterValue, float64(n), strings.ToUpper(verbs[v]), gvr.Group, gvr.Resource, all.subresource)
			}
			for _, m := range all.all[v] {
				if m != nil {
					c.collect(ch, m)
				}
			}
		}
	}
}

func (c *collector) collect(ch chan<- prometheus.Metric, m *Monitor) {
	gvr, t, watches := m.of.gvr, &m.tally, verbs[m.verb] == "watch"
	shape := []string{strings.ToUpper(verbs[m.verb]), gvr.Group, gvr.Version, gvr.Resource, m.of.subresource, scopes[m.scope], metrics.APIServerComponent}
	dry := append([]string{""}, shape...)
	if took, total := buckets(durationBounds[:], durationBounds[:], t.durations[:]); total > 0 {
		spent := seconds(t.nanos.Load())
		ch <- prometheus.MustNewConstMetric(c.requests, prometheus.CounterValue, float64(total), append([]string{"200"}, dry...)...)
		ch <- prometheus.MustNewConstHistogram(c.durations, total, spent, took, dry...)
		if !watches {
			took, _ := buckets(durationBounds[2:], durationBounds[:], t.durations[:])
			ch <- prometheus.MustNewConstHistogram(c.indicators, total, spent, took, shape...)
		}
	}
	if sized, total := buckets(sizeBounds[:], sizeBounds[:], t.sizes[:]); total > 0 {
		ch <- prometheus.MustNewConstHistogram(c.sizes, total, float64(t.bytes.Load()), sized, shape...)
	}
	if !watches {
		return
	}
	if m.opened.Load() {
		ch <- prometheus.MustNewConstMetric(c.open, prometheus.GaugeValue, float64(m.open.Load()), shape...)
	}
	if took, total := buckets(initialBounds[:], initialBounds[:], m.initial.counts[:]); total > 0 {
		ch <- prometheus.MustNewConstHistogram(c.initial, total, seconds(m.initial.nanos.Load()), took, gvr.Group, gvr.Version, gvr.Resource, scopes[m.scope])
	}
}
