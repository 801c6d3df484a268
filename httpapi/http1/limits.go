package http1

import (
	"math"
	"net"
	"net/netip"
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"
)

// connLimits limit open connections: all of them, and those from one address; 0 sets no limit.
type connLimits struct{ all, perAddress int }

// The limits, as indexes.
const (
	limitAll = iota
	limitAddress
	numLimits
)

// limitFlags are the flags that set the limits.
var limitFlags = [numLimits]string{"--max-connections", "--max-connections-per-address"}

// reached reports whether open connections, of which some are from the same address, reach a
// limit, and which.
func (l connLimits) reached(open, sameAddress int) (limit int, reached bool) {
	switch {
	case l.perAddress > 0 && sameAddress >= l.perAddress:
		return limitAddress, true
	case l.all > 0 && open >= l.all:
		return limitAll, true
	}
	return 0, false
}

// ipv6Site is the length of the prefix that counts as one IPv6 address: a client that has one
// address has all of its /64.
const ipv6Site = 64

// addressOf returns the IPv4 address of a client, or the /64 of its IPv6 address.
func addressOf(addr net.Addr) netip.Prefix {
	tcp, ok := addr.(*net.TCPAddr)
	if !ok {
		return netip.Prefix{}
	}
	ip, _ := netip.AddrFromSlice(tcp.IP)
	if ip = ip.Unmap(); ip.Is6() {
		site, _ := ip.WithZone("").Prefix(ipv6Site)
		return site
	}
	return netip.PrefixFrom(ip, ip.BitLen())
}

// connCounts count the open connections, and those that were refused by the limit they reached.
type connCounts struct {
	open    atomic.Int64
	refused [numLimits]atomic.Int64
}

// connCollector reports the connections of a listener. It is immutable.
type connCollector struct {
	of                   *listener
	open, limit, refused *prometheus.Desc
}

func newConnCollector(of *listener) prometheus.Collector {
	return &connCollector{
		of:      of,
		open:    prometheus.NewDesc("larder_connections", "Number of open connections.", nil, nil),
		limit:   prometheus.NewDesc("larder_connections_limit", "Number of connections that may be open, in all or from one address.", []string{"of"}, nil),
		refused: prometheus.NewDesc("larder_connections_refused_total", "Counter of connections that were closed at once, by the limit that was reached.", []string{"limit"}, nil),
	}
}

// Describe implements prometheus.Collector.
func (c *connCollector) Describe(ch chan<- *prometheus.Desc) { prometheus.DescribeByCollect(c, ch) }

// Collect implements prometheus.Collector.
func (c *connCollector) Collect(ch chan<- prometheus.Metric) {
	counts, limits := &c.of.counts, c.of.limits
	ch <- prometheus.MustNewConstMetric(c.open, prometheus.GaugeValue, float64(counts.open.Load()))
	for limit, most := range [numLimits]int{limits.all, limits.perAddress} {
		label := [numLimits]string{"all", "address"}[limit]
		value := float64(most)
		if most <= 0 {
			value = math.Inf(1)
		}
		ch <- prometheus.MustNewConstMetric(c.limit, prometheus.GaugeValue, value, label)
		ch <- prometheus.MustNewConstMetric(c.refused, prometheus.CounterValue, float64(counts.refused[limit].Load()), label)
	}
}
