package http1

import (
	"crypto/tls"
	"net"
	"net/http"
	"sync"
	"time"

	"github.com/larder-io/larder/httpapi/exchange"
	"github.com/larder-io/larder/httpapi/http2"
	"github.com/larder-io/larder/httpapi/socket"
)

const keepalivePeriod = 15 * time.Second

// Config configures a [Server]. Listener and TLS are needed to accept connections from the network. All other fields
// are required, except HTTP2 and those Limits whose zero value has a meaning.
type Config struct {
	// Listener accepts TCP connections, on which the server speaks TLS. [Server.ServeNetwork] takes ownership of it.
	Listener net.Listener
	TLS      *tls.Config

	// Handler serves the request of c. The request's header was complete at received.
	Handler func(c exchange.Carrier, received time.Time) *exchange.Exchange
	// Draining is closed when shutdown begins.
	Draining <-chan struct{}

	Limits
	BodyTimeout time.Duration // from the end of the header to the end of the body

	HTTP2 bool // offer HTTP/2 to clients from the network
}

// Limits limits connections and the data read from them.
type Limits struct {
	// MaxBodyBytes limits a request's body.
	MaxBodyBytes int64
	// MaxHeaderBytes limits a request's line and header, plus 4 KiB of slack, as in net/http. A connection
	// holds a buffer that fits the header while it reads a request.
	MaxHeaderBytes int
	// MaxConns limits open connections from the network, and MaxConnsPerIP those from one IPv4 address or one
	// IPv6 /64; 0 sets no limit. Connections beyond a limit are closed at once.
	MaxConns, MaxConnsPerIP int
	// MaxStreams limits the concurrent requests of one HTTP/2 connection; 0 means 100. GoAwayChance is the
	// probability that a request makes its client open another connection.
	MaxStreams   int
	GoAwayChance float64
	// UserTimeout is how long sent data may stay unacknowledged before the kernel ends the
	// connection. It detects peers that vanish while a stream is being written.
	UserTimeout time.Duration
}

// Server accepts connections from the network and from this process, reads requests from them
// and writes the responses.
type Server struct {
	// Network has the connections from the network, Memory those from this process.
	Network, Memory *Listener

	config Config
	http2  *http2.Server
	client *http.Transport
	stop   func() // closes Config.Listener, once
}

// New returns a server that accepts no network connections yet.
func New(config Config) *Server {
	s := &Server{config: config, stop: sync.OnceFunc(func() { config.Listener.Close() })}
	s.Network = s.newListener(connLimits{limitAll: config.MaxConns, limitAddress: config.MaxConnsPerIP})
	s.Network.network = true
	s.Memory = s.newListener(connLimits{})
	s.client = s.Memory.client()
	s.http2 = http2.New(http2.Config{
		Handler: config.Handler, MaxStreams: config.MaxStreams, GoAwayChance: config.GoAwayChance,
		MaxHeaderBytes: config.MaxHeaderBytes, MaxBodyBytes: config.MaxBodyBytes,
		HeaderTimeout: headerTimeout, IdleTimeout: idleTimeout, WriteTimeout: socket.WriteTimeout,
		Leaving: s.Network.isLeaving,
	})
	return s
}

// RoundTripper sends requests to the server from within the process, until [Server.CloseMemory].
func (s *Server) RoundTripper() http.RoundTripper { return s.client }

// ServeNetwork accepts connections from the network until StopAccepting. Accepted connections continue. Only one
// goroutine calls it.
func (s *Server) ServeNetwork() error {
	return s.Network.accept(s.config.Listener, tlsConfig(s.config.TLS, s.config.HTTP2))
}

// Session returns a Session that serves the requests of c, without limits of connections.
func (s *Server) Session(c net.Conn) *Session {
	return (&connection{conn: c, from: s.newListener(connLimits{}), began: time.Now()}).session(nil)
}

// StopAccepting makes ServeNetwork return.
func (s *Server) StopAccepting() { s.stop() }

// CloseMemory rejects new connections from this process. Open ones end with their current request.
func (s *Server) CloseMemory() {
	s.client.CloseIdleConnections()
	s.Memory.Close()
}

// Abort closes all connections, and returns when none is served.
func (s *Server) Abort() {
	s.Network.abort()
	s.Memory.abort()
}
