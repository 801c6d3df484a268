package httpapi

import (
	"net"
	"net/netip"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/klog/v2"
)

// connCaps bound open connections: all of them, and those from one place; 0 sets no bound.
//
// A newcomer for whom there is no room takes the place of a connection that waits for a
// request: one from where most come from or, where that is all a place may have, one from
// the same. So connections that nobody uses keep nobody out, whom else they come from the
// same load balancer with.
type connCaps struct{ all, perPeer int }

// connCounts count connections, by the cap that was reached where it matters.
type connCounts struct {
	open               atomic.Int64
	refused, displaced [lastCap]atomic.Int64
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

// ipv6Site is how much of an IPv6 address names a place: who has one address has all of
// its /64.
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

// makeRoomLocked reports whether there is room for one more connection of peer, if need be
// after another was closed.
func (l *listener) makeRoomLocked(peer netip.Prefix) bool {
	if most := l.caps.perPeer; most > 0 && len(l.peers[peer]) >= most {
		return l.displaceLocked(peer, capPeer)
	}
	if most := l.caps.all; most > 0 && l.open >= most {
		return l.displaceLocked(l.largestLocked(peer), capAll)
	}
	return true
}

// largestLocked returns from where most connections come, peer if there are several.
func (l *listener) largestLocked(peer netip.Prefix) netip.Prefix {
	for other, of := range l.peers {
		if len(of) > len(l.peers[peer]) {
			peer = other
		}
	}
	return peer
}

// displaceTries is how many connections are looked at for one that waits for a request.
// They come in no order.
const displaceTries = 256

// displaceLocked closes a connection of peer that waits for a request. Its goroutine sees
// that.
func (l *listener) displaceLocked(peer netip.Prefix, reached int) bool {
	tries := displaceTries
	for c := range l.peers[peer] {
		if ss := c.session.Load(); ss != nil && ss.displace() {
			l.forgetLocked(c)
			c.NetConn().Close()
			l.counts.displaced[reached].Add(1)
			return true
		}
		if tries--; tries == 0 {
			break
		}
	}
	l.counts.refused[reached].Add(1)
	return false
}

// reportInterval is how often it is logged at most that connections are refused.
const reportInterval = time.Minute

// report logs that a connection of peer was refused.
func (l *listener) report(peer netip.Prefix) {
	l.mu.Lock()
	now, open, there := time.Now(), l.open, len(l.peers[peer])
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

// displaceAfter is how long a connection may take to begin its first request before a
// newcomer may take its place.
const displaceAfter = time.Second

// displace reports whether the session waits for a request, which it then does in vain.
func (ss *session) displace() bool {
	return ss.state.CompareAndSwap(sessionIdle, sessionClosed) ||
		time.Since(ss.began) > displaceAfter && ss.state.CompareAndSwap(sessionNew, sessionClosed)
}

// connCollector reports connCounts. It is immutable.
type connCollector struct {
	counts             *connCounts
	caps               connCaps
	open, limit        *prometheus.Desc
	refused, displaced *prometheus.Desc
}

func newConnCollector(counts *connCounts, caps connCaps) prometheus.Collector {
	desc := func(name, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc(name, help, labels, nil)
	}
	return &connCollector{
		counts: counts, caps: caps,
		open:      desc("larder_connections", "Number of open connections."),
		limit:     desc("larder_connections_limit", "Number of connections that may be open, in all or from one address.", "of"),
		refused:   desc("larder_connections_refused_total", "Counter of connections that were closed at once, by the limit that was reached.", "limit"),
		displaced: desc("larder_connections_displaced_total", "Counter of connections without a request that were closed to make room for others, by the limit that was reached.", "limit"),
	}
}

// Describe implements prometheus.Collector.
func (c *connCollector) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{c.open, c.limit, c.refused, c.displaced} {
		ch <- d
	}
}

// Collect implements prometheus.Collector.
func (c *connCollector) Collect(ch chan<- prometheus.Metric) {
	ch <- prometheus.MustNewConstMetric(c.open, prometheus.GaugeValue, float64(c.counts.open.Load()))
	limits := [lastCap]int{c.caps.all, c.caps.perPeer}
	for reached, label := range [lastCap]string{"all", "address"} {
		ch <- prometheus.MustNewConstMetric(c.limit, prometheus.GaugeValue, bound(int64(limits[reached])), label)
		ch <- prometheus.MustNewConstMetric(c.refused, prometheus.CounterValue, float64(c.counts.refused[reached].Load()), label)
		ch <- prometheus.MustNewConstMetric(c.displaced, prometheus.CounterValue, float64(c.counts.displaced[reached].Load()), label)
	}
}
