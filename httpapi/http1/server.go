package http1

import (
	"context"
	"crypto/tls"
	"net"
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/larder-io/larder/httpapi/exchange"
	"github.com/larder-io/larder/httpapi/http2"
	"github.com/larder-io/larder/httpapi/socket"
)

const (
	handshakeTimeout = 10 * time.Second
	keepalivePeriod  = 15 * time.Second
)

// Config has the handler of a [Server], and its bounds. All but MaxConnsPerIP, WriteTimeout
// and the fields about HTTP/2 are required.
type Config struct {
	// Handler answers the request that c carries, which was received then.
	Handler func(c exchange.Carrier, received time.Time) *exchange.Exchange
	// Draining is closed when shutdown begins.
	Draining <-chan struct{}

	MaxHeaderBytes int           // of a request's line and header, of which 4 KiB more are let pass
	MaxBodyBytes   int64         // of a request's body
	BodyTimeout    time.Duration // from the end of the header to that of the body
	WriteTimeout   time.Duration // of one response; 0 means socket.WriteTimeout
	// UserTimeout is how long written data may stay unacknowledged. By it the kernel finds a
	// peer that vanished while the server was writing to it.
	UserTimeout time.Duration

	// MaxConns bounds open connections, MaxConnsPerIP those from one IPv4 address or one
	// /64 of IPv6 addresses; 0 sets no bound.
	MaxConns, MaxConnsPerIP int

	// HTTP2 offers HTTP/2 to clients from the network. MaxStreams bounds the requests of one
	// of its connections at once; 0 means 100. GoAwayChance is the probability that a
	// request makes its client go to another connection.
	HTTP2        bool
	MaxStreams   int
	GoAwayChance float64
}

// Server accepts connections, reads requests and writes responses. The connections come from
// the network or, without network, from this process.
type Server struct {
	config Config
	limits limits
	caps   connCaps
	counts connCounts
	outer  *door // for connections from the network
	inner  *door // for connections from this process
	http2  *http2.Server
	memory *memoryListener
	client *http.Transport

	network *listener // nil before Listen
}

// New returns a server that does not listen yet.
func New(config Config) *Server {
	if config.WriteTimeout == 0 {
		config.WriteTimeout = socket.WriteTimeout
	}
	s := &Server{config: config, memory: newMemoryListener(), caps: connCaps{all: config.MaxConns, perPeer: config.MaxConnsPerIP}}
	s.limits = limits{header: headerTimeout, idle: idleTimeout, body: config.BodyTimeout, write: config.WriteTimeout}
	s.outer = s.newDoor(0) // its listener bounds more than sessions
	s.outer.network = true
	s.inner = s.newDoor(config.MaxConns)
	s.client = s.memory.client()
	s.http2 = http2.New(http2.Config{
		Handler: config.Handler, MaxStreams: config.MaxStreams, GoAwayChance: config.GoAwayChance,
		MaxHeaderBytes: config.MaxHeaderBytes, MaxBodyBytes: config.MaxBodyBytes,
		HeaderTimeout: s.limits.header, IdleTimeout: s.limits.idle, WriteTimeout: s.limits.write,
		Leaving: s.outer.turning,
	})
	return s
}

// RoundTripper reaches the server from within the process, without network.
func (s *Server) RoundTripper() http.RoundTripper { return s.client }

// Collector reports connections.
func (s *Server) Collector() prometheus.Collector { return newConnCollector(&s.counts, s.caps) }

// Listen puts TLS on l, which the server owns from here on. It is called once, before
// ServeNetwork.
func (s *Server) Listen(l net.Listener, config *tls.Config) {
	s.network = newListener(l, config, Protocols(s.config.HTTP2), s.caps, &s.counts)
	s.network.userTimeout = s.config.UserTimeout
}

// ServeNetwork accepts connections of the network until StopAccepting, ServeMemory those of
// this process until CloseMemory. Connections that they have accepted go on.
func (s *Server) ServeNetwork() error { return s.outer.serve(s.network) }

// ServeMemory accepts connections of this process.
func (s *Server) ServeMemory() error { return s.inner.serve(s.memory) }

// Session returns a Session that serves the requests of c. c counts towards no bound.
func (s *Server) Session(c net.Conn) *Session {
	return s.session(s.newDoor(1), &visit{conn: c, began: time.Now()})
}

// StopAccepting lets no connection come from the network any more.
func (s *Server) StopAccepting() { s.network.Close() }

// CutStalled closes network connections to clients that do not read, until ctx ends.
func (s *Server) CutStalled(ctx context.Context) { s.network.cutStalled(ctx) }

// SettleNetwork waits until the requests that are under way on connections of the network
// have been answered, or ctx ends. It does not wait for those that come meanwhile.
func (s *Server) SettleNetwork(ctx context.Context) { s.outer.settle(ctx) }

// CloseNetwork lets no request follow another on connections of the network.
func (s *Server) CloseNetwork() { s.outer.close() }

// DrainNetwork waits until the requests from the network have been answered, or ctx ends.
func (s *Server) DrainNetwork(ctx context.Context) error { return s.outer.drain(ctx) }

// CloseMemory ends accepting from this process, and lets no request follow another.
func (s *Server) CloseMemory() {
	s.client.CloseIdleConnections()
	s.inner.close()
	s.memory.Close()
}

// DrainMemory waits until the requests of this process have been answered, or ctx ends.
func (s *Server) DrainMemory(ctx context.Context) error { return s.inner.drain(ctx) }

// Abort closes all connections, and returns when none is served any more.
func (s *Server) Abort() {
	s.network.closeAll()
	s.memory.closeAll()
	s.outer.running.Wait()
	s.inner.running.Wait()
}
