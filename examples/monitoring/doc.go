// Package monitoring tests the rules and the dashboard of docs/monitoring with Prometheus' own
// engine: each expression is valid and finds metrics of a running server. Flags name other rules
// and dashboards for kube-apiserver to test.
//
// It is a module of its own, so that Larder's module does not require Prometheus.
package monitoring
