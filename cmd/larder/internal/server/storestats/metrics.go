package storestats

import (
	"context"
	"fmt"
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

// Metrics counts requests to etcd, under upstream's names where upstream has them (apiserver
// pkg/storage/etcd3/metrics).
type Metrics struct {
	duration *prometheus.HistogramVec
	requests *prometheus.CounterVec
	failures *prometheus.CounterVec
	leases   prometheus.Histogram

	size, reads                              *prometheus.Desc
	bookmarks, seen, newest, silence, losses *prometheus.Desc
	every                                    time.Duration // maximum age of a size; 0 disables reading it

	// sources and owners are set by Attach, after the first requests.
	sources atomic.Pointer[[]*source]
	owners  atomic.Pointer[map[string]schema.GroupResource] // by prefix of their keys
}

// Source is a store and the Tail that follows it.
type Source struct {
	Store *kv.Etcd
	Tail  *kv.Tail
}

type source struct {
	Source
	id string // upstream's number of the store

	mu   sync.Mutex
	last int64     // size, guarded by mu
	read time.Time // guarded by mu: when last was read
}

var requestLabels = []string{"operation", "group", "resource"}

// NewMetrics returns Metrics that read the size of the database at most once in every interval; 0
// means never.
func NewMetrics(every time.Duration) *Metrics {
	counter := func(name, help string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: "[ALPHA] " + help}, requestLabels)
	}
	desc := func(name, help string) *prometheus.Desc {
		return prometheus.NewDesc(name, help, []string{"storage_cluster_id"}, nil)
	}
	return &Metrics{
		every: every,
		duration: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "etcd_request_duration_seconds",
			Help: "[ALPHA] Etcd request latency in seconds for each operation and object type.",
			Buckets: []float64{0.005, 0.025, 0.05, 0.1, 0.2, 0.4, 0.6, 0.8, 1.0, 1.25, 1.5, 2, 3,
				4, 5, 6, 8, 10, 15, 20, 30, 45, 60},
		}, requestLabels),
		requests: counter("etcd_requests_total", "Etcd request counts for each operation and object type."),
		failures: counter("etcd_request_errors_total", "Etcd failed request counts for each operation and object type."),
		leases: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name:    "etcd_lease_object_counts",
			Help:    "[ALPHA] Number of objects attached to a single etcd lease.",
			Buckets: []float64{10, 50, 100, 500, 1000, 2500, 5000},
		}),
		size:      desc("apiserver_storage_size_bytes", "[STABLE] Size of the storage database file physically allocated in bytes."),
		reads:     desc("larder_revision_reads_total", "Counter of linearizable reads of etcd's revision. Each serves all consistent reads that waited for it."),
		bookmarks: prometheus.NewDesc("etcd_bookmark_total", "[ALPHA] Number of etcd bookmarks (progress notify events) split by kind.", []string{"group", "resource"}, nil),
		seen:      desc("larder_tail_revision", "Revision up to which the watch of etcd has received all events; 0 while the watch cannot resume."),
		newest:    desc("larder_store_revision", "Highest revision of etcd that this server has seen."),
		silence:   desc("larder_tail_silence_seconds", "Time since the last response of the watch of etcd."),
		losses:    desc("larder_tail_losses_total", "Counter of watches of etcd that could not resume, after which all caches reload."),
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

// Attach names the stores, and the owners of their keys.
func (m *Metrics) Attach(stores []Source, resources []*registry.Resource) {
	owners := make(map[string]schema.GroupResource, len(resources))
	for _, r := range resources {
		owners[r.Root()] = r.GroupResource
	}
	m.owners.Store(&owners)
	sources := make([]*source, len(stores))
	for i, s := range stores {
		sources[i] = &source{Source: s, id: fmt.Sprintf("etcd-%d", i)}
	}
	m.sources.Store(&sources)
}

// owner returns the resource of a key or prefix. It is empty for requests that belong to no resource.
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

// counted returns the metrics that count requests.
func (m *Metrics) counted() []prometheus.Collector {
	return []prometheus.Collector{m.duration, m.requests, m.failures, m.leases}
}

// Describe implements prometheus.Collector.
func (m *Metrics) Describe(ch chan<- *prometheus.Desc) {
	for _, c := range m.counted() {
		c.Describe(ch)
	}
	for _, d := range []*prometheus.Desc{m.size, m.reads, m.bookmarks, m.seen, m.newest, m.silence, m.losses} {
		ch <- d
	}
}

// Reset removes all samples of requests.
func (m *Metrics) Reset() {
	m.duration.Reset()
	m.requests.Reset()
	m.failures.Reset()
}

// Collect implements prometheus.Collector. It omits the size of a store that does not report it.
func (m *Metrics) Collect(ch chan<- prometheus.Metric) {
	for _, c := range m.counted() {
		c.Collect(ch)
	}
	sources := m.sources.Load()
	if sources == nil {
		return
	}
	progress := int64(0)
	ctx, cancel := context.WithTimeout(context.Background(), sizeTimeout)
	defer cancel()
	var asking sync.WaitGroup
	for _, s := range *sources {
		stats := s.Tail.State()
		progress += stats.Progress
		emit := func(desc *prometheus.Desc, kind prometheus.ValueType, value float64) {
			ch <- prometheus.MustNewConstMetric(desc, kind, value, s.id)
		}
		emit(m.newest, prometheus.GaugeValue, float64(s.Store.Newest()))
		emit(m.seen, prometheus.GaugeValue, float64(stats.Seen))
		emit(m.silence, prometheus.GaugeValue, stats.Silence.Seconds())
		emit(m.reads, prometheus.CounterValue, float64(s.Store.RevisionReads()))
		emit(m.losses, prometheus.CounterValue, float64(stats.Losses))
		asking.Go(func() {
			if size, ok := s.size(ctx, m.every); ok {
				emit(m.size, prometheus.GaugeValue, float64(size))
			}
		})
	}
	if progress > 0 {
		ch <- prometheus.MustNewConstMetric(m.bookmarks, prometheus.CounterValue, float64(progress), "", "")
	}
	asking.Wait()
}

// size returns the size of the database. It reads it again if the last size is older than every.
func (s *source) size(ctx context.Context, every time.Duration) (int64, bool) {
	if every <= 0 {
		return 0, false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.read.IsZero() && time.Since(s.read) < every {
		return s.last, true
	}
	size, err := s.Store.Size(ctx)
	if err != nil {
		return 0, false
	}
	s.last, s.read = size, time.Now()
	return size, true
}
