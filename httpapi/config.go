package httpapi

import (
	"crypto/tls"
	"errors"
	"net"
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	"go.opentelemetry.io/otel/trace"
	"k8s.io/apimachinery/pkg/version"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/audit"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/authenticatorfactory"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/endpoints/discovery"
	"k8s.io/apiserver/pkg/endpoints/discovery/aggregated"
	"k8s.io/apiserver/pkg/server/healthz"
	"k8s.io/apiserver/pkg/storageversion"

	"github.com/larder-io/larder/httpapi/aggregator"
	"github.com/larder-io/larder/httpapi/apimetrics"
	"github.com/larder-io/larder/httpapi/customresources"
	"github.com/larder-io/larder/internal/auth"
	"github.com/larder-io/larder/internal/registry"
)

// Config says what a [Server] serves and to whom. Registry, Listener, TLS and
// Version are required.
type Config struct {
	Registry *registry.Registry

	// Listener accepts TCP connections; TLS is put on top of it. The server owns
	// it from Run on.
	Listener net.Listener
	TLS      *tls.Config

	// Authenticator authenticates requests; nil makes every client the super-user, which
	// is for tests. It looks at the client's certificate and at the headers
	// Authorization, Sec-WebSocket-Protocol and those of a front proxy: X-Remote-... or
	// what RequestHeader says. Its answer is reused on the same connection for a second,
	// or until Generation, which may be nil, changes. With AnonymousByPath a request without
	// credentials is authenticated each time. Audiences are what tokens may be meant for.
	Authenticator   authenticator.Request
	Generation      func() uint64
	RequestHeader   *authenticatorfactory.RequestHeaderConfig
	AnonymousByPath bool
	Audiences       authenticator.Audiences
	// Authorizer decides what users may do; nil allows everything.
	Authorizer authorizer.Authorizer
	// Revocation says when watches have lost the right that they began with, and are to
	// end; nil lets them go on.
	Revocation *auth.Revocation
	// AuditPolicy says what is recorded of requests, Audit takes the records; if it is nil,
	// nothing is recorded.
	AuditPolicy audit.PolicyRuleEvaluator
	Audit       audit.Sink
	// Flow decides which requests are served at once. If it is nil, at most MaxInFlight
	// requests that read and MaxMutatingInFlight others are; 0 sets no bound.
	Flow                             *auth.Flow
	MaxInFlight, MaxMutatingInFlight int
	// Admission may be nil.
	Admission admission.Interface

	Version *version.Info

	// ExternalAddress is the host and port by which clients reach the server, which
	// discovery tells them; "" means what Listener is bound to.
	ExternalAddress string
	// InternalAddresses are told to clients of certain addresses, too.
	InternalAddresses []discovery.CIDRRule

	// HealthChecks, LiveChecks and ReadyChecks answer /healthz, /livez and /readyz.
	HealthChecks, LiveChecks, ReadyChecks []healthz.HealthChecker

	// Collectors report further metrics at /metrics. Amend, which may be nil, adds to
	// upstream's what upstream was not told.
	Collectors []prometheus.Collector
	Limits     apimetrics.Limits // of what metrics may tell
	Amend      func([]*dto.MetricFamily)

	// NoObjectCounts leaves out of /metrics how many objects there are of each resource.
	NoObjectCounts bool

	// Handlers answer further paths, and those that end in "/" all below them. NoProfiling
	// leaves out /debug/pprof.
	Handlers    map[string]http.Handler
	NoProfiling bool

	// StatusPage serves the page of package statuspage at /larder/.
	StatusPage bool

	// HSTS is what browsers are told with every answer about coming back by HTTPS alone;
	// "" tells nothing. CORS are the regular expressions of origins whose pages may send
	// requests.
	HSTS string
	CORS []string

	// Extensions answers requests that no endpoint is installed for; nil answers 404.
	// Discovery collects what is served below /apis; the code that owns it adds what
	// Extensions serves. It is nil if there is nothing to add.
	Extensions *customresources.Extensions
	Discovery  aggregated.ResourceManager

	// Aggregator answers for other servers, and lists the groups of all; nil if there
	// are no others.
	Aggregator *aggregator.Aggregator

	// StorageVersions knows whose storage version is not published yet; nil if none is to be.
	// What is stored is not written before that: whoever migrates objects from one version to
	// another must know what versions may be written.
	StorageVersions storageversion.Manager

	// Peers answer for what neither this server nor Aggregator serves; nil if there are none.
	// ID is this server's name among them.
	Peers Peers
	ID    string

	// RequestTimeout bounds every request that is not long-running; 0 means 60 s.
	RequestTimeout time.Duration
	// MinRequestTimeout is the least time that a watch without timeoutSeconds
	// lasts; it ends within twice that. 0 means 1800 s.
	MinRequestTimeout time.Duration
	// ShutdownDelay is how long requests are still accepted after readiness was
	// withdrawn, ShutdownGrace how long the last ones may take; 0 means none, and 60 s.
	ShutdownDelay, ShutdownGrace time.Duration
	// WatchGrace is over what time watches end during shutdown, so that their clients do
	// not all come to another server at once; 0 ends them at once.
	WatchGrace time.Duration
	// SendRetryAfter goes on accepting connections until the last requests have been
	// answered, and refuses what else they ask with 429. Without it connections are refused.
	SendRetryAfter bool

	// Spans records requests as spans and samples whatever it is asked to; nil records none.
	// SampleChance is the probability that a request is sampled if its sender does not say
	// whether it is to be, or may not decide that.
	Spans        trace.TracerProvider
	SampleChance float64

	// MaxRequestBodyBytes bounds a request's body; 0 means 3 MiB.
	MaxRequestBodyBytes int64
	// MaxHeaderBytes bounds a request's line and header, of which 4 KiB more are
	// let pass, as net/http does; 0 means 1 MiB. A connection holds a buffer that a
	// header fits into while it reads a request.
	MaxHeaderBytes int
	// CompressedListBytes bounds what is kept of compressed lists; 0 means 64 MiB.
	CompressedListBytes int64
	// Accept, if it is set, is closed when connections of the network are to be accepted; those
	// that come before wait. Without it they are accepted at once.
	Accept <-chan struct{}
	// MaxConns bounds open connections, MaxConnsPerIP those from one IPv4 address or one
	// /64 of IPv6 addresses; 0 sets no bound. Connections beyond a bound are closed at once.
	MaxConns, MaxConnsPerIP int
	// DisableHTTP2 offers clients HTTP/1.1 alone. HTTP2MaxStreams bounds the requests of one
	// connection of HTTP/2 at once; 0 means 100. GoAwayChance is the probability that one of
	// them makes its client go to another connection.
	DisableHTTP2    bool
	HTTP2MaxStreams int
	GoAwayChance    float64
	// UserTimeout is how long what was sent may stay unacknowledged, or wait for a client
	// that takes nothing in, before the kernel ends the connection; 0 means 45 s. It finds
	// peers that vanished while a stream is being written to.
	UserTimeout time.Duration

	cpu func() time.Duration // the CPU time of the process; tests have others
}

func (c *Config) check() error {
	switch {
	case c.Registry == nil:
		return errors.New("httpapi: Config.Registry is missing")
	case c.Listener == nil:
		return errors.New("httpapi: Config.Listener is missing")
	case c.TLS == nil:
		return errors.New("httpapi: Config.TLS is missing")
	case c.Version == nil:
		return errors.New("httpapi: Config.Version is missing")
	case (c.AuditPolicy == nil) != (c.Audit == nil):
		return errors.New("httpapi: Config.AuditPolicy and Config.Audit need each other")
	}
	return nil
}

func (c *Config) setDefaults() {
	setDefault(&c.RequestTimeout, time.Minute)
	setDefault(&c.MinRequestTimeout, 30*time.Minute)
	setDefault(&c.ShutdownGrace, time.Minute)
	setDefault(&c.MaxRequestBodyBytes, 3<<20)
	setDefault(&c.MaxHeaderBytes, http.DefaultMaxHeaderBytes)
	setDefault(&c.CompressedListBytes, 64<<20)
	setDefault(&c.UserTimeout, 45*time.Second)
	if c.cpu == nil {
		c.cpu = processCPU
	}
	if c.Generation == nil {
		c.Generation = func() uint64 { return 0 }
	}
	if c.Discovery == nil {
		c.Discovery = aggregated.NewResourceManager("apis")
	}
}

func setDefault[T comparable](field *T, value T) {
	var zero T
	if *field == zero {
		*field = value
	}
}
