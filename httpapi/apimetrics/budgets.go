package apimetrics

import (
	"math"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/larder-io/larder/internal/registry"
)

// budgetCollector reports the limits of the caches' budgets and how much of them is used.
//
// It is immutable.
type budgetCollector struct {
	registry    *registry.Registry
	limit, used *prometheus.Desc
}

// NewBudgetCollector reports the budgets of r.
func NewBudgetCollector(r *registry.Registry) prometheus.Collector {
	labels := []string{"budget", "of"}
	return &budgetCollector{
		registry: r,
		limit:    prometheus.NewDesc("larder_cache_budget_limit_bytes", "Bytes that may be taken beside the present objects, by encodings and frames of events, or by all with the event history, split by the resource that has them for itself, or shared.", labels, nil),
		used:     prometheus.NewDesc("larder_cache_budget_used_bytes", "Bytes of larder_cache_budget_limit_bytes that are taken, with what it costs to keep them.", labels, nil),
	}
}

func (c *budgetCollector) Describe(ch chan<- *prometheus.Desc) {
	ch <- c.limit
	ch <- c.used
}

func (c *budgetCollector) Collect(ch chan<- prometheus.Metric) {
	for _, b := range c.registry.Budgets() {
		name := "shared"
		if !b.Resource.Empty() {
			name = b.Resource.String()
		}
		emit := func(desc *prometheus.Desc, of string, value float64) {
			ch <- prometheus.MustNewConstMetric(desc, prometheus.GaugeValue, value, name, of)
		}
		emit(c.limit, "encodings", bound(b.Limit()))
		emit(c.limit, "all", bound(b.LimitOfAll()))
		emit(c.used, "encodings", float64(b.Used()))
		emit(c.used, "all", float64(b.Used()+b.LogBytes()))
	}
}

// bound returns a limit as the value of a metric; 0 means no limit.
func bound(limit int64) float64 {
	if limit <= 0 {
		return math.Inf(1)
	}
	return float64(limit)
}
