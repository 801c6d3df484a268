package httpapi

import (
	"context"
	"net/http"
	"slices"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	dto "github.com/prometheus/client_model/go"
	"k8s.io/apiserver/pkg/endpoints/metrics"
	apirequest "k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/warning"
	"k8s.io/component-base/metrics/legacyregistry"
	_ "k8s.io/component-base/metrics/prometheus/clientgo" // rest_client_*: what the server asks of itself
	"k8s.io/component-base/metrics/prometheus/slis"
	_ "k8s.io/component-base/metrics/prometheus/workqueue" // workqueue_*: of upstream's controllers

	"github.com/larder-io/larder/internal/registry"
)

// instrument reports what h does under upstream's metrics, by verb, and warns
// clients of deprecated kinds.
func (b *handlerBuilder) instrument(verb string, h http.HandlerFunc) http.Handler {
	e, life := b.endpoint, b.life
	served := func(w http.ResponseWriter, req *http.Request) {
		for _, text := range life.warnings {
			warning.AddWarning(req.Context(), "", text)
		}
		h(w, req)
	}
	measure := func(scope string) http.HandlerFunc {
		return metrics.InstrumentHandlerFunc(verb, e.GVR.Group, e.GVR.Version, e.GVR.Resource, e.Subresource,
			scope, metrics.APIServerComponent, life.deprecated, life.removed, served)
	}
	item, namespace, cluster := measure("resource"), measure("namespace"), measure("cluster")
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		if stream, ok := w.(streamer); ok {
			w = &notifying{streamer: stream, done: req.Context()}
		}
		switch info, _ := apirequest.RequestInfoFrom(req.Context()); {
		case info == nil || len(info.Parts) > 1 || verb == apirequest.MethodPost:
			item(w, req)
		case info.Namespace != "" && e.Namespaced:
			namespace(w, req)
		default:
			cluster(w, req)
		}
	})
}

// streamer is a response that can be sent piecemeal or taken over.
type streamer interface {
	http.ResponseWriter
	http.Flusher
	http.Hijacker
}

// notifying adds to a streamer the method without which upstream's decorators hide
// that it is one (apiserver pkg/endpoints/responsewriter/wrapper.go).
type notifying struct {
	streamer
	done context.Context
}

// CloseNotify implements http.CloseNotifier.
func (n *notifying) CloseNotify() <-chan bool {
	gone := make(chan bool, 1)
	context.AfterFunc(n.done, func() { gone <- true })
	return gone
}

// Unwrap is for http.ResponseController.
func (n *notifying) Unwrap() http.ResponseWriter { return n.streamer }

// monitor reports requests of one shape that never were a net/http request. It
// holds a stand-in for upstream's metrics to read the constant labels from. A nil
// monitor reports nothing.
type monitor struct {
	endpoint *registry.Endpoint
	verb     string
	scope    string
	request  *http.Request
	open     atomic.Int64 // watches
	tally    tally
}

// newMonitor reports requests for e by verb (GET, LIST, WATCH) in scope (resource,
// namespace, cluster).
func newMonitor(e *registry.Endpoint, verb, scope string) (*monitor, error) {
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
	return &monitor{endpoint: e, verb: verb, scope: scope, request: req.WithContext(ctx)}, nil
}

// enter counts a watch as open. Upstream's gauge can only count what keeps a
// goroutine; here it merely learns that there is something to count, which
// countWatches adds.
func (m *monitor) enter() {
	if m == nil {
		return
	}
	m.open.Add(1)
	info, _ := apirequest.RequestInfoFrom(m.request.Context())
	metrics.RecordLongRunning(m.request, info, metrics.APIServerComponent, func() {})
}

// leave ends what enter began.
func (m *monitor) leave() {
	if m != nil {
		m.open.Add(-1)
	}
}

// observe reports one request that was answered with code and size bytes.
func (m *monitor) observe(code, size int, elapsed time.Duration) {
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

// serveMetrics adds /metrics and /metrics/slis. Upstream's registry belongs to the
// process; collectors belong to this server and are merged into its answers alone.
func serveMetrics(t *table, config *Config, access *access, collectors ...prometheus.Collector) error {
	metrics.Register()
	own := prometheus.NewRegistry()
	for _, c := range collectors {
		if err := own.Register(c); err != nil {
			return err
		}
	}
	upstream := prometheus.GathererFunc(func() ([]*dto.MetricFamily, error) {
		families, err := legacyregistry.DefaultGatherer.Gather()
		families = access.withoutUpstream(families)
		countWatches(families, t)
		addTallies(families, t)
		access.addTokens(families)
		if config.Flow != nil {
			config.Flow.AddTo(families)
		}
		if config.Amend != nil {
			config.Amend(families)
		}
		return families, err
	})
	all := prometheus.Gatherers{upstream, own}
	if config.Aggregator != nil {
		all = append(all, config.Aggregator)
	}
	serve := promhttp.HandlerFor(all, promhttp.HandlerOpts{ProcessStartTime: legacyregistry.GetProcessStart()})
	t.handle("/metrics", http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		if req.Method == http.MethodDelete {
			resetTallies(t)
			access.reset()
			legacyregistry.Reset()
			w.Write([]byte("metrics reset\n"))
			return
		}
		serve.ServeHTTP(w, req)
	}))
	slis.SLIMetricsWithReset{}.Install(paths{t})
	return nil
}

// countWatches adds the open watches of t's resources to upstream's gauge.
func countWatches(families []*dto.MetricFamily, t *table) {
	at := slices.IndexFunc(families, func(f *dto.MetricFamily) bool {
		return f.GetName() == "apiserver_longrunning_requests"
	})
	if at < 0 {
		return
	}
	for _, sample := range families[at].GetMetric() {
		labels := make(map[string]string)
		for _, l := range sample.GetLabel() {
			labels[l.GetName()] = l.GetValue()
		}
		i := t.resources[resourceKey{labels["group"], labels["version"], labels["resource"], labels["subresource"]}]
		if i == nil || labels["verb"] != apirequest.MethodWatch {
			continue
		}
		if m := i.monitors[monitorKey{"watch", labels["scope"]}]; m != nil {
			open := sample.GetGauge().GetValue() + float64(m.open.Load())
			sample.Gauge.Value = &open
		}
	}
}

// paths makes a table what upstream's installers register paths on.
type paths struct{ t *table }

// Handle serves path by h.
func (p paths) Handle(path string, h http.Handler) { p.t.handle(path, h) }

// HandlePrefix serves every path below path, which ends in "/", by h.
func (p paths) HandlePrefix(path string, h http.Handler) { p.t.handlePrefix(path, h) }
