package apimetrics

import (
	"context"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"sync"
	"sync/atomic"
	"time"

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
