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

// readKinds lists the reads that Monitors count. Verbs and scopes are labels of upstream's metrics.
var readKinds = [...]struct{ verb, scope string }{
	{"get", "resource"},
	{"list", "namespace"}, {"list", "cluster"},
	{"watch", "resource"}, {"watch", "namespace"}, {"watch", "cluster"},
}

// Lifecycle says whether a version of a resource is deprecated, and which release removes it; "" if
// none is known.
type Lifecycle struct {
	Deprecated bool
	Removed    string
}

// Monitors counts the reads of one resource or subresource in one version. A nil Monitors counts nothing.
type Monitors struct {
	gvr         schema.GroupVersionResource
	subresource string
	removed     atomic.Pointer[string] // the release that removes the version; nil before its first read, and unless it is deprecated
	eventSizes  *histogram             // of all watches
	reads       [len(readKinds)]*Monitor
}

func newMonitors(gvr schema.GroupVersionResource, subresource string) *Monitors {
	ms := &Monitors{gvr: gvr, subresource: subresource, eventSizes: newSizes(frameBounds)}
	for i, kind := range readKinds {
		ms.reads[i] = &Monitor{
			of: ms, verb: kind.verb, scope: kind.scope,
			durations: newDurations(durationBounds), sizes: newSizes(sizeBounds), initial: newDurations(initialBounds),
		}
	}
	return ms
}

// Of returns the Monitor of a verb and scope, nil if readKinds does not have them.
func (ms *Monitors) Of(verb, scope string) *Monitor {
	if ms != nil {
		for _, m := range ms.reads {
			if m.verb == verb && m.scope == scope {
				return m
			}
		}
	}
	return nil
}

// Monitor counts the reads of one verb and scope that are served without net/http. A nil Monitor counts nothing.
type Monitor struct {
	of          *Monitors
	verb, scope string
	durations   *histogram
	own         atomic.Int64 // requests that this process has sent
	sizes       *histogram   // of responses
	open        atomic.Int64 // watches
	opened      atomic.Bool  // there was a watch
	initial     *histogram   // durations until the bookmark after the initial events was sent
}

// request returns a request from which upstream's metrics read the labels.
func (m *Monitor) request() *http.Request {
	req := &http.Request{Method: http.MethodGet, URL: &url.URL{Path: "/"}, Header: make(http.Header)}
	if m.verb == "watch" {
		req.URL.RawQuery = "watch=1"
	}
	info := &apirequest.RequestInfo{
		IsResourceRequest: true, APIGroup: m.of.gvr.Group, APIVersion: m.of.gvr.Version, Resource: m.of.gvr.Resource, Subresource: m.of.subresource,
	}
	switch m.scope { // upstream infers the scope from these
	case "resource":
		info.Name = "any"
	case "namespace":
		info.Namespace = "any"
	}
	ctx := apirequest.WithRequestInfo(context.Background(), info)
	if m.verb != "watch" { // upstream's metric for service level indicators leaves out requests without trackers
		ctx = apirequest.WithLatencyTrackers(ctx)
	}
	return req.WithContext(ctx)
}

// Enter counts a watch as open.
func (m *Monitor) Enter() {
	if m != nil {
		m.open.Add(1)
		if !m.opened.Load() { // Store would make processors contend for it
			m.opened.Store(true)
		}
	}
}

// Leave counts a watch as closed.
func (m *Monitor) Leave() {
	if m != nil {
		m.open.Add(-1)
	}
}

// Response describes the response to a read.
type Response struct {
	Code, Size int
	Took       time.Duration
	Waited     time.Duration // the part of Took before flow control gave a seat
	Unsized    bool          // upstream reports a WATCH, not a LIST, and does not count its size
	Own        bool          // this process sent the request
	Life       Lifecycle     // of the version
}

// Observe counts a response. Upstream's metrics count failures, and requests that have waited.
func (m *Monitor) Observe(a Response) {
	if m == nil {
		return
	}
	if a.Own {
		m.own.Add(1)
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
	req, reported := m.request(), "LIST" // also of a watch, unless its size is not counted
	switch {
	case m.verb == "get":
		reported = "GET"
	case a.Unsized:
		reported = "WATCH"
	}
	if a.Waited > 0 && m.verb != "watch" {
		apirequest.TrackAPFQueueWaitLatency(req.Context(), a.Waited)
	}
	gvr := m.of.gvr
	metrics.MonitorRequest(req, reported, gvr.Group, gvr.Version, gvr.Resource, m.of.subresource,
		m.scope, metrics.APIServerComponent, false, "", a.Code, a.Size, a.Took)
}

// Terminated counts a request that the server terminated with code.
func (m *Monitor) Terminated(code int) {
	if m != nil {
		req := m.request()
		info, _ := apirequest.RequestInfoFrom(req.Context())
		metrics.RecordRequestTermination(req, info, metrics.APIServerComponent, code)
	}
}

// Initial counts a watch that has sent the bookmark after its initial events.
func (m *Monitor) Initial(took time.Duration) {
	if m != nil {
		m.initial.add(int64(took))
	}
}

// Sent counts an event of a watch.
func (m *Monitor) Sent(size int) {
	if m != nil {
		m.of.eventSizes.add(int64(size))
	}
}

// Resources has the Monitors of all resources that were ever served, unless Forget has removed them. The zero Resources
// is empty. Its methods are safe for concurrent use.
type Resources struct {
	mu  sync.Mutex
	all map[resourceKey]*Monitors // guarded by mu
}

type resourceKey struct {
	gvr         schema.GroupVersionResource
	subresource string
}

// Of returns the Monitors of a resource or subresource. The first call creates them.
func (r *Resources) Of(gvr schema.GroupVersionResource, subresource string) *Monitors {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.all == nil {
		r.all = make(map[resourceKey]*Monitors)
	}
	key := resourceKey{gvr, subresource}
	if r.all[key] == nil {
		r.all[key] = newMonitors(gvr, subresource)
	}
	return r.all[key]
}

// Forget removes the Monitors of a resource, with their counts.
func (r *Resources) Forget(resource schema.GroupResource) {
	r.mu.Lock()
	defer r.mu.Unlock()
	maps.DeleteFunc(r.all, func(key resourceKey, _ *Monitors) bool { return key.gvr.GroupResource() == resource })
}

// monitors returns the Monitors of all resources.
func monitors(of []*Resources) (list []*Monitors) {
	for _, rs := range of {
		rs.mu.Lock()
		list = slices.AppendSeq(list, maps.Values(rs.all))
		rs.mu.Unlock()
	}
	return list
}

// reset sets all counts to zero, except the number of open watches.
func (ms *Monitors) reset() {
	ms.removed.Store(nil)
	ms.eventSizes.reset()
	for _, m := range ms.reads {
		m.own.Store(0)
		m.durations.reset()
		m.sizes.reset()
		m.initial.reset()
	}
}
