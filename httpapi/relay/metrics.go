package relay

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/larder-io/larder/internal/registry"
)

// cached returns the resources whose caches are kept current.
func (r *Relay) cached() (all []*followed) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, f := range r.followed {
		if f.hasCache() && f.alive.Err() == nil {
			all = append(all, f)
		}
	}
	return all
}

// CountHit counts a request that a cache has served.
func (r *Relay) CountHit() { r.hits.Add(1) }

// Followed returns the resources that are followed.
func (r *Relay) Followed() (all []*registry.Resource) {
	for _, f := range r.cached() {
		all = append(all, f.stored())
	}
	return all
}

// Collect is a prometheus.CollectorFunc.
func (r *Relay) Collect(ch chan<- prometheus.Metric) {
	emit := func(name, help string, kind prometheus.ValueType, labels []string, value float64, values ...string) {
		ch <- prometheus.MustNewConstMetric(prometheus.NewDesc(name, help, labels, nil), kind, value, values...)
	}
	for by, n := range map[string]uint64{"cache": r.hits.Load(), "upstream": r.passed.Load()} {
		emit("larder_relay_requests_total", "Counter of requests, by what served them: a cache or the upstream.", prometheus.CounterValue, []string{"by"}, float64(n), by)
	}
	emit("larder_relay_upstream_age_seconds", "Time since the last response of the upstream, 0 up to 15 seconds.", prometheus.GaugeValue, nil, r.Age().Seconds())
	labels := []string{"group", "version", "resource"}
	for _, f := range r.cached() {
		if f.stored().Ready() {
			emit("larder_relay_objects", "Number of cached objects of a followed resource.", prometheus.GaugeValue, labels, float64(f.stored().Cache.Snapshot().Len()), f.gvr.Group, f.gvr.Version, f.gvr.Resource)
			emit("larder_relay_bytes", "Bytes of the cached objects of a followed resource, which --memory-budget limits.", prometheus.GaugeValue, labels, float64(f.stored().Cache.Snapshot().Bytes()), f.gvr.Group, f.gvr.Version, f.gvr.Resource)
		}
	}
}
