package front

import (
	"container/heap"
	"math"
	"net"
	"net/netip"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/klog/v2"
)

// connCaps bound open connections: all of them, and those from one place; 0 sets no bound.
//
// When there is no room for a new connection, the listener closes one that waits for a
// request. If the bound on all is reached, it looks first among the places that have more
// connections than the new one's, the largest first, and then in the new one's own. If the
// bound on one place is reached, it looks only there. So idle connections keep no client
// out, not even one behind the same load balancer. A place never displaces a connection of
// one that has fewer: no client gets more by opening more.
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

// origin is the open connections of one peer.
type origin struct {
	peer  netip.Prefix
	conns map[*conn]struct{}
	place int       // in listener.origins; -1 if it is not there
	since time.Time // when it was searched in vain
}

// origins is a heap, the largest origin first.
type origins []*origin

// Len implements heap.Interface.
func (h origins) Len() int { return len(h) }

// Less implements heap.Interface.
func (h origins) Less(i, j int) bool { return len(h[i].conns) > len(h[j].conns) }

// Swap implements heap.Interface.
func (h origins) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].place, h[j].place = i, j
}

// Push implements heap.Interface.
func (h *origins) Push(x any) {
	of := x.(*origin)
	of.place = len(*h)
	*h = append(*h, of)
}

// Pop implements heap.Interface.
func (h *origins) Pop() any {
	last := len(*h) - 1
	of := (*h)[last]
	(*h)[last], of.place = nil, -1
	*h = (*h)[:last]
	return of
}

// joinLocked makes c one of peer's connections.
func (l *listener) joinLocked(c *conn, peer netip.Prefix) {
	of := l.peers[peer]
	if of == nil {
		of = &origin{peer: peer, conns: make(map[*conn]struct{})}
		l.peers[peer] = of
		heap.Push(&l.origins, of)
	}
	c.origin = of
	of.conns[c] = struct{}{}
	if of.place >= 0 {
		heap.Fix(&l.origins, of.place)
	}
}

// leaveLocked takes c out of its peer's connections, and reports whether it was among them.
func (l *listener) leaveLocked(c *conn) bool {
	of := c.origin
	if of == nil {
		return false
	}
	c.origin = nil
	delete(of.conns, c)
	if len(of.conns) == 0 {
		delete(l.peers, of.peer)
	}
	switch {
	case of.place < 0:
	case len(of.conns) == 0:
		heap.Remove(&l.origins, of.place)
	default:
		heap.Fix(&l.origins, of.place)
	}
	return true
}

// makeRoomLocked reports whether there is room for one more connection of peer, if need be
// after another was closed.
func (l *listener) makeRoomLocked(peer netip.Prefix, now time.Time) bool {
	own, reached := l.peers[peer], capAll
	switch {
	case l.caps.perPeer > 0 && own.size() >= l.caps.perPeer:
		reached = capPeer
	case l.caps.all <= 0 || l.open < l.caps.all:
		return true
	}
	l.reviveLocked(now)
	if reached == capAll && l.displaceLargerLocked(own, now) || own.size() > 0 && l.displaceLocked(own, reached, now) {
		return true
	}
	l.counts.refused[reached].Add(1)
	return false
}

// size returns how many connections there are. of may be nil.
func (of *origin) size() int {
	if of == nil {
		return 0
	}
	return len(of.conns)
}

// displaceLargerLocked closes a connection that waits for a request, in an origin that is
// larger than own: in the largest if possible.
func (l *listener) displaceLargerLocked(own *origin, now time.Time) bool {
	for len(l.origins) > 0 && l.origins[0].size() > own.size() {
		if l.displaceLocked(l.origins[0], capAll, now) {
			return true
		}
	}
	return false
}

// If no connection of an origin waits for a request, the listener does not search the origin
// again for searchInterval, unless it is small: so a client that opens connections in vain
// does not cause a search of all of them each time.
const (
	searchInterval = 100 * time.Millisecond
	smallOrigin    = 256
)

// displaceLocked closes a connection of an origin that waits for a request. The goroutine of
// that connection sees that and ends.
func (l *listener) displaceLocked(of *origin, reached int, now time.Time) bool {
	if of.place < 0 && of.size() > smallOrigin {
		return false
	}
	for c := range of.conns {
		if v := c.visit.Load(); v != nil && v.displace() {
			l.forgetLocked(c)
			c.NetConn().Close()
			l.counts.displaced[reached].Add(1)
			return true
		}
	}
	if of.place >= 0 {
		heap.Remove(&l.origins, of.place)
		of.since = now
		l.searched = append(l.searched, of)
	}
	return false
}

// reviveLocked puts origins whose searchInterval is over back among those to search.
func (l *listener) reviveLocked(now time.Time) {
	for len(l.searched) > 0 && now.Sub(l.searched[0].since) >= searchInterval {
		of := l.searched[0]
		l.searched[0], l.searched = nil, l.searched[1:]
		if of.size() > 0 {
			heap.Push(&l.origins, of)
		}
	}
}

// reportInterval is the least time between two log messages about refused connections.
const reportInterval = time.Minute

// report logs that a connection of peer was refused.
func (l *listener) report(peer netip.Prefix) {
	l.mu.Lock()
	now, open, there := time.Now(), l.open, l.peers[peer].size()
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
		ch <- prometheus.MustNewConstMetric(c.limit, prometheus.GaugeValue, limitValue(limits[reached]), label)
		ch <- prometheus.MustNewConstMetric(c.refused, prometheus.CounterValue, float64(c.counts.refused[reached].Load()), label)
		ch <- prometheus.MustNewConstMetric(c.displaced, prometheus.CounterValue, float64(c.counts.displaced[reached].Load()), label)
	}
}

// limitValue is a limit as a metric; 0 is none.
func limitValue(limit int) float64 {
	if limit <= 0 {
		return math.Inf(1)
	}
	return float64(limit)
}
