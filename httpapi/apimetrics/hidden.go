package apimetrics

import (
	dto "github.com/prometheus/client_model/go"
	basemetrics "k8s.io/component-base/metrics"
)

// hidden are the metrics that kube-apiserver of this release hides, because they were deprecated
// long ago (component-base metrics/registry.go). Upstream's registry hides them only in a program
// that the linker has given a release.
var hidden = []string{
	"apiserver_flowcontrol_request_concurrency_in_use", "apiserver_flowcontrol_request_concurrency_limit",
	"apiserver_request_slo_duration_seconds",
	"kube_apiserver_pod_logs_pods_logs_backend_tls_failure_total", "kube_apiserver_pod_logs_pods_logs_insecure_backend_total",
}

// visible returns families without those that are hidden, unless a flag asks for them.
func visible(families []*dto.MetricFamily) []*dto.MetricFamily {
	if basemetrics.ShouldShowHidden() {
		return families
	}
	return without(families, hidden...)
}
