package apimetrics

import (
	"context"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/endpoints/metrics"
	apirequest "k8s.io/apiserver/pkg/endpoints/request"
)

// The verbs and scopes of reads, in the order of [Monitors].
var (
	verbs  = []string{"get", "list", "watch"}
	scopes = []string{"resource", "namespace", "cluster"}
)

// Lifecycle says whether a version of a resource is deprecated, and which release removes it; "" if
// none is known.
type Lifecycle struct {
	Deprecated bool
	Removed    string
}

// Monitors counts the reads and writes of one resource in one version. A nil Monitors counts
// nothing.
type Monitors struct {
	gvr         schema.GroupVersionResource
	subresource string
	removed     atomic.Pointer[string] // the release that removes a deprecated version; nil until it is read
	own         [3]atomic.Int64
	frames      *histogram                                   // sizes of the frames of all watches
	all         [3][3]*Monitor                               // by verb and scope; nil where there is none
	writes      [len(writeKinds)]atomic.Pointer[writeCounts] // nil before the first write of the kind
}

func newMonitors(gvr schema.GroupVersionResource, subresource string, reads bool) *Monitors {
	all := &Monitors{gvr: gvr, subresource: subresource, frames: newSizes(frameBounds)}
	if !reads {
		return all
	}
	for v, verb := range verbs {
		for s, scope := range scopes {
			if verb == "watch" || (verb == "get") == (scope == "resource") {
				all.all[v][s] = &Monitor{
					of: all, verb: v, scope: s,
					durations: newDurations(durationBounds), sizes: newSizes(sizeBounds), initial: newDurations(initialBounds),
				}
			}
		}
	}
	return all
}

// Of returns the monitor of a verb (get, list, watch) and a scope (resource, namespace,
// cluster).
func (all *Monitors) Of(verb, scope string) *Monitor {
	v, s := slices.Index(verbs, verb), slices.Index(scopes, scope)
	if all == nil || v < 0 || s < 0 {
		return nil
	}
	return all.all[v][s]
}

// Monitor counts requests of one verb and scope that are served without net/http. A nil Monitor
// counts nothing.
type Monitor struct {
	of          *Monitors
	verb, scope int
	open        atomic.Int64 // watches
	opened      atomic.Bool  // whether there were any
	durations   *histogram
	sizes       *histogram
	initial     *histogram // of the initial objects of watches whose clients asked for the bookmark after them
}

// request returns a request from which upstream's metrics read the labels.
func (m *Monitor) request() *http.Request {
	req := &http.Request{Method: http.MethodGet, URL: &url.URL{Path: "/"}, Header: make(http.Header)}
	if verbs[m.verb] == "watch" {
		req.URL.RawQuery = "watch=1"
	}
	info := &apirequest.RequestInfo{
		IsResourceRequest: true, APIGroup: m.of.gvr.Group, APIVersion: m.of.gvr.Version, Resource: m.of.gvr.Resource, Subresource: m.of.subresource,
	}
	switch scopes[m.scope] { // upstream infers the scope from these
	case "resource":
		info.Name = "any"
	case "namespace":
		info.Namespace = "any"
	}
	ctx := apirequest.WithRequestInfo(context.Background(), info)
	if verbs[m.verb] != "watch" {
		// The metric for service level indicators has only requests with latency trackers. Watches
		// have none.
		ctx = apirequest.WithLatencyTrackers(ctx)
	}
	return req.WithContext(ctx)
}

// Enter counts a watch as open.
func (m *Monitor) Enter() {
	if m != nil {
		m.open.Add(1)
		if !m.opened.Load() {
			m.opened.Store(true)
		}
	}
}

// Leave ends what Enter began.
func (m *Monitor) Leave() {
	if m != nil {
		m.open.Add(-1)
	}
}

// Answer is the part of an answer that metrics count.
type Answer struct {
	Code, Size int
	Took       time.Duration
	Waited     time.Duration // of Took, for a seat of flow control
	Unsized    bool          // its size is not counted
	Own        bool          // this process has asked
	Life       Lifecycle     // of the version
}

// Observe counts an answer. It reports failures, and requests that have waited, to upstream's metrics.
func (m *Monitor) Observe(a Answer) {
	if m == nil {
		return
	}
	if a.Own {
		m.of.own[m.verb].Add(1)
	}
	if a.Life.Deprecated && m.of.removed.Load() == nil {
		removed := a.Life.Removed // a itself must not escape
		m.of.removed.Store(&removed)
	}
	if a.Code == http.StatusOK && a.Waited == 0 {
		m.durations.add(int64(a.Took))
		if !a.Unsized {
			m.sizes.add(int64(a.Size))
		}
		return
	}
	req, verb := m.request(), "LIST"
	switch {
	case verbs[m.verb] == "get":
		verb = "GET"
	case a.Unsized:
		verb = "WATCH"
	}
	if a.Waited > 0 && verbs[m.verb] != "watch" {
		apirequest.TrackAPFQueueWaitLatency(req.Context(), a.Waited)
	}
	gvr := m.of.gvr
	metrics.MonitorRequest(req, verb, gvr.Group, gvr.Version, gvr.Resource, m.of.subresource,
		scopes[m.scope], metrics.APIServerComponent, false, "", a.Code, a.Size, a.Took)
}

// Terminated counts a request that the server terminated with code.
func (m *Monitor) Terminated(code int) {
	if m != nil {
		req := m.request()
		info, _ := apirequest.RequestInfoFrom(req.Context())
		metrics.RecordRequestTermination(req, info, metrics.APIServerComponent, code)
	}
}

// Initial counts a watch whose initial objects, and the bookmark after them, have been sent.
func (m *Monitor) Initial(took time.Duration) {
	if m != nil {
		m.initial.add(int64(took))
	}
}

// Sent counts a frame of a watch.
func (m *Monitor) Sent(size int) {
	if m != nil {
		m.of.frames.add(int64(size))
	}
}

// Book keeps the monitors of all resources that were ever served, so that their counts never decrease. The
// zero Book is empty.
type Book struct {
	mu  sync.Mutex
	all map[monitorsKey]*Monitors // guarded by mu
}

type monitorsKey struct {
	gvr         schema.GroupVersionResource
	subresource string
}

// Of returns the monitors of a resource or subresource, the same ones at each call. If reads is true, it
// is served from encoded bytes, and its reads are counted here.
func (b *Book) Of(gvr schema.GroupVersionResource, subresource string, reads bool) *Monitors {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.all == nil {
		b.all = make(map[monitorsKey]*Monitors)
	}
	key := monitorsKey{gvr, subresource}
	if b.all[key] == nil {
		b.all[key] = newMonitors(gvr, subresource, reads)
	}
	return b.all[key]
}

// books are several Books.
type books []*Book

// monitors returns all monitors.
func (all books) monitors() (list []*Monitors) {
	for _, b := range all {
		b.mu.Lock()
		list = slices.AppendSeq(list, maps.Values(b.all))
		b.mu.Unlock()
	}
	return list
}

// writeKinds lists the writes that are counted here: verb and scope, upstream's label for the verb,
// and the usual status code.
var writeKinds = [...]struct {
	verb, scope, reported string
	code                  int
}{
	{"create", "resource", "POST", 201},
	{"update", "resource", "PUT", 200},
	{"patch", "resource", "PATCH", 200},
	{"apply", "resource", "APPLY", 200},
	{"delete", "resource", "DELETE", 200},
	{"deletecollection", "namespace", "DELETE", 200},
	{"deletecollection", "cluster", "DELETE", 200},
}

// Write describes the answer to a write.
type Write struct {
	Verb, Scope string // the verb of an apply is "apply"
	Code        int
	Took        time.Duration
	Own         bool // this process sent the request
}

// writeCounts counts the answers to writes of one kind.
type writeCounts struct {
	durations *histogram
	own       atomic.Int64
}

// ObserveWrite counts a write that has not waited for a queue or a webhook, and has no parameter that is a
// label of upstream's metrics. It returns false and counts nothing if the caller must report the write
// to upstream's metrics: for an unusual code, and for the first write of each kind, which creates
// upstream's series.
func (all *Monitors) ObserveWrite(w Write) bool {
	if all == nil {
		return false
	}
	for i := range writeKinds {
		kind := &writeKinds[i]
		if kind.verb != w.Verb || kind.scope != w.Scope || kind.code != w.Code {
			continue
		}
		counts := all.writes[i].Load()
		if counts == nil {
			all.writes[i].CompareAndSwap(nil, &writeCounts{durations: newDurations(durationBounds)})
			return false
		}
		counts.durations.add(int64(w.Took))
		if w.Own {
			counts.own.Add(1)
		}
		return true
	}
	return false
}

// collectWrites reports the writes that all counts.
func (c *collector) collectWrites(ch chan<- prometheus.Metric, all *Monitors) {
	gvr, own := all.gvr, make(map[string]int64)
	for i := range all.writes {
		if counts := all.writes[i].Load(); counts != nil {
			kind := &writeKinds[i]
			own[kind.reported] += counts.own.Load()
			c.collectAnswers(ch, counts.durations, strconv.Itoa(kind.code), true,
				[]string{kind.reported, gvr.Group, gvr.Version, gvr.Resource, all.subresource, kind.scope, metrics.APIServerComponent})
		}
	}
	for verb, n := range own {
		if n > 0 {
			ch <- prometheus.MustNewConstMetric(c.own, prometheus.CounterValue, float64(n), verb, gvr.Group, gvr.Resource, all.subresource)
		}
	}
}

// reset sets everything that monitors count to zero, except the number of open watches.
func (of books) reset() {
	for _, all := range of.monitors() {
		all.removed.Store(nil)
		all.frames.reset()
		for i := range all.writes {
			all.writes[i].Store(nil)
		}
		for v := range all.all {
			all.own[v].Store(0)
			for _, m := range all.all[v] {
				if m != nil {
					m.durations.reset()
					m.sizes.reset()
					m.initial.reset()
				}
			}
		}
	}
}

// collector reports what monitors count, under upstream's names (apiserver
// pkg/endpoints/metrics/metrics.go). It is immutable.
type collector struct {
	of books

	requests, durations, indicators, sizes *prometheus.Desc
	deprecated, own, open                  *prometheus.Desc
	events, eventSizes, initial            *prometheus.Desc
}

// NewCollector reports what the monitors in books count.
func NewCollector(of ...*Book) prometheus.Collector {
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

// Collect implements prometheus.Collector. Like upstream's metrics, it has no sample of what has not
// happened.
func (c *collector) Collect(ch chan<- prometheus.Metric) {
	for _, all := range c.of.monitors() {
		gvr := all.gvr
		if removed := all.removed.Load(); removed != nil {
			ch <- prometheus.MustNewConstMetric(c.deprecated, prometheus.GaugeValue, 1, gvr.Group, gvr.Version, gvr.Resource, all.subresource, *removed)
		}
		if total := all.frames.report(ch, c.eventSizes, frameBounds, 0, gvr.Group, gvr.Version, gvr.Resource); total > 0 {
			ch <- prometheus.MustNewConstMetric(c.events, prometheus.CounterValue, float64(total), gvr.Group, gvr.Version, gvr.Resource)
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
	gvr, watches := m.of.gvr, verbs[m.verb] == "watch"
	labels := []string{strings.ToUpper(verbs[m.verb]), gvr.Group, gvr.Version, gvr.Resource, m.of.subresource, scopes[m.scope], metrics.APIServerComponent}
	c.collectAnswers(ch, m.durations, "200", !watches, labels)
	m.sizes.report(ch, c.sizes, sizeBounds, 0, labels...)
	m.initial.report(ch, c.initial, initialBounds, 0, gvr.Group, gvr.Version, gvr.Resource, scopes[m.scope])
	if m.opened.Load() {
		ch <- prometheus.MustNewConstMetric(c.open, prometheus.GaugeValue, float64(m.open.Load()), labels...)
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

// count returns the number of values.
func (h *histogram) count() (n int64) {
	for i := range h.counts {
		n += h.counts[i].Load()
	}
	return n
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

// report sends h to ch, with zeros more values that are 0, and returns the number of values. It sends
// nothing if there are none, like upstream's metrics. bounds are some of h.bounds.
func (h *histogram) report(ch chan<- prometheus.Metric, desc *prometheus.Desc, bounds []float64, zeros int64, labels ...string) uint64 {
	buckets, total := make(map[float64]uint64, len(bounds)), uint64(zeros)
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
