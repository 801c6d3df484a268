package apimetrics

import (
	"net/http"
	"slices"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	dto "github.com/prometheus/client_model/go"
	"k8s.io/apiserver/pkg/endpoints/metrics"
	apirequest "k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/component-base/metrics/legacyregistry"
	_ "k8s.io/component-base/metrics/prometheus/clientgo" // rest_client_*: what the server asks of itself
	"k8s.io/component-base/metrics/prometheus/slis"
	_ "k8s.io/component-base/metrics/prometheus/workqueue" // workqueue_*: of upstream's controllers
)

// Mux is what paths are installed on.
type Mux interface {
	Handle(path string, h http.Handler)
	HandlePrefix(path string, h http.Handler)
}

// Page is what /metrics tells.
type Page struct {
	Resources  Resources
	Access     *Access
	Collectors []prometheus.Collector
	// Amend adds to upstream's metrics what upstream was not told.
	Amend []func([]*dto.MetricFamily)
	// More are those of other servers.
	More []prometheus.Gatherer
}

// Install adds /metrics and /metrics/slis. Upstream's registry belongs to the process;
// collectors belong to this server and are merged into its answers alone.
func (p *Page) Install(to Mux) error {
	metrics.Register()
	own := prometheus.NewRegistry()
	for _, c := range p.Collectors {
		if err := own.Register(c); err != nil {
			return err
		}
	}
	upstream := prometheus.GathererFunc(func() ([]*dto.MetricFamily, error) {
		families, err := legacyregistry.DefaultGatherer.Gather()
		families = p.Access.withoutUpstream(families)
		countWatches(families, p.Resources)
		addTallies(families, p.Resources)
		p.Access.addTokens(families)
		for _, amend := range p.Amend {
			amend(families)
		}
		return families, err
	})
	all := append(prometheus.Gatherers{upstream, own}, p.More...)
	serve := promhttp.HandlerFor(all, promhttp.HandlerOpts{ProcessStartTime: legacyregistry.GetProcessStart()})
	to.Handle("/metrics", http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		if req.Method == http.MethodDelete {
			resetTallies(p.Resources)
			p.Access.Reset()
			legacyregistry.Reset()
			w.Write([]byte("metrics reset\n"))
			return
		}
		serve.ServeHTTP(w, req)
	}))
	slis.SLIMetricsWithReset{}.Install(to)
	return nil
}

// countWatches adds the open watches of resources to upstream's gauge.
func countWatches(families []*dto.MetricFamily, of Resources) {
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
		if labels["verb"] != apirequest.MethodWatch {
			continue
		}
		m := of.Monitors(labels["group"], labels["version"], labels["resource"], labels["subresource"]).Of("watch", labels["scope"])
		if m != nil {
			open := sample.GetGauge().GetValue() + float64(m.Watches())
			sample.Gauge.Value = &open
		}
	}
}
