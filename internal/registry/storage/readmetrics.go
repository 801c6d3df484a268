package storage

import (
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// ReadMetrics counts the reads of all resources of a server under upstream's names (apiserver
// pkg/storage/cacher/metrics/metrics.go).
type ReadMetrics struct {
	lists, fetched, returned, consistent *prometheus.CounterVec
	waited                               *prometheus.HistogramVec
}

// NewReadMetrics returns metrics of a server that has read nothing yet.
func NewReadMetrics() *ReadMetrics {
	counter := func(name, help string, more ...string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: "[ALPHA] " + help}, append([]string{"group", "resource"}, more...))
	}
	return &ReadMetrics{
		lists:      counter("apiserver_cache_list_total", "Number of LIST requests served from watch cache", "index"),
		fetched:    counter("apiserver_cache_list_fetched_objects_total", "Number of objects read from watch cache in the course of serving a LIST request", "index"),
		returned:   counter("apiserver_cache_list_returned_objects_total", "Number of objects returned for a LIST request from watch cache"),
		consistent: counter("apiserver_watch_cache_consistent_read_total", "Counter for consistent reads from cache.", "success", "fallback"),
		waited: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "apiserver_watch_cache_read_wait_seconds", Help: "[ALPHA] Histogram of time spent waiting for a watch cache to become fresh.",
			Buckets: []float64{0.005, 0.025, 0.05, 0.1, 0.2, 0.4, 0.6, 0.8, 1, 1.25, 1.5, 2, 3},
		}, []string{"group", "resource"}),
	}
}

// Collectors lists the metrics.
func (m *ReadMetrics) Collectors() []prometheus.Collector {
	return []prometheus.Collector{m.lists, m.fetched, m.returned, m.consistent, m.waited}
}

// list counts a list that was served from the cache. index is "" if no index was used.
func (m *ReadMetrics) list(of schema.GroupResource, index string, fetched, returned int) {
	m.lists.WithLabelValues(of.Group, of.Resource, index).Inc()
	m.fetched.WithLabelValues(of.Group, of.Resource, index).Add(float64(fetched))
	m.returned.WithLabelValues(of.Group, of.Resource).Add(float64(returned))
}

// newest counts a list of the newest state. success is "true" or "false".
func (m *ReadMetrics) newest(of schema.GroupResource, success string) {
	m.consistent.WithLabelValues(of.Group, of.Resource, success, "false").Inc()
}

// wait counts a read that waited for the cache to reach a revision. A resource without such reads has no sample, as in
// kube-apiserver.
func (m *ReadMetrics) wait(of schema.GroupResource, took time.Duration) {
	m.waited.WithLabelValues(of.Group, of.Resource).Observe(took.Seconds())
}

// StoreLists counts lists that were served from the store, and the objects that were read and returned for them.
// Upstream counts these lists together with the loads of caches.
type StoreLists struct{ Lists, Fetched, Returned atomic.Int64 }
