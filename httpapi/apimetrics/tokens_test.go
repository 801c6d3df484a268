package apimetrics

import (
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
)

// TestTokensAreCounted checks that reused authentications count as hits of upstream's token cache.
func TestTokensAreCounted(t *testing.T) {
	a := NewAccess()
	for range 3 {
		a.Remembered(classOther, true)
	}
	a.Remembered(classOther, false)
	r := prometheus.NewRegistry()
	requests := prometheus.NewCounterVec(prometheus.CounterOpts{Name: "authentication_token_cache_request_total", Help: "h"}, []string{"status"})
	took := prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: "authentication_token_cache_request_duration_seconds", Help: "h"}, []string{"status"})
	r.MustRegister(requests, took)
	for _, hits := range []float64{3, 5} {
		requests.WithLabelValues("miss").Inc()
		took.WithLabelValues("miss").Observe(0.1)
		families, err := r.Gather()
		if err != nil {
			t.Fatal(err)
		}
		own := prometheus.NewRegistry()
		own.MustRegister(a)
		ours, err := own.Gather()
		if err != nil {
			t.Fatal(err)
		}
		families = without(sum(families, ours), countedHere...)
		for _, family := range families {
			if !strings.HasPrefix(family.GetName(), "authentication_token_cache_") {
				continue
			}
			at := family.GetMetric()[0]
			for _, m := range family.GetMetric() {
				if m.GetLabel()[0].GetValue() == "hit" {
					at = m
				}
			}
			got := at.GetCounter().GetValue()
			if family.GetType() == dto.MetricType_HISTOGRAM {
				got = float64(at.GetHistogram().GetBucket()[0].GetCumulativeCount())
			}
			if got != hits {
				t.Errorf("%s has %v hits, want %v", family.GetName(), got, hits)
			}
		}
		requests.WithLabelValues("hit").Add(2) // which upstream has counted itself
		for range 2 {
			took.WithLabelValues("hit").Observe(0)
		}
	}
}
