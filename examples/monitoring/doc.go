// Package monitoring tests, with Prometheus' own engine, what docs/monitoring gives to those
// who watch over a server: that each expression is valid, and finds something in what a
// running server tells of itself. So it tests rules and dashboards that others have made for
// kube-apiserver, if it is told where they are.
//
// It is a module of its own, so that Larder's does not require Prometheus.
package monitoring
