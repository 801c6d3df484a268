// Package monitoring tests the rules and the dashboard of docs/monitoring with Prometheus' own
// engine: each expression is valid and finds metrics of a running server. Flags select other rules
// and dashboards for kube-apiserver.
//
// It is a separate module, so that Larder's module does not require Prometheus.
package monitoring
