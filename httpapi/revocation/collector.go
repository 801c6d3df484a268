package revocation

import "github.com/prometheus/client_golang/prometheus"

// Collector reports how many watches ended for want of a right.
func (r *Rights) Collector() prometheus.Collector {
	return &collector{&r.table.ended, prometheus.NewDesc("larder_watches_revoked_total",
		"Counter of watches that were ended because their sender lost the right to them, by what was lost: the credential or the permission.", []string{"lost"}, nil)}
}

// collector is immutable.
type collector struct {
	counted *losses
	ended   *prometheus.Desc
}

// Describe implements prometheus.Collector.
func (c *collector) Describe(ch chan<- *prometheus.Desc) { ch <- c.ended }

// Collect implements prometheus.Collector.
func (c *collector) Collect(ch chan<- prometheus.Metric) {
	for loss, label := range map[uint32]string{lossCredential: "credential", lossPermission: "permission"} {
		ch <- prometheus.MustNewConstMetric(c.ended, prometheus.CounterValue, float64(c.counted[loss].Load()), label)
	}
}
