package aggregator

import dto "github.com/prometheus/client_model/go"

// Gather implements prometheus.Gatherer, for metrics of the availability of APIServices.
func (a *Aggregator) Gather() ([]*dto.MetricFamily, error) { return a.registered.Gather() }
