package apimetrics

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	basemetrics "k8s.io/component-base/metrics"
)

// TestLimits checks that disabled metrics are not reported, and that samples with disallowed label values are added
// up.
func TestLimits(t *testing.T) {
	t.Parallel()
	manifest := filepath.Join(t.TempDir(), "labels.yaml")
	if err := os.WriteFile(manifest, []byte("\"kept_total,code\": \"200,404\"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	options := &basemetrics.Options{}
	options.DisabledMetrics, options.AllowListMapping, options.AllowListMappingManifest = []string{"off_total"}, map[string]string{"kept_total,verb": "get"}, manifest
	limits, err := NewLimits(options)
	if err != nil {
		t.Fatal(err)
	}
	own := prometheus.NewRegistry()
	off := prometheus.NewCounterVec(prometheus.CounterOpts{Name: "off_total"}, []string{"verb"})
	kept := prometheus.NewCounterVec(prometheus.CounterOpts{Name: "kept_total"}, []string{"verb", "code"})
	own.MustRegister(off, kept)
	off.WithLabelValues("get").Inc()
	for _, labels := range [][]string{{"get", "200"}, {"list", "200"}, {"watch", "200"}, {"get", "500"}, {"get", "503"}} {
		kept.WithLabelValues(labels...).Inc()
	}
	families, err := own.Gather()
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, f := range limits.apply(families) {
		for _, m := range f.Metric {
			got = append(got, fmt.Sprint(f.GetName(), m.GetLabel()[0].GetValue(), m.GetLabel()[1].GetValue(), m.GetCounter().GetValue()))
		}
	}
	slices.Sort(got)
	if want := []string{"kept_total200get1", "kept_total200unexpected2", "kept_totalunexpectedget2"}; !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
	options.AllowListMappingManifest += "x"
	if _, err := NewLimits(options); err == nil {
		t.Error("a file that is not there was read")
	}
}
