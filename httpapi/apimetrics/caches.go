package apimetrics

import (
	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/version"

	"github.com/larder-io/larder/cache"
	"github.com/larder-io/larder/internal/registry"
)

// cacheCollector reports what the caches hold and do, read when it is asked for. Where
// upstream's cacher has a metric of the same meaning (apiserver
// pkg/storage/cacher/metrics, pkg/storage/etcd3/metrics), it has its name.
//
// It is immutable.
type cacheCollector struct {
	registry *registry.Registry
	counts   bool // how many objects there are is told

	storageObjects, objects, version    *prometheus.Desc
	received, terminated, initialised   *prometheus.Desc
	bytes, history, watchers, watchSets *prometheus.Desc
	decodes, ingested, offered          *prometheus.Desc
	events, stored, checks              *prometheus.Desc
	dropped, refused                    *prometheus.Desc
}

// Secondary encodings are numbered; 0 is the canonical one.
const maxEncodings = 256

// NewCacheCollector reports the caches of r, without how many objects there are and how
// large they are unless counts is set.
func NewCacheCollector(r *registry.Registry, counts bool) prometheus.Collector {
	desc := func(name, help string, more ...string) *prometheus.Desc {
		return prometheus.NewDesc(name, help, append([]string{"group", "resource"}, more...), nil)
	}
	return &cacheCollector{
		registry:       r,
		counts:         counts,
		storageObjects: prometheus.NewDesc("apiserver_storage_objects", "Number of stored objects split by kind.", []string{"resource"}, nil),
		objects:        desc("apiserver_resource_objects", "Number of stored objects split by kind."),
		version:        desc("apiserver_watch_cache_resource_version", "Current resource version of watch cache broken by resource type. This is truncated to the 15 least significant digits."),
		received:       desc("apiserver_watch_cache_events_received_total", "Counter of events received in watch cache broken by resource type."),
		terminated:     desc("apiserver_terminated_watchers_total", "Counter of watchers closed due to unresponsiveness broken by resource type."),
		initialised:    desc("apiserver_watch_cache_initializations_total", "Counter of watch cache initializations broken by resource type."),
		events:         desc("apiserver_storage_events_received_total", "Number of etcd events received split by kind."),
		stored:         desc("apiserver_resource_size_estimate_bytes", "Estimated size of stored objects in database. Estimate is based on sum of last observed sizes of serialized objects."),
		checks:         desc("apiserver_storage_consistency_checks_total", "Counter for status of consistency checks between etcd and watch cache", "status"),
		bytes:          desc("larder_cache_bytes", "Bytes that the cache holds, by what they are: canonical encodings, encodings made on demand, frames of events, or objects that only the event history still needs.", "of"),
		dropped:        desc("larder_cache_dropped_total", "Counter of what the cache gave up before its time for want of room: encodings made on demand, frames of events, or events of the history.", "of"),
		refused:        desc("larder_cache_refused_total", "Counter of encodings that were made on demand and not kept for want of room."),
		history:        desc("larder_cache_history_events", "Number of past events that watches can still start from."),
		watchers:       desc("larder_watchers", "Number of open watches."),
		watchSets:      desc("larder_watcher_groups", "Number of different selections among open watches. Each is evaluated once per event."),
		decodes:        desc("larder_cache_decodes_total", "Counter of cached objects that were decoded to serve a read."),
		ingested:       desc("larder_cache_ingested_total", "Counter of stored values that were decoded to enter the cache."),
		offered:        desc("larder_cache_offered_total", "Counter of objects that entered the cache as this server had written them, without decoding."),
	}
}

// NewBuildInfo reports which release a server is, under upstream's name.
func NewBuildInfo(info *version.Info) prometheus.Collector {
	return prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "kubernetes_build_info",
		Help: "A metric with a constant '1' value labeled by major, minor, git version, git commit, git tree state, build date, Go version, and compiler from which Kubernetes was built, and platform on which it is running.",
		ConstLabels: prometheus.Labels{
			"major":          info.Major,
			"minor":          info.Minor,
			"git_version":    info.GitVersion,
			"git_commit":     info.GitCommit,
			"git_tree_state": info.GitTreeState,
			"build_date":     info.BuildDate,
			"go_version":     info.GoVersion,
			"compiler":       info.Compiler,
			"platform":       info.Platform,
		},
	}, func() float64 { return 1 })
}

// Describe implements prometheus.Collector.
func (c *cacheCollector) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{
		c.storageObjects, c.objects, c.version, c.received, c.terminated, c.initialised,
		c.bytes, c.history, c.watchers, c.watchSets, c.decodes, c.ingested, c.offered,
		c.events, c.stored, c.checks, c.dropped, c.refused,
	} {
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

func (c *cacheCollector) collect(ch chan<- prometheus.Metric, r *registry.Resource) {
	gr := r.GroupResource
	emit := func(desc *prometheus.Desc, kind prometheus.ValueType, value float64, more ...string) {
		labels := append([]string{gr.Group, gr.Resource}, more...)
		ch <- prometheus.MustNewConstMetric(desc, kind, value, labels...)
	}
	gauge, counter := prometheus.GaugeValue, prometheus.CounterValue

	reflector, hub := r.Reflector.Stats(), r.Hub.Stats()
	emit(c.received, counter, float64(hub.Events))
	emit(c.events, counter, float64(hub.Events))
	emit(c.terminated, counter, float64(hub.Lapped))
	emit(c.initialised, counter, float64(reflector.Loads))
	emit(c.watchers, gauge, float64(hub.Watchers))
	emit(c.watchSets, gauge, float64(hub.Groups))
	emit(c.decodes, counter, float64(r.Decodes()))
	emit(c.ingested, counter, float64(reflector.Decoded))
	emit(c.offered, counter, float64(reflector.Offered))
	checks := r.CheckStats()
	emit(c.checks, counter, float64(checks.Equal), "success")
	emit(c.checks, counter, float64(checks.Different), "failure")
	emit(c.checks, counter, float64(checks.Failed), "error")
	pressure := r.Cache.Schema().Pressure()
	emit(c.dropped, counter, float64(pressure.Encodings), "encodings")
	emit(c.dropped, counter, float64(pressure.Frames), "frames")
	emit(c.dropped, counter, float64(pressure.Events), "history")
	emit(c.refused, counter, float64(pressure.Refused))
	if !r.Cache.Ready() {
		return
	}
	schema, log, now := r.Cache.Schema(), r.Cache.Log(), r.Cache.Snapshot()
	if c.counts {
		ch <- prometheus.MustNewConstMetric(c.storageObjects, gauge, float64(now.Len()), gr.String())
		emit(c.objects, gauge, float64(now.Len()))
		emit(c.stored, gauge, float64(now.Stored()))
	}
	emit(c.version, gauge, float64(now.Revision()%1e15))
	emit(c.history, gauge, float64(log.Len()))
	var encodings int64
	for id := 1; id < maxEncodings; id++ {
		encodings += schema.EncodingBytes(cache.EncodingID(id))
	}
	emit(c.bytes, gauge, float64(now.Bytes()), "canonical")
	emit(c.bytes, gauge, float64(encodings), "encodings")
	emit(c.bytes, gauge, float64(schema.FrameBytes()), "frames")
	emit(c.bytes, gauge, float64(log.Bytes()), "history")
}
