package apimetrics

import (
	"iter"
	"maps"
	"math"
	"net/http"
	"testing"
	"time"

	dto "github.com/prometheus/client_model/go"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/endpoints/metrics"
	"k8s.io/component-base/metrics/legacyregistry"
	"pgregory.net/rapid"

	"github.com/larder-io/larder/internal/registry"
)

// served are resources of one group by name.
type served map[string]Monitors

func (s served) Monitors(group, _, resource, _ string) Monitors {
	if group != "tally.test" {
		return nil
	}
	return s[resource]
}

func (s served) AllMonitors() iter.Seq[Monitors] { return maps.Values(s) }

// reports is what /metrics says of a resource: values by metric, labels and bucket.
func reports(t *rapid.T, of Resources, resource string) map[string]float64 {
	families, err := legacyregistry.DefaultGatherer.Gather()
	if err != nil {
		t.Fatal(err)
	}
	addTallies(families, of)
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

// TestTalliesAreUpstreamsMetrics: what is counted here reads as if upstream had counted
// each request itself.
func TestTalliesAreUpstreamsMetrics(t *testing.T) {
	metrics.Register()
	endpoint := func(resource string) *registry.Endpoint {
		return &registry.Endpoint{GVR: schema.GroupVersionResource{Group: "tally.test", Version: "v1", Resource: resource}}
	}
	rapid.Check(t, func(t *rapid.T) {
		metrics.Reset()
		ours, theirs := NewMonitors(endpoint("ours")), NewMonitors(endpoint("theirs"))
		routes := served{"ours": ours, "theirs": theirs}
		for range rapid.IntRange(0, 40).Draw(t, "requests") {
			key := rapid.SampledFrom([]Key{
				{"get", "resource"}, {"list", "resource"}, {"list", "namespace"}, {"list", "cluster"}, {"watch", "cluster"},
			}).Draw(t, "kind")
			code := rapid.SampledFrom([]int{http.StatusOK, http.StatusOK, http.StatusOK, http.StatusNotFound}).Draw(t, "code")
			size := rapid.OneOf(rapid.SampledFrom([]int{0, 1000, 1001, 1e6, 1e9}), rapid.IntRange(0, 2e9)).Draw(t, "size")
			took := time.Duration(rapid.OneOf(rapid.SampledFrom([]int{0, 5e3, 5001, 5e4, 6e7}), rapid.IntRange(0, 7e7)).Draw(t, "microseconds")) * time.Microsecond
			ours[key].Observe(code, size, took)
			m := theirs[key]
			gvr := m.endpoint.GVR
			metrics.MonitorRequest(m.request, m.verb, gvr.Group, gvr.Version, gvr.Resource, "", m.scope,
				metrics.APIServerComponent, false, "", code, size, took)
		}
		got, want := reports(t, routes, "ours"), reports(t, routes, "theirs")
		if !maps.Equal(got, want) {
			t.Fatalf("got  %v\nwant %v", got, want)
		}
	})
	metrics.Reset()
}

// BenchmarkObserve measures what a request pays for being counted.
func BenchmarkObserve(b *testing.B) {
	metrics.Register()
	all := NewMonitors(&registry.Endpoint{GVR: schema.GroupVersionResource{Version: "v1", Resource: "counted"}})
	b.ReportAllocs()
	for b.Loop() {
		all.Of("get", "resource").Observe(http.StatusOK, 5000, time.Millisecond)
	}
}
