package storestats

import (
	"context"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/larder-io/larder/internal/registry"
	"github.com/larder-io/larder/kv"
)

// sizeTimeout limits the wait for the size of etcd's database.
const sizeTimeout = time.Second

// nativeBuckets limits the native buckets of a histogram.
const nativeBuckets = 160

// Metrics counts requests to etcd, under upstream's names where upstream has them (apiserver
// pkg/storage/etcd3/metrics).
type Metrics struct {
	duration *prometheus.HistogramVec
	requests *prometheus.CounterVec
	failures *prometheus.CounterVec
	leases   prometheus.Histogram

	size, reads                              *prometheus.Desc
	bookmarks, seen, newest, silence, losses *prometheus.Desc
	every                                    time.Duration // how old a size may be; 0 is never asked for

	mu    sync.Mutex
	last  int64     // size, guarded by mu
	asked time.Time // guarded by mu: when last was told

	// store and owners are known after the first requests were made.
	store  atomic.Pointer[kv.Etcd]
	tail   atomic.Pointer[kv.Tail]
	owners atomic.Pointer[map[string]schema.GroupResource] // by the start of their keys
}

// NewMetrics returns Metrics that ask for the size of the database at most once in every interval; 0
// never asks. With native, histograms have native buckets, too.
func NewMetrics(every time.Duration, native bool) *Metrics {
	labels := []string{"operation", "group", "resource"}
	var factor float64 // component-base metrics/internal
	if native {
		factor = 1.1
	}
	return &Metrics{
		every: every,
		duration: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "etcd_request_duration_seconds",
			Help: "[ALPHA] Etcd request latency in seconds for each operation and object type.",
			Buckets: []float64{0.005, 0.025, 0.05, 0.1, 0.2, 0.4, 0.6, 0.8, 1.0, 1.25, 1.5, 2, 3,
				4, 5, 6, 8, 10, 15, 20, 30, 45, 60},
			NativeHistogramBucketFactor: factor, NativeHistogramMaxBucketNumber: nativeBuckets,
		}, labels),
		requests: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "etcd_requests_total",
			Help: "[ALPHA] Etcd request counts for each operation and object type.",
		}, labels),
		failures: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "etcd_request_errors_total",
			Help: "[ALPHA] Etcd failed request counts for each operation and object type.",
		}, labels),
		leases: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name:    "etcd_lease_object_counts",
			Help:    "[ALPHA] Number of objects attached to a single etcd lease.",
			Buckets: []float64{10, 50, 100, 500, 1000, 2500, 5000},

			NativeHistogramBucketFactor: factor, NativeHistogramMaxBucketNumber: nativeBuckets,
		}),
		size: prometheus.NewDesc("apiserver_storage_size_bytes",
			"[STABLE] Size of the storage database file physically allocated in bytes.", []string{"storage_cluster_id"}, nil),
		reads: prometheus.NewDesc("larder_revision_reads_total",
			"Counter of linearizable reads of etcd's revision. Each serves all consistent reads that waited for it.", nil, nil),
		bookmarks: prometheus.NewDesc("etcd_bookmark_total", "[ALPHA] Number of etcd bookmarks (progress notify events) split by kind.", []string{"group", "resource"}, nil),
		seen:      prometheus.NewDesc("larder_tail_revision", "Revision up to which the watch of etcd has seen everything, 0 while its place in the history is lost.", nil, nil),
		newest:    prometheus.NewDesc("larder_store_revision", "Highest revision that etcd is known to have come to.", nil, nil),
		silence:   prometheus.NewDesc("larder_tail_silence_seconds", "Time since the watch of etcd brought something.", nil, nil),
		losses:    prometheus.NewDesc("larder_tail_losses_total", "Counter of losses of the place in etcd's history, after which all caches load again.", nil, nil),
	}
}

// Observer returns the functions that the store calls for its requests.
func (m *Metrics) Observer() kv.Observer {
	return kv.Observer{
		Request: func(op, key string, took time.Duration, err error) {
			owner := m.owner(key)
			m.duration.WithLabelValues(op, owner.Group, owner.Resource).Observe(took.Seconds())
			m.requests.WithLabelValues(op, owner.Group, owner.Resource).Inc()
			if err != nil {
				m.failures.WithLabelValues(op, owner.Group, owner.Resource).Inc()
			}
		},
		LeaseObjects: func(count int64) { m.leases.Observe(float64(count)) },
	}
}

// Attach names the store, the tail that follows it, and the owners of its keys.
func (m *Metrics) Attach(store *kv.Etcd, tail *kv.Tail, resources []*registry.Resource) {
	m.tail.Store(tail)
	owners := make(map[string]schema.GroupResource, len(resources))
	for _, r := range resources {
		owners[r.Root()] = r.GroupResource
	}
	m.owners.Store(&owners)
	m.store.Store(store)
}

// owner returns the resource that a key or prefix belongs to. It is empty for requests that belong
// to no resource.
func (m *Metrics) owner(key string) schema.GroupResource {
	owners := m.owners.Load()
	if owners == nil {
		return schema.GroupResource{}
	}
	for end := len(key); end > 0; end = strings.LastIndexByte(key[:end-1], '/') + 1 {
		if owner, ok := (*owners)[key[:end]]; ok {
			return owner
		}
	}
	return schema.GroupResource{}
}

// Describe implements prometheus.Collector.
func (m *Metrics) Describe(ch chan<- *prometheus.Desc) {
	m.duration.Describe(ch)
	m.requests.Describe(ch)
	m.failures.Describe(ch)
	m.leases.Describe(ch)
	ch <- m.size
	for _, d := range []*prometheus.Desc{m.reads, m.bookmarks, m.seen, m.newest, m.silence, m.losses} {
		ch <- d
	}
}

// Collect implements prometheus.Collector. It omits the size of a store that does not report it.
func (m *Metrics) Collect(ch chan<- prometheus.Metric) {
	m.duration.Collect(ch)
	m.requests.Collect(ch)
	m.failures.Collect(ch)
	m.leases.Collect(ch)
	store := m.store.Load()
	if store == nil {
		return
	}
	ch <- prometheus.MustNewConstMetric(m.reads, prometheus.CounterValue, float64(store.RevisionReads()))
	m.collectTail(ch, store)
	ctx, cancel := context.WithTimeout(context.Background(), sizeTimeout)
	defer cancel()
	if size, ok := m.sizeNow(ctx, store.Size); ok {
		ch <- prometheus.MustNewConstMetric(m.size, prometheus.GaugeValue, float64(size), "etcd-0")
	}
}

// collectTail reports the progress of the tail of store, which all resources share.
func (m *Metrics) collectTail(ch chan<- prometheus.Metric, store *kv.Etcd) {
	ch <- prometheus.MustNewConstMetric(m.newest, prometheus.GaugeValue, float64(store.Newest()))
	tail := m.tail.Load()
	if tail == nil {
		return
	}
	stats := tail.State()
	ch <- prometheus.MustNewConstMetric(m.seen, prometheus.GaugeValue, float64(stats.Seen))
	ch <- prometheus.MustNewConstMetric(m.silence, prometheus.GaugeValue, stats.Silence.Seconds())
	ch <- prometheus.MustNewConstMetric(m.losses, prometheus.CounterValue, float64(stats.Losses))
	if stats.Progress > 0 {
		ch <- prometheus.MustNewConstMetric(m.bookmarks, prometheus.CounterValue, float64(stats.Progress), "", "")
	}
}

// sizeNow returns the size of the database, and asks for it if the last answer is too old.
func (m *Metrics) sizeNow(ctx context.Context, ask func(context.Context) (int64, error)) (int64, bool) {
	if m.every <= 0 {
		return 0, false
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if !m.asked.IsZero() && time.Since(m.asked) < m.every {
		return m.last, true
	}
	size, err := ask(ctx)
	if err != nil {
		return 0, false
	}
	m.last, m.asked = size, time.Now()
	return size, true
}
