package apimetrics

import (
	"math"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/version"
	"k8s.io/apiserver/pkg/features"
	utilfeature "k8s.io/apiserver/pkg/util/feature"

	"github.com/larder-io/larder/internal/registry"
	"github.com/larder-io/larder/internal/registry/storage"
)

// cacheCollector reports what the caches hold and do. Metrics with the meaning of a metric of
// upstream's cacher (apiserver pkg/storage/cacher/metrics, pkg/storage/etcd3/metrics) have its name.
//
// It is immutable.
type cacheCollector struct {
	registry *registry.Registry
	counts   bool // report the number of objects
	sizes    bool // and their sizes
	descs    map[string]*prometheus.Desc
}

// cacheMetrics are the names and texts of the metrics, and their labels after group and resource. The first
// metric has only the label resource. Names of Larder's own metrics begin with larder_.
var cacheMetrics = [][]string{
	{"apiserver_storage_objects", "[STABLE] (Deprecated since 1.34.0) [DEPRECATED, consider using apiserver_resource_objects instead] Number of stored objects at the time of last check split by kind. In case of a fetching error, the value will be -1."},
	{"apiserver_watch_shards_total", "[ALPHA] Number of active sharded watch connections broken by resource type."},
	{"apiserver_watch_filtered_events_total", "[ALPHA] Counter of events filtered out by shard selector during watch dispatch, broken by resource type."},
	{"apiserver_resource_objects", "[ALPHA] Number of stored objects at the time of last check split by kind. In case of a fetching error, the value will be -1."},
	{"apiserver_resource_size_estimate_bytes", "[ALPHA] Estimated size of stored objects in database. Estimate is based on sum of last observed sizes of serialized objects. In case of a fetching error, the value will be -1."},
	{"apiserver_watch_cache_resource_version", "[ALPHA] Current resource version of watch cache broken by resource type. This is truncated to the 15 least significant digits."},
	{"apiserver_watch_cache_events_received_total", "[ALPHA] Counter of events received in watch cache broken by resource type."},
	{"apiserver_watch_cache_events_dispatched_total", "[ALPHA] Counter of events dispatched in watch cache broken by resource type."},
	{"apiserver_storage_events_received_total", "[BETA] Number of etcd events received split by kind."},
	{"apiserver_init_events_total", "[ALPHA] Counter of init events processed in watch cache broken by resource type."},
	{"apiserver_terminated_watchers_total", "[ALPHA] Counter of watchers closed due to unresponsiveness broken by resource type."},
	{"apiserver_watch_cache_initializations_total", "[ALPHA] Counter of watch cache initializations broken by resource type."},
	{"watch_cache_capacity", "[ALPHA] Total capacity of watch cache broken by resource type."},
	{"watch_cache_capacity_increase_total", "[ALPHA] Total number of watch cache capacity increase events broken by resource type."},
	{"watch_cache_capacity_decrease_total", "[ALPHA] Total number of watch cache capacity decrease events broken by resource type."},
	{"apiserver_storage_decode_errors_total", "[ALPHA] Number of stored object decode errors split by object type"},
	{"apiserver_storage_consistency_checks_total", "[ALPHA] Counter for status of consistency checks between etcd and watch cache", "status"},
	{"apiserver_storage_list_total", "[ALPHA] Number of LIST requests served from storage"},
	{"apiserver_storage_list_fetched_objects_total", "[ALPHA] Number of objects read from storage in the course of serving a LIST request"},
	{"apiserver_storage_list_evaluated_objects_total", "[ALPHA] Number of objects tested in the course of serving a LIST request from storage"},
	{"apiserver_storage_list_returned_objects_total", "[ALPHA] Number of objects returned for a LIST request from storage"},
	{"larder_cache_bytes", "Bytes in the cache: canonical encodings, encodings made on demand, frames of events, or objects that only past events refer to.", "of"},
	{"larder_cache_dropped_total", "Counter of encodings, frames of events, and past events (history) that the cache dropped for lack of space.", "of"},
	{"larder_cache_refused_total", "Counter of encodings that the cache did not keep for lack of space."},
	{"larder_cache_history_events", "Number of past events from which watches can start."},
	{"larder_cache_history_seconds", "Age of the oldest event from which watches can start, 0 if there is none. Events that the server replayed at its start count as three minutes younger."},
	{"larder_watchers", "Number of open watches."},
	{"larder_watcher_groups", "Number of distinct selectors of open watches. Each is evaluated once per event."},
	{"larder_watchers_behind", "Number of open watches with events to send."},
	{"larder_watchers_slowest_seconds", "How long the slowest of the watches that are behind has had events to send."},
	{"larder_cache_decodes_total", "Counter of cached objects that were decoded to serve a read."},
	{"larder_cache_ingested_total", "Counter of stored values that were decoded to enter the cache."},
	{"larder_cache_offered_total", "Counter of objects that entered the cache from this server's own writes, without decoding."},
}

// NewCacheCollector reports the caches of r. counts says that it also reports the number of objects
// and their sizes.
func NewCacheCollector(r *registry.Registry, counts bool) prometheus.Collector {
	c := &cacheCollector{
		registry: r, counts: counts, sizes: utilfeature.DefaultFeatureGate.Enabled(features.SizeBasedListCostEstimate),
		descs: make(map[string]*prometheus.Desc, len(cacheMetrics)),
	}
	for i, m := range cacheMetrics {
		labels := append([]string{"group", "resource"}, m[2:]...)
		if i == 0 {
			labels = labels[1:]
		}
		c.descs[m[0]] = prometheus.NewDesc(m[0], m[1], labels, nil)
	}
	return c
}

// NewBuildInfo reports the release of the server, under upstream's name.
func NewBuildInfo(info *version.Info) prometheus.Collector {
	return prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "kubernetes_build_info",
		Help: "[BETA] A metric with a constant '1' value labeled by major, minor, git version, git commit, git tree state, build date, Go version, and compiler from which Kubernetes was built, and platform on which it is running.",
		ConstLabels: prometheus.Labels{
			"major": info.Major, "minor": info.Minor, "git_version": info.GitVersion, "git_commit": info.GitCommit, "git_tree_state": info.GitTreeState,
			"build_date": info.BuildDate, "go_version": info.GoVersion, "compiler": info.Compiler, "platform": info.Platform,
		},
	}, func() float64 { return 1 })
}

// Describe implements prometheus.Collector.
func (c *cacheCollector) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range c.descs {
		ch <- d
	}
}

// Collect implements prometheus.Collector.
func (c *cacheCollector) Collect(ch chan<- prometheus.Metric) {
	for _, r := range c.registry.Resources() {
		if r.Cache != nil {
			c.collect(ch, r)
		}
	}
	for _, r := range c.registry.CustomResources() {
		c.collect(ch, r)
	}
}

// sample is one sample of a resource.
type sample func(name string, kind prometheus.ValueType, value float64, more ...string)

const (
	gauge   = prometheus.GaugeValue
	counter = prometheus.CounterValue
)

func (c *cacheCollector) collect(ch chan<- prometheus.Metric, r *registry.Resource) {
	gr := r.GroupResource
	emit := func(name string, kind prometheus.ValueType, value float64, more ...string) {
		ch <- prometheus.MustNewConstMetric(c.descs[name], kind, value, append([]string{gr.Group, gr.Resource}, more...)...)
	}
	c.collectFeed(emit, r)
	pressure := r.Cache.Schema().Pressure()
	emit("larder_cache_dropped_total", counter, float64(pressure.Encodings), "encodings")
	emit("larder_cache_dropped_total", counter, float64(pressure.Frames), "frames")
	emit("larder_cache_dropped_total", counter, float64(pressure.Events), "history")
	emit("larder_cache_refused_total", counter, float64(pressure.Refused))
	if !r.Cache.Ready() {
		return
	}
	schema, log, now := r.Cache.Schema(), r.Cache.Log(), r.Cache.Snapshot()
	if c.counts {
		ch <- prometheus.MustNewConstMetric(c.descs["apiserver_storage_objects"], gauge, float64(now.Len()), gr.String())
		emit("apiserver_resource_objects", gauge, float64(now.Len()))
		if c.sizes {
			emit("apiserver_resource_size_estimate_bytes", gauge, float64(now.StoredBytes()))
		}
	}
	emit("apiserver_watch_cache_resource_version", gauge, float64(now.Revision()%1e15))
	emit("larder_cache_history_events", gauge, float64(log.Len()))
	age := time.Duration(0)
	if since, ok := log.Since(); ok {
		age = max(time.Since(since), 0)
	}
	emit("larder_cache_history_seconds", gauge, age.Seconds())
	emit("larder_cache_bytes", gauge, float64(now.Bytes()), "canonical")
	emit("larder_cache_bytes", gauge, float64(schema.EncodingBytes()), "encodings")
	emit("larder_cache_bytes", gauge, float64(schema.FrameBytes()), "frames")
	emit("larder_cache_bytes", gauge, float64(log.Bytes()), "history")
}

// collectFeed reports the lists and events that filled the cache, and the events that watches received.
func (c *cacheCollector) collectFeed(emit sample, r *registry.Resource) {
	reflector, hub := &r.Reflector.Stats, r.Hub.Stats()
	emit("apiserver_watch_cache_events_received_total", counter, float64(hub.Events))
	emit("apiserver_watch_cache_events_dispatched_total", counter, float64(hub.Events))
	emit("apiserver_storage_events_received_total", counter, float64(hub.Events))
	emit("apiserver_init_events_total", counter, float64(hub.Initial))
	emit("apiserver_terminated_watchers_total", counter, float64(hub.Lapped))
	emit("apiserver_watch_cache_initializations_total", counter, float64(reflector.Loads.Load()))
	room, grown, shrunk := r.Cache.Log().Capacity()
	emit("watch_cache_capacity", gauge, float64(room))
	for name, n := range map[string]int64{"watch_cache_capacity_increase_total": grown, "watch_cache_capacity_decrease_total": shrunk, "apiserver_storage_decode_errors_total": r.Codec().Undecodable()} {
		if n > 0 { // as with upstream's
			emit(name, counter, float64(n))
		}
	}
	emit("larder_watchers", gauge, float64(hub.Watchers))
	emit("larder_watcher_groups", gauge, float64(hub.Groups))
	if storage.Sharded() {
		emit("apiserver_watch_shards_total", gauge, float64(hub.Sharded))
		emit("apiserver_watch_filtered_events_total", counter, float64(hub.OutsideShard))
	}
	behind, slowest := r.Hub.Lag()
	emit("larder_watchers_behind", gauge, float64(behind))
	emit("larder_watchers_slowest_seconds", gauge, slowest.Seconds())
	emit("larder_cache_decodes_total", counter, float64(r.Codec().Decodes()))
	emit("larder_cache_ingested_total", counter, float64(reflector.Decoded.Load()))
	emit("larder_cache_offered_total", counter, float64(reflector.Offered.Load()))
	lists, fetched := &r.StoreLists, r.StoreLists.Fetched.Load()+reflector.Objects.Load()
	if total := lists.Lists.Load() + reflector.Loads.Load(); total > 0 { // as with upstream's
		emit("apiserver_storage_list_total", counter, float64(total))
		emit("apiserver_storage_list_fetched_objects_total", counter, float64(fetched))
		emit("apiserver_storage_list_evaluated_objects_total", counter, float64(fetched))
		emit("apiserver_storage_list_returned_objects_total", counter, float64(lists.Returned.Load()+reflector.Objects.Load()))
	}
	checks := r.CheckStats()
	emit("apiserver_storage_consistency_checks_total", counter, float64(checks.Equal), "success")
	emit("apiserver_storage_consistency_checks_total", counter, float64(checks.Different), "failure")
	emit("apiserver_storage_consistency_checks_total", counter, float64(checks.Failed), "error")
}

// NewBudgetCollector reports the limits of the caches' budgets of r and how much of them is used.
func NewBudgetCollector(r *registry.Registry) prometheus.Collector {
	labels := []string{"budget", "of"}
	limit := prometheus.NewDesc("larder_cache_budget_limit_bytes", "Limit of encodings and frames in bytes, or of these and past events (all), shared or of one resource.", labels, nil)
	used := prometheus.NewDesc("larder_cache_budget_used_bytes", "Used bytes of larder_cache_budget_limit_bytes, including the cost of keeping entries.", labels, nil)
	return prometheus.CollectorFunc(func(ch chan<- prometheus.Metric) {
		for _, b := range r.Budgets() {
			name := "shared"
			if !b.Resource.Empty() {
				name = b.Resource.String()
			}
			emit := func(desc *prometheus.Desc, of string, value float64) {
				ch <- prometheus.MustNewConstMetric(desc, prometheus.GaugeValue, value, name, of)
			}
			emit(limit, "encodings", bound(b.Limit()))
			emit(limit, "all", bound(b.TotalLimit()))
			emit(used, "encodings", float64(b.Used()))
			emit(used, "all", float64(b.Used()+b.LogBytes()))
		}
	})
}

// bound returns a limit as the value of a metric; 0 means no limit.
func bound(limit int64) float64 {
	if limit <= 0 {
		return math.Inf(1)
	}
	return float64(limit)
}
