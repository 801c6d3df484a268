package storage

import (
	"fmt"
	"maps"
	"slices"
	"testing"
	"testing/synctest"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
)

// TestMetricsNameOnlyDeclaredIndexes checks that clients, which choose the labels of learnt indexes, cannot choose the
// values of a metric's label.
func TestMetricsNameOnlyDeclaredIndexes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, runtime.ContentTypeProtobuf)
		for i := range 600 {
			f.create(examplePod("a", fmt.Sprint(i)))
		}
		list := func(q ListRequest) (scanned int) {
			t.Helper()
			listing, err := f.list(q)
			if err != nil {
				t.Fatal(err)
			}
			synctest.Wait() // the cache builds indexes meanwhile
			return listing.Scanned
		}
		for i := range 10 {
			for tries := 0; list(ListRequest{Label: labels.SelectorFromSet(labels.Set{fmt.Sprint("label", i): "x"})}) > 0; tries++ {
				if tries == 10 {
					t.Fatalf("no index of label%d was learnt", i)
				}
			}
		}
		list(ListRequest{Field: fields.OneTermEqualSelector("spec.nodeName", "x")})
		registry := prometheus.NewRegistry()
		registry.MustRegister(f.resource.reads.lists)
		families, err := registry.Gather()
		if err != nil {
			t.Fatal(err)
		}
		indexes := make(map[string]bool)
		for _, m := range families[0].GetMetric() {
			for _, l := range m.GetLabel() {
				if l.GetName() == "index" {
					indexes[l.GetValue()] = true
				}
			}
		}
		if got := slices.Sorted(maps.Keys(indexes)); !slices.Equal(got, []string{"", "f:spec.nodeName"}) {
			t.Errorf("lists are counted by indexes %q, want only the declared one", got)
		}
	})
}
