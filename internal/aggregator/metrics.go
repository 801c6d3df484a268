package aggregator

import dto "github.com/prometheus/client_model/go"

// Gather implements prometheus.Gatherer: it tells which APIServices are not available.
func (a *Aggregator) Gather() ([]*dto.MetricFamily, error) { return a.registered.Gather() }
