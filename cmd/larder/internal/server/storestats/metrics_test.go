package storestats

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// TestStoreMetricsNameTheResource checks that requests to etcd count for the resource of their keys.
func TestStoreMetricsNameTheResource(t *testing.T) {
	m := NewMetrics(time.Minute)
	seen := m.Observer()
	seen.Request("get", "/registry/pods/a/b", time.Millisecond, nil) // no resource has keys yet
	m.owners.Store(&map[string]schema.GroupResource{
		"/registry/pods/":             {Resource: "pods"},
		"/registry/services/specs/":   {Resource: "services"},
		"/registry/apps/deployments/": {Group: "apps", Resource: "deployments"},
	})
	seen.Request("create", "/registry/pods/a/b", time.Millisecond, nil)
	seen.Request("list", "/registry/pods/", time.Second, errors.New("down"))
	seen.Request("list", "/registry/pods/a/", time.Second, nil)
	seen.Request("get", "/registry/services/specs/a/b", time.Second, nil)
	seen.Request("get", "/registry/services/c", time.Second, nil)
	seen.Request("update", "/registry/apps/deployments/a/b", time.Second, nil)
	seen.Request("get", "", time.Second, nil)
	seen.LeaseObjects(7)

	families := gather(t, m)
	var got []string
	for _, family := range families {
		for _, metric := range family.GetMetric() {
			line := family.GetName()
			for _, label := range metric.GetLabel() {
				line += " " + label.GetValue()
			}
			count := metric.GetCounter().GetValue()
			if h := metric.GetHistogram(); h != nil {
				count = float64(h.GetSampleCount())
			}
			if family.GetName() != "etcd_request_duration_seconds" {
				got = append(got, fmt.Sprintf("%s: %v", line, count))
			} else if count == 0 {
				t.Errorf("%s has no samples", line)
			}
		}
	}
	want := []string{
		"etcd_lease_object_counts: 1",
		"etcd_request_errors_total  list pods: 1",
		"etcd_requests_total  create pods: 1",
		"etcd_requests_total  get : 3",
		"etcd_requests_total  get services: 1",
		"etcd_requests_total  list pods: 2",
		"etcd_requests_total apps update deployments: 1",
	}
	slices.Sort(got)
	if !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

// gather returns the metrics of m.
func gather(t *testing.T, m *Metrics) []*dto.MetricFamily {
	t.Helper()
	gatherer := prometheus.NewRegistry()
	if err := gatherer.Register(m); err != nil {
		t.Fatal(err)
	}
	families, err := gatherer.Gather()
	if err != nil {
		t.Fatal(err)
	}
	return families
}
