package apimetrics

import (
	"errors"
	"net/http"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	dto "github.com/prometheus/client_model/go"
	handlermetrics "k8s.io/apiserver/pkg/endpoints/handlers/metrics"
	"k8s.io/apiserver/pkg/endpoints/metrics"
	peerproxymetrics "k8s.io/apiserver/pkg/util/peerproxy/metrics"
	proxymetrics "k8s.io/apiserver/pkg/util/proxy/metrics"
	"k8s.io/component-base/metrics/legacyregistry"
	_ "k8s.io/component-base/metrics/prometheus/clientgo" // rest_client_*: requests of the server to itself
	"k8s.io/component-base/metrics/prometheus/slis"
	_ "k8s.io/component-base/metrics/prometheus/workqueue" // workqueue_*: of upstream's controllers
	"k8s.io/kube-openapi/pkg/common"
)

// MetricsPage serves /metrics.
type MetricsPage struct {
	Resources  []*Resources // of everything that is served
	Access     *Access
	Collectors []prometheus.Collector
	// Amend adds to upstream's metrics; may be nil.
	Amend func([]*dto.MetricFamily)
	// Limits apply to Collectors, Access and Resources.
	Limits Limits
	// Resettable says that DELETE sets all counts to zero. Otherwise DELETE is served like GET.
	Resettable bool
	// More are further sources of metrics.
	More []prometheus.Gatherer
}

// Install adds /metrics and /metrics/slis. Upstream's registry belongs to the process, the collectors to this server.
// Only the responses of this server have the sum of both.
func (p *MetricsPage) Install(to common.PathHandlerByGroupVersion) error {
	metrics.Register()
	handlermetrics.Register()
	proxymetrics.Register()
	peerproxymetrics.Register()
	own := prometheus.NewRegistry()
	for _, c := range append(p.Collectors[:len(p.Collectors):len(p.Collectors)], p.Access, NewCollector(p.Resources...)) {
		if err := own.Register(c); err != nil {
			return err
		}
	}
	gather := prometheus.GathererFunc(func() ([]*dto.MetricFamily, error) {
		families, err := legacyregistry.DefaultGatherer.Gather()
		families = without(visible(families), countedHere...)
		ours, ownErr := own.Gather()
		families = sum(families, p.Limits.apply(ours))
		if p.Amend != nil {
			p.Amend(families)
		}
		return families, errors.Join(err, ownErr)
	})
	all := append(prometheus.Gatherers{gather}, p.More...)
	serve := promhttp.HandlerFor(all, promhttp.HandlerOpts{ProcessStartTime: legacyregistry.GetProcessStart()})
	to.Handle("/metrics", http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		if req.Method == http.MethodDelete && p.Resettable {
			for _, ms := range monitors(p.Resources) {
				ms.reset()
			}
			p.Access.Reset()
			for _, c := range p.Collectors {
				if vec, ok := c.(interface{ Reset() }); ok {
					vec.Reset()
				}
			}
			legacyregistry.Reset()
			w.Write([]byte("metrics reset\n"))
			return
		}
		serve.ServeHTTP(w, req)
	}))
	if p.Resettable {
		slis.SLIMetricsWithReset{}.Install(to)
	} else {
		slis.SLIMetrics{}.Install(to)
	}
	return nil
}

// countedHere are the metrics of upstream that only an [Access] counts.
var countedHere = []string{
	"authenticated_user_requests", "authentication_attempts", "authentication_duration_seconds",
	"authorization_attempts_total", "authorization_duration_seconds",
}
