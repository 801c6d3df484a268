package apimetrics

import (
	"maps"
	"math"
	"net/http"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/endpoints/metrics"
	apirequest "k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/component-base/metrics/legacyregistry"
	"pgregory.net/rapid"
)

// reports returns the values of /metrics for a resource, by metric, labels and bucket.
func reports(t *rapid.T, of *Resources, resource string) map[string]float64 {
	families, err := legacyregistry.DefaultGatherer.Gather()
	if err != nil {
		t.Fatal(err)
	}
	own := prometheus.NewRegistry()
	own.MustRegister(NewCollector(of))
	ours, err := own.Gather()
	if err != nil {
		t.Fatal(err)
	}
	families = sum(without(families, "apiserver_request_slo_duration_seconds"), ours)
	values := make(map[string]float64)
	for _, family := range families {
		for _, sample := range family.GetMetric() {
			name, ours := family.GetName(), false
			for _, l := range sample.GetLabel() {
				if l.GetName() == "resource" {
					ours = l.GetValue() == resource
				} else {
					name += " " + l.GetName() + "=" + l.GetValue()
				}
			}
			if ours {
				report(values, name, sample)
			}
		}
	}
	return values
}

func report(values map[string]float64, name string, sample *dto.Metric) {
	if c := sample.GetCounter(); c != nil {
		values[name] = c.GetValue()
	}
	if g := sample.GetGauge(); g != nil {
		values[name] = g.GetValue()
	}
	h := sample.GetHistogram()
	if h == nil {
		return
	}
	values[name+" count"] = float64(h.GetSampleCount())
	values[name+" sum"] = math.Round(h.GetSampleSum()*1e6) / 1e6
	for _, bucket := range h.GetBucket() {
		values[name+" "+time.Duration(bucket.GetUpperBound()*1e9).String()] = float64(bucket.GetCumulativeCount())
	}
}

// TestTalliesAreUpstreamsMetrics checks that the metrics read as if upstream had counted each request itself.
func TestTalliesAreUpstreamsMetrics(t *testing.T) {
	metrics.Register()
	named := func(resource, version string) schema.GroupVersionResource {
		return schema.GroupVersionResource{Group: "tally.test", Version: version, Resource: resource}
	}
	rapid.Check(t, func(t *rapid.T) {
		metrics.Reset()
		all := new(Resources)
		for range rapid.IntRange(0, 40).Draw(t, "requests") {
			key := rapid.SampledFrom([][2]string{
				{"get", "resource"}, {"list", "namespace"}, {"list", "cluster"}, {"watch", "cluster"},
			}).Draw(t, "kind")
			code := rapid.SampledFrom([]int{http.StatusOK, http.StatusOK, http.StatusOK, http.StatusNotFound}).Draw(t, "code")
			size := rapid.OneOf(rapid.SampledFrom([]int{0, 1000, 1001, 1e6, 1e9}), rapid.IntRange(0, 2e9)).Draw(t, "size")
			took := time.Duration(rapid.OneOf(rapid.SampledFrom([]int{0, 5e3, 5001, 5e4, 6e7}), rapid.IntRange(0, 7e7)).Draw(t, "microseconds")) * time.Microsecond
			a := Response{Code: code, Size: size, Took: took, Unsized: key[0] == "watch" && rapid.Bool().Draw(t, "by path"), Own: rapid.Bool().Draw(t, "own")}
			if rapid.IntRange(0, 3).Draw(t, "waits") == 0 {
				a.Waited = (took / 2).Truncate(time.Microsecond)
			}
			a.Life = Lifecycle{Deprecated: key[1] == "namespace", Removed: "1.99"}
			version := rapid.SampledFrom([]string{"v1", "v1", "v2"}).Draw(t, "version")
			all.Of(named("ours", version), "").Of(key[0], key[1]).Observe(a)
			tell(all.Of(named("theirs", version), "").Of(key[0], key[1]), a)
		}
		got, want := reports(t, all, "ours"), reports(t, all, "theirs")
		for name := range maps.All(got) {
			if got[name] != want[name] {
				t.Fatalf("%s: got %v, want %v", name, got[name], want[name])
			}
		}
		if len(got) != len(want) {
			t.Fatalf("%d values, want %d", len(got), len(want))
		}
	})
	metrics.Reset()
}

// tell counts a in upstream's metrics, as its filters and handlers would.
func tell(m *Monitor, a Response) {
	req := m.request()
	ctx, verb := req.Context(), "LIST"
	if m.verb == "get" {
		verb = "GET"
	}
	if a.Unsized {
		verb = "WATCH"
	}
	if m.verb != "watch" {
		ctx = apirequest.WithLatencyTrackers(ctx)
		apirequest.TrackAPFQueueWaitLatency(ctx, a.Waited)
	}
	if a.Own {
		ctx = apirequest.WithUser(ctx, &user.DefaultInfo{Name: user.APIServerUser})
	}
	metrics.MonitorRequest(req.WithContext(ctx), verb, m.of.gvr.Group, m.of.gvr.Version, m.of.gvr.Resource, "", m.scope,
		metrics.APIServerComponent, a.Life.Deprecated, a.Life.Removed, a.Code, a.Size, a.Took)
}

// BenchmarkObserve measures the cost of counting a request.
func BenchmarkObserve(b *testing.B) {
	metrics.Register()
	all := newMonitors(schema.GroupVersionResource{Version: "v1", Resource: "counted"}, "")
	b.ReportAllocs()
	for b.Loop() {
		all.Of("get", "resource").Observe(Response{Code: http.StatusOK, Size: 5000, Took: time.Millisecond})
	}
}
