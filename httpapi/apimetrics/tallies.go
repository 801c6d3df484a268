package apimetrics

import (
	"net/http"
	"strings"

	dto "github.com/prometheus/client_model/go"
	apirequest "k8s.io/apiserver/pkg/endpoints/request"
)

// resetTallies forgets what was counted.
func resetTallies(of Resources) {
	for all := range of.AllMonitors() {
		for _, m := range all {
			m.tally.reset()
		}
	}
}

// addTallies adds what was counted of resources to upstream's metrics.
func addTallies(families []*dto.MetricFamily, of Resources) {
	for _, family := range families {
		name := family.GetName()
		switch name {
		case "apiserver_request_total", "apiserver_request_duration_seconds", "apiserver_request_slo_duration_seconds",
			"apiserver_request_sli_duration_seconds", "apiserver_response_sizes":
		default:
			continue
		}
		for _, sample := range family.GetMetric() {
			if m := monitorOf(sample, of); m != nil {
				m.tally.addTo(sample, name == "apiserver_response_sizes")
			}
		}
	}
}

// monitorOf returns whose answers a metric of upstream's counts, nil if its are not
// tallied.
func monitorOf(sample *dto.Metric, of Resources) *Monitor {
	labels := make(map[string]string)
	for _, l := range sample.GetLabel() {
		labels[l.GetName()] = l.GetValue()
	}
	if code := labels["code"]; labels["dry_run"] != "" || code != "" && code != "200" {
		return nil
	}
	all := of.Monitors(labels["group"], labels["version"], labels["resource"], labels["subresource"])
	m := all.Of(strings.ToLower(labels["verb"]), labels["scope"])
	if m == nil || m.verb == apirequest.MethodWatch || !m.tallied(http.StatusOK) {
		return nil
	}
	return m
}
