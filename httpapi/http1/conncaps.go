package http1

import (
	"math"
	"net"
	"net/netip"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/klog/v2"
)

// connCaps bound open connections: all of them, and those from one place; 0 sets no bound.
// The listener closes a connection beyond a cap at once.
type connCaps struct{ all, perPeer int }

// connCounts count connections, by the cap that was reached where it matters.
type connCounts struct {
	open    atomic.Int64
	refused [lastCap]atomic.Int64
}

// The caps, as indexes.
const (
	capAll = iota
	capPeer
	lastCap
)

// capFlag is the flag that sets a cap.
func capFlag(reached int) string {
	return [lastCap]string{"--max-connections", "--max-connections-per-address"}[reached]
}

// ipv6Site is how many bits of an IPv6 address name a place: a client that has one address
// has all of its /64.
const ipv6Site = 64

// peerOf is where a peer's connections come from: its IPv4 address or the /64 of its
// IPv6 address.
func peerOf(addr net.Addr) netip.Prefix {
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

// reachedLocked reports whether a cap lets no further connection of peer in, and which.
func (l *listener) reachedLocked(peer netip.Prefix) (which int, reached bool) {
	switch {
	case l.caps.perPeer > 0 && l.peers[peer] >= l.caps.perPeer:
		return capPeer, true
	case l.caps.all > 0 && len(l.conns) >= l.caps.all:
		return capAll, true
	}
	return 0, false
}

// reportInterval is the least time between two log messages about refused connections.
const reportInterval = time.Minute

// report logs that a connection of peer was refused.
func (l *listener) report(peer netip.Prefix) {
	l.mu.Lock()
	now, open, there := time.Now(), len(l.conns), l.peers[peer]
	due := l.reported.IsZero() || now.Sub(l.reported) >= reportInterval
	if due {
		l.reported = now
	}
	l.mu.Unlock()
	if due {
		klog.ErrorS(nil, "Connections are refused", "open", open, "from", peer, "openFromThere", there,
			capFlag(capAll), l.caps.all, capFlag(capPeer), l.caps.perPeer,
			"refused", l.counts.refused[capAll].Load()+l.counts.refused[capPeer].Load())
	}
}

// connCollector reports connCounts. It is immutable.
type connCollector struct {
	counts               *connCounts
	caps                 connCaps
	open, limit, refused *prometheus.Desc
}

func newConnCollector(counts *connCounts, caps connCaps) prometheus.Collector {
	desc := func(name, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc(name, help, labels, nil)
	}
	return &connCollector{
		counts: counts, caps: caps,
		open:    desc("larder_connections", "Number of open connections."),
		limit:   desc("larder_connections_limit", "Number of connections that may be open, in all or from one address.", "of"),
		refused: desc("larder_connections_refused_total", "Counter of connections that were closed at once, by the limit that was reached.", "limit"),
	}
}

// Describe implements prometheus.Collector.
func (c *connCollector) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{c.open, c.limit, c.refused} {
		ch <- d
	}
}

// Collect implements prometheus.Collector.
func (c *connCollector) Collect(ch chan<- prometheus.Metric) {
	ch <- prometheus.MustNewConstMetric(c.open, prometheus.GaugeValue, float64(c.counts.open.Load()))
	limits := [lastCap]int{c.caps.all, c.caps.perPeer}
	for reached, label := range [lastCap]string{"all", "address"} {
		ch <- prometheus.MustNewConstMetric(c.limit, prometheus.GaugeValue, limitValue(limits[reached]), label)
		ch <- prometheus.MustNewConstMetric(c.refused, prometheus.CounterValue, float64(c.counts.refused[reached].Load()), label)
	}
}

// limitValue is a limit as a metric; 0 is none.
func limitValue(limit int) float64 {
	if limit <= 0 {
		return math.Inf(1)
	}
	return float64(limit)
}
