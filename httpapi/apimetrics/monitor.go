package apimetrics

import (
	"iter"
	"net/http"
	"strings"
	"sync/atomic"
	"time"

	"k8s.io/apiserver/pkg/endpoints/metrics"
	apirequest "k8s.io/apiserver/pkg/endpoints/request"

	"github.com/larder-io/larder/internal/registry"
)

// Monitors has the monitors of one resource, by verb and scope. It is not changed. One that
// is nil reports nothing.
type Monitors map[Key]*Monitor

// Key is a verb (get, list, watch) and a scope (resource, namespace, cluster).
type Key struct{ Verb, Scope string }

// NewMonitors returns those of e.
func NewMonitors(e *registry.Endpoint) Monitors {
	all := make(Monitors)
	for _, key := range []Key{
		{"get", "resource"},
		{"list", "resource"}, {"list", "namespace"}, {"list", "cluster"},
		{"watch", "resource"}, {"watch", "namespace"}, {"watch", "cluster"},
	} {
		if m, err := NewMonitor(e, strings.ToUpper(key.Verb), key.Scope); err == nil {
			all[key] = m
		}
	}
	return all
}

// Of returns the monitor of a verb and scope.
func (all Monitors) Of(verb, scope string) *Monitor { return all[Key{verb, scope}] }

// Monitor reports requests of one shape that never were a net/http request. It
// holds a stand-in for upstream's metrics to read the constant labels from. A nil
// monitor reports nothing.
type Monitor struct {
	endpoint *registry.Endpoint
	verb     string
	scope    string
	request  *http.Request
	open     atomic.Int64 // watches
	tally    tally
}

// NewMonitor reports requests for e by verb (GET, LIST, WATCH) in scope (resource,
// namespace, cluster).
func NewMonitor(e *registry.Endpoint, verb, scope string) (*Monitor, error) {
	req, err := http.NewRequest(http.MethodGet, "/", nil)
	if err != nil {
		return nil, err
	}
	if verb == apirequest.MethodWatch {
		req.URL.RawQuery = "watch=1"
	}
	info := &apirequest.RequestInfo{
		IsResourceRequest: true,
		APIGroup:          e.GVR.Group,
		APIVersion:        e.GVR.Version,
		Resource:          e.GVR.Resource,
		Subresource:       e.Subresource,
	}
	switch scope { // which upstream's gauge of long requests infers
	case "resource":
		info.Name = "any"
	case "namespace":
		info.Namespace = "any"
	}
	ctx := apirequest.WithRequestInfo(req.Context(), info)
	// Latencies that serve service level indicators are reported only for requests
	// that tell time spent in webhooks apart.
	ctx = apirequest.WithLatencyTrackers(ctx)
	return &Monitor{endpoint: e, verb: verb, scope: scope, request: req.WithContext(ctx)}, nil
}

// Enter counts a watch as open. Upstream's gauge can only count what keeps a
// goroutine; here it merely learns that there is something to count, which
// countWatches adds.
func (m *Monitor) Enter() {
	if m == nil {
		return
	}
	m.open.Add(1)
	info, _ := apirequest.RequestInfoFrom(m.request.Context())
	metrics.RecordLongRunning(m.request, info, metrics.APIServerComponent, func() {})
}

// Leave ends what enter began.
func (m *Monitor) Leave() {
	if m != nil {
		m.open.Add(-1)
	}
}

// Watches is how many are open.
func (m *Monitor) Watches() int64 { return m.open.Load() }

// Observe reports one request that was answered with code and size bytes.
func (m *Monitor) Observe(code, size int, elapsed time.Duration) {
	if m == nil {
		return
	}
	tallied := m.tallied(code)
	if tallied && m.tally.known.Load() {
		m.tally.add(size, elapsed)
		return
	}
	e := m.endpoint
	metrics.MonitorRequest(m.request, m.verb, e.GVR.Group, e.GVR.Version, e.GVR.Resource, e.Subresource,
		m.scope, metrics.APIServerComponent, false, "", code, size, elapsed)
	if tallied {
		m.tally.known.Store(true)
	}
}

// tallied reports whether the answers that m reports are of one kind: upstream calls a
// list of one name now this and now that.
func (m *Monitor) tallied(code int) bool {
	return code == http.StatusOK && (m.verb == "GET" && m.scope == "resource" || m.verb == "LIST" && m.scope != "resource")
}

// Resources knows the monitors of what is served.
type Resources interface {
	// Monitors returns those of a resource, nil if it is not served.
	Monitors(group, version, resource, subresource string) Monitors
	// AllMonitors gives out those of every resource.
	AllMonitors() iter.Seq[Monitors]
}
