package apimetrics

import (
	"strconv"
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

func (c *collector) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{c.requests, c.durations, c.indicators, c.sizes, c.deprecated, c.own, c.open, c.events, c.eventSizes, c.initial} {
		ch <- d
	}
}

// Collect implements prometheus.Collector. Like upstream's metrics, it has no samples with the value 0.
func (c *collector) Collect(ch chan<- prometheus.Metric) {
	own := make(map[[4]string]int64) // requests that this process has sent, by labels
	for _, ms := range monitors(c.of) {
		gvr := ms.gvr
		if removed := ms.removed.Load(); removed != nil {
			ch <- prometheus.MustNewConstMetric(c.deprecated, prometheus.GaugeValue, 1, gvr.Group, gvr.Version, gvr.Resource, ms.subresource, *removed)
		}
		if total := ms.eventSizes.report(ch, c.eventSizes, frameBounds, 0, gvr.Group, gvr.Version, gvr.Resource); total > 0 {
			ch <- prometheus.MustNewConstMetric(c.events, prometheus.CounterValue, float64(total), gvr.Group, gvr.Version, gvr.Resource)
		}
		for _, m := range ms.reads {
			own[ms.ownLabels(strings.ToUpper(m.verb))] += m.own.Load()
			c.collect(ch, m)
		}
		c.collectWrites(ch, ms, own)
	}
	for labels, n := range own {
		if n > 0 {
			ch <- prometheus.MustNewConstMetric(c.own, prometheus.CounterValue, float64(n), labels[:]...)
		}
	}
}

// ownLabels returns the labels of requests that this process has sent. All versions of a resource share them.
func (ms *Monitors) ownLabels(verb string) [4]string {
	return [4]string{verb, ms.gvr.Group, ms.gvr.Resource, ms.subresource}
}

func (c *collector) collect(ch chan<- prometheus.Metric, m *Monitor) {
	gvr, watches := m.of.gvr, m.verb == "watch"
	labels := []string{strings.ToUpper(m.verb), gvr.Group, gvr.Version, gvr.Resource, m.of.subresource, m.scope, metrics.APIServerComponent}
	c.collectAnswers(ch, m.durations, "200", !watches, labels)
	m.sizes.report(ch, c.sizes, sizeBounds, 0, labels...)
	m.initial.report(ch, c.initial, initialBounds, 0, gvr.Group, gvr.Version, gvr.Resource, m.scope)
	if m.opened.Load() {
		ch <- prometheus.MustNewConstMetric(c.open, prometheus.GaugeValue, float64(m.open.Load()), labels...)
	}
}

// collectWrites reports the writes that ms counts, and adds the writes that this process has sent to own.
func (c *collector) collectWrites(ch chan<- prometheus.Metric, ms *Monitors, own map[[4]string]int64) {
	gvr := ms.gvr
	for i := range ms.writes {
		if counts := ms.writes[i].Load(); counts != nil {
			kind := &writeKinds[i]
			own[ms.ownLabels(kind.reported)] += counts.own.Load()
			c.collectAnswers(ch, counts.durations, strconv.Itoa(kind.code), true,
				[]string{kind.reported, gvr.Group, gvr.Version, gvr.Resource, ms.subresource, kind.scope, metrics.APIServerComponent})
		}
	}
}

// collectAnswers reports answers with one code, and their durations. indicators says that the metric for
// service level indicators counts them, too.
func (c *collector) collectAnswers(ch chan<- prometheus.Metric, durations *histogram, code string, indicators bool, labels []string) {
	dry := append([]string{""}, labels...)
	total := durations.report(ch, c.durations, durationBounds, 0, dry...)
	if total == 0 {
		return
	}
	ch <- prometheus.MustNewConstMetric(c.requests, prometheus.CounterValue, float64(total), append([]string{code}, dry...)...)
	if indicators {
		durations.report(ch, c.indicators, durationBounds[2:], 0, labels...)
	}
}
