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

// Collectors report the connections of l.
func (l *Listener) Collectors() []prometheus.Collector {
	all := []prometheus.Collector{prometheus.NewGaugeFunc(
		prometheus.GaugeOpts{Name: "larder_connections", Help: "Number of open connections."},
		func() float64 { return float64(l.counts.open.Load()) })}
	for limit, most := range [numLimits]int{l.limits.all, l.limits.perAddress} {
		name, value, refused := [numLimits]string{"all", "address"}[limit], float64(most), &l.counts.refused[limit]
		if most <= 0 {
			value = math.Inf(1)
		}
		all = append(all, prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "larder_connections_limit", Help: "Number of connections that may be open, in all or from one address.",
			ConstLabels: prometheus.Labels{"of": name},
		}, func() float64 { return value }), prometheus.NewCounterFunc(prometheus.CounterOpts{
			Name: "larder_connections_refused_total", Help: "Counter of connections that were closed at once, by the limit that was reached.",
			ConstLabels: prometheus.Labels{"limit": name},
		}, func() float64 { return float64(refused.Load()) }))
	}
	return all
}
