package http1

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"math"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/valyala/fasthttp/fasthttputil"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/util/flowcontrol"
	"k8s.io/klog/v2"

	"github.com/larder-io/larder/httpapi/socket"
)

// Listener accepts connections, from the network or from this process, and serves each on a goroutine. It keeps a
// list of open connections, so that shutdown can end them.
type Listener struct {
	s       *Server
	network bool // connections come from the network
	limits  connLimits
	refused [numLimits]atomic.Int64 // connections that were refused, by the limit that they reached
	closing chan struct{}           // closed when no request may follow another

	running sync.WaitGroup // connections that are being served

	mu        sync.Mutex
	open      map[*connection]bool // guarded by mu: true while served, false after a handler has taken it over
	addresses map[netip.Prefix]int // guarded by mu: open connections of each address
	closed    bool                 // guarded by mu: closing is closed

	logLimiter flowcontrol.PassiveRateLimiter // one message about refused connections a minute
}

func (s *Server) newListener(limits connLimits) *Listener {
	return &Listener{
		s: s, limits: limits, closing: make(chan struct{}),
		open: make(map[*connection]bool), addresses: make(map[netip.Prefix]int),
		logLimiter: flowcontrol.NewTokenBucketPassiveRateLimiter(1.0/60, 1),
	}
}

const (
	protoHTTP1 = "http/1.1"
	protoHTTP2 = "h2"
)

// Protocols are the TLS names (ALPN) of the offered versions of HTTP.
func Protocols(http2 bool) []string {
	if http2 {
		return []string{protoHTTP2, protoHTTP1}
	}
	return []string{protoHTTP1}
}

// tlsConfig returns config with the protocols that the server offers. The handshake fails if a client
// names only other protocols.
func tlsConfig(config *tls.Config, http2 bool) *tls.Config {
	config = config.Clone()
	config.NextProtos = Protocols(http2)
	if config.MinVersion == 0 {
		config.MinVersion = tls.VersionTLS12
	}
	config.DynamicRecordSizingDisabled = true // writes are large
	return config
}

const (
	acceptRetry    = 5 * time.Millisecond
	acceptRetryMax = time.Second
)

// accept accepts TCP connections from in until in is closed. Their goroutines continue after that.
func (l *Listener) accept(in net.Listener, config *tls.Config) error {
	for delay := acceptRetry; ; {
		raw, err := in.Accept()
		switch {
		case err == nil:
			delay = acceptRetry
			l.serveTLS(raw, config)
		case l.isClosing(), l.s.isDraining() && errors.Is(err, net.ErrClosed):
			return nil
		case isTemporary(err):
			if l.logLimiter.TryAccept() {
				klog.ErrorS(err, "Connections cannot be accepted; trying again")
			}
			select {
			case <-l.closing:
			case <-time.After(delay):
			}
			delay = min(2*delay, acceptRetryMax)
		default:
			return fmt.Errorf("httpapi: accept: %w", err)
		}
	}
}

// isTemporary reports whether a later Accept may succeed: a client gave up, or too many files
// are open.
func isTemporary(err error) bool {
	return slices.ContainsFunc([]syscall.Errno{
		syscall.ECONNABORTED, syscall.EINTR, syscall.EMFILE, syscall.ENFILE, syscall.ENOBUFS, syscall.ENOMEM,
	}, func(no syscall.Errno) bool { return errors.Is(err, no) })
}

// serveTLS serves a connection from the network. It closes a connection beyond the limits without a response, because
// there was no handshake.
func (l *Listener) serveTLS(raw net.Conn, config *tls.Config) {
	c := &connection{from: l, address: addressOf(raw.RemoteAddr()), began: time.Now()}
	tcp, isTCP := raw.(*net.TCPConn)
	below := raw
	if isTCP {
		below = socket.NewTCP(tcp)
	}
	c.conn = &tlsConn{Conn: tls.Server(below, config), of: c}
	if !l.add(c) {
		raw.Close()
		l.logRefused(c.address)
		return
	}
	if isTCP { // the kernel detects peers that vanished
		_ = tcp.SetKeepAliveConfig(net.KeepAliveConfig{Enable: true, Idle: keepalivePeriod, Interval: keepalivePeriod, Count: 3})
		_ = socket.SetUserTimeout(tcp, l.s.config.UserTimeout)
	}
	l.start(c.serve)
}

// errStopped is the error of requests to this server from its own process after it has stopped. It is not net.ErrClosed,
// after which client-go retries for ten seconds.
var errStopped = errors.New("httpapi: the server has stopped")

// client returns an HTTP client whose connections reach l through memory, regardless of their address and scheme.
func (l *Listener) client() *http.Transport {
	dial := func(ctx context.Context, _, _ string) (net.Conn, error) {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		pipe := fasthttputil.NewPipeConns()
		c := &connection{from: l, began: time.Now()}
		c.conn = &memoryConn{Conn: pipe.Conn2(), of: c}
		if !l.add(c) {
			return nil, errStopped
		}
		l.start(c.serve)
		return pipe.Conn1(), nil
	}
	return &http.Transport{
		DialContext:         dial,
		DialTLSContext:      dial,
		DisableCompression:  true,
		MaxIdleConnsPerHost: 64,
		ReadBufferSize:      1 << 10, // a server has dozens of these connections, without system calls (T5)
		WriteBufferSize:     1 << 10,
	}
}

// start calls serve for a connection that has been counted as running.
func (l *Listener) start(serve func()) {
	go func() {
		defer l.running.Done()
		serve()
	}()
}

// resume serves c again, which a handler had taken over. The next request begins with ahead. If c must end with its
// current request, resume closes c.
func (l *Listener) resume(c *connection, ahead []byte) {
	c.state.Store(stateIdle)
	l.mu.Lock()
	_, again := l.open[c]
	if again = again && !l.closed && !l.isLeaving(c.began); again {
		l.open[c] = true
		l.running.Add(1)
	}
	l.mu.Unlock()
	if !again {
		c.conn.Close()
		return
	}
	l.start(c.session(ahead).Serve)
}

// disconnectInterval is how often EndDisconnected checks whether clients have left.
const disconnectInterval = time.Second

// EndDisconnected ends the contexts of HTTP/1.1 requests whose clients have left, until ctx ends.
func (l *Listener) EndDisconnected(ctx context.Context) {
	wait.UntilWithContext(ctx, func(context.Context) {
		for _, c := range l.list(false) {
			if ss := c.http1.Load(); ss != nil && c.state.Load() == stateActive && socket.Closed(c.conn) {
				ss.end()
			}
		}
	}, disconnectInterval)
}

// add adds c to the open connections. It returns false if c must be closed, because l is closed or a limit is reached.
func (l *Listener) add(c *connection) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return false
	}
	for limit, open := range [numLimits]int{limitAddress: l.addresses[c.address], limitAll: len(l.open)} {
		if most := l.limits[limit]; most > 0 && open >= most {
			l.refused[limit].Add(1)
			return false
		}
	}
	l.open[c] = true
	l.addresses[c.address]++
	l.running.Add(1)
	return true
}

// served records that c is no longer served. A handler that has taken it over closes it later.
func (l *Listener) served(c *connection) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if _, open := l.open[c]; open {
		l.open[c] = false
	}
}

// remove removes c, which is about to be closed, from the open connections.
func (l *Listener) remove(c *connection) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if _, open := l.open[c]; !open {
		return
	}
	delete(l.open, c)
	if l.addresses[c.address]--; l.addresses[c.address] == 0 {
		delete(l.addresses, c.address)
	}
}

// logRefused logs that a connection from address was refused, at most once a minute.
func (l *Listener) logRefused(address netip.Prefix) {
	if !l.logLimiter.TryAccept() {
		return
	}
	l.mu.Lock()
	open, same := len(l.open), l.addresses[address]
	l.mu.Unlock()
	klog.ErrorS(nil, "Connections are refused", "open", open, "from", address, "openFromThere", same,
		"--max-connections", l.limits[limitAll], "--max-connections-per-address", l.limits[limitAddress],
		"refused", l.refused[limitAll].Load()+l.refused[limitAddress].Load())
}

// connLimits limit open connections; 0 sets no limit.
type connLimits [numLimits]int

// The limits, as indexes: of connections from one address, and of all.
const (
	limitAddress = iota
	limitAll
	numLimits
)

// ipv6Site is the length of the prefix that counts as one IPv6 address, because clients usually have a whole /64.
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

// Collectors report the connections of l.
func (l *Listener) Collectors() []prometheus.Collector {
	all := []prometheus.Collector{prometheus.NewGaugeFunc(
		prometheus.GaugeOpts{Name: "larder_connections", Help: "Number of open connections."},
		func() float64 {
			l.mu.Lock()
			defer l.mu.Unlock()
			return float64(len(l.open))
		})}
	for limit, name := range [numLimits]string{limitAddress: "address", limitAll: "all"} {
		value, refused := float64(l.limits[limit]), &l.refused[limit]
		if value <= 0 {
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
