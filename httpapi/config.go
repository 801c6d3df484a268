package httpapi

import (
	"cmp"
	"crypto/tls"
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
	"k8s.io/apiserver/pkg/util/peerproxy"

	"github.com/larder-io/larder/httpapi/aggregator"
	"github.com/larder-io/larder/httpapi/apimetrics"
	"github.com/larder-io/larder/httpapi/customresources"
	"github.com/larder-io/larder/httpapi/faults/inject"
	"github.com/larder-io/larder/httpapi/http1"
	"github.com/larder-io/larder/httpapi/relay"
	"github.com/larder-io/larder/internal/auth"
	"github.com/larder-io/larder/internal/flow"
	"github.com/larder-io/larder/internal/registry"
)

// Config configures a [Server]. Registry, Listener, TLS and Version are required.
type Config struct {
	Registry *registry.Registry

	// Listener accepts TCP connections, on which the server speaks TLS. The server owns
	// Listener from Run on.
	Listener net.Listener
	TLS      *tls.Config

	Version *version.Info

	// Admission may be nil.
	Admission admission.Interface

	// ExternalAddress is the host and port by which clients reach the server. Discovery
	// returns it; "" means the address of Listener.
	ExternalAddress string
	// InternalAddresses are returned in addition to clients in certain address ranges.
	InternalAddresses []discovery.CIDRRule

	Access
	Concurrency
	Pages
	Delegation
	Timeouts
	Connections
	Tracing

	// Faults are injected into requests, for tests of controllers; nil injects none. Pages.Handlers must
	// serve their API.
	Faults *inject.Faults

	cpu func() time.Duration // the CPU time of the process; tests replace it
}

// Access configures authentication, authorization and audit.
type Access struct {
	// Authenticator authenticates requests; nil makes every client the super-user, for tests. It may read the client's
	// certificate and the headers Authorization, Sec-WebSocket-Protocol and those of a front proxy: X-Remote-... or the
	// ones in RequestHeader. Its result is reused on the same connection for a second, unless Generation, which may be
	// nil, changes. With AnonymousByPath a request without credentials is authenticated each time. Audiences are the
	// accepted audiences of tokens.
	Authenticator   authenticator.Request
	Generation      func() uint64
	RequestHeader   *authenticatorfactory.RequestHeaderConfig
	AnonymousByPath bool
	Audiences       authenticator.Audiences
	// Authorizer authorizes requests; nil allows everything.
	Authorizer authorizer.Authorizer
	// Revocation reports changes after which watches may no longer be allowed and must end; nil lets them continue.
	Revocation *auth.Revocation
	// AuditPolicy decides how much of a request is recorded, and Audit receives the records. If
	// both are nil, nothing is recorded.
	AuditPolicy audit.PolicyRuleEvaluator
	Audit       audit.Sink

	// HSTS is the Strict-Transport-Security header of every response; "" sends none.
	HSTS string
	// CORS are regular expressions for the origins whose pages may send requests.
	CORS []string
}

// Concurrency limits how many requests are served at once.
type Concurrency struct {
	// Flow is API Priority and Fairness. If it is nil, at most MaxInFlight reads and
	// MaxMutatingInFlight other requests are served at once; 0 sets no limit.
	Flow                             *flow.Control
	MaxInFlight, MaxMutatingInFlight int
}

// Pages are the pages outside the API.
type Pages struct {
	// HealthChecks, LiveChecks and ReadyChecks are the checks of /healthz, /livez and /readyz.
	HealthChecks, LiveChecks, ReadyChecks []healthz.HealthChecker

	// Collectors report further metrics at /metrics. Limits restricts label values. Amend,
	// which may be nil, adds samples to upstream's metrics.
	Collectors []prometheus.Collector
	Limits     apimetrics.Limits
	Amend      func([]*dto.MetricFamily)
	// NoObjectCounts omits the number of objects of each resource from /metrics.
	NoObjectCounts bool

	// Handlers serve more paths. A handler of a path that ends in "/" also serves all paths below.
	// NoProfiling omits /debug/pprof.
	Handlers    map[string]http.Handler
	NoProfiling bool

	// StatusPage serves the page of package statuspage at /larder/.
	StatusPage bool
}

// Delegation has the parts and servers that serve requests that the server's own routing table does not.
type Delegation struct {
	// Extensions serves custom resources; nil responds with 404.
	Extensions *customresources.Extensions
	// Discovery has the aggregated discovery document of /apis, to which Extensions adds its groups. nil
	// adds nothing.
	Discovery aggregated.ResourceManager

	// Aggregator proxies to aggregated servers, and lists the groups of all servers. A server with a Registry needs it
	// for / and /apis.
	Aggregator *aggregator.Aggregator

	// Relay serves reads from caches of another API server, and proxies all other requests to it. It is nil in a server
	// with a store. With a Relay, the server itself serves only health, metrics, the status page and Pages.Handlers.
	Relay *relay.Relay

	// StorageVersions tracks published storage versions. Writes of resources without one are rejected, because a
	// storage migration must know which versions may be written. nil publishes none.
	StorageVersions storageversion.Manager

	// Peers serve resources that neither this server nor Aggregator serves; nil if there are no peers. ID
	// is this server's name among them.
	Peers peerproxy.Interface
	ID    string
}

// Timeouts limit requests and the phases of shutdown.
type Timeouts struct {
	// RequestTimeout limits every request that is not long-running; 0 means 60 s.
	RequestTimeout time.Duration
	// MinRequestTimeout is the minimum duration of a watch without timeoutSeconds. The maximum is twice that. 0 means
	// 1800 s.
	MinRequestTimeout time.Duration
	// ShutdownGrace is how long running requests may take during shutdown; 0 means 60 s.
	ShutdownGrace time.Duration
	// WatchGrace is the time over which shutdown spreads the ends of watches, so that their
	// clients do not all connect to another server at once; 0 ends all at once.
	WatchGrace time.Duration
	// SendRetryAfter keeps accepting connections until the running requests have ended, and rejects new requests with
	// 429. Without it, connections are refused.
	SendRetryAfter bool
}

// Connections configures connections.
type Connections struct {
	// Limits has defaults: 3 MiB for MaxBodyBytes, 1 MiB for MaxHeaderBytes, 45 s for UserTimeout.
	http1.Limits
	// Accept, if set, is closed when the server may accept connections from the network. Earlier connections wait. nil
	// accepts them at once.
	Accept <-chan struct{}
	// DisableHTTP2 offers clients only HTTP/1.1.
	DisableHTTP2 bool
}

// Tracing records sampled requests as spans.
type Tracing struct {
	// Spans samples every request that it receives; nil records none.
	Spans trace.TracerProvider
	// SampleChance is the probability that a request is sampled if its sender does not, or may not, decide that.
	SampleChance float64
}

func (c *Config) setDefaults() {
	c.RequestTimeout = cmp.Or(c.RequestTimeout, time.Minute)
	c.MinRequestTimeout = cmp.Or(c.MinRequestTimeout, 30*time.Minute)
	c.ShutdownGrace = cmp.Or(c.ShutdownGrace, time.Minute)
	c.MaxBodyBytes = cmp.Or(c.MaxBodyBytes, 3<<20)
	c.MaxHeaderBytes = cmp.Or(c.MaxHeaderBytes, http.DefaultMaxHeaderBytes)
	c.UserTimeout = cmp.Or(c.UserTimeout, 45*time.Second)
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
