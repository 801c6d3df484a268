package relay

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math"
	"net"
	"runtime/debug"
	"strconv"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/version"
	"k8s.io/apiserver/pkg/authorization/authorizerfactory"
	"k8s.io/apiserver/pkg/authorization/path"
	"k8s.io/apiserver/pkg/authorization/union"
	"k8s.io/apiserver/pkg/server/dynamiccertificates"
	"k8s.io/apiserver/pkg/server/healthz"
	"k8s.io/apiserver/pkg/server/options"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	corerest "k8s.io/kubernetes/pkg/registry/core/rest"

	"github.com/larder-io/larder/cmd/larder/internal/server/heap"
	"github.com/larder-io/larder/cmd/larder/internal/server/lifecycle"
	"github.com/larder-io/larder/cmd/larder/internal/server/pki"
	"github.com/larder-io/larder/cmd/larder/internal/server/servingcert"
	"github.com/larder-io/larder/httpapi"
	"github.com/larder-io/larder/httpapi/relay"
	"github.com/larder-io/larder/internal/registry"
	"github.com/larder-io/larder/internal/registry/builtin"
	"github.com/larder-io/larder/kv"
)

// Config is the configuration of a [Server].
type Config struct {
	Upstreams []Upstream

	// SecureServing has the address and the certificate. A missing certificate is generated.
	SecureServing *options.SecureServingOptions

	// Resources lists the resources to cache, as RESOURCE or RESOURCE.GROUP. Empty means all except secrets.
	Resources []string
	// CacheNewer, ConsistentFrom, Idle and ServeStale are fields of [relay.Config].
	CacheNewer       bool
	ConsistentFrom   int
	Idle, ServeStale time.Duration
	// MemoryBudget limits the bytes of cached objects of all upstreams. 0 means half of the process's memory limit, or
	// no limit if the process has none.
	MemoryBudget int64
	// SteerCollector lets package heap set the garbage collector's percentage.
	SteerCollector bool

	// Version is the Kubernetes version of this program.
	Version version.Info
	// Progress receives a line for each upstream when the relay is ready.
	Progress io.Writer
	Logger   *slog.Logger
}

// Server is a relay process. Run it once.
type Server struct {
	config  Config
	minor   int64
	follows func(schema.GroupResource) bool
	layers  *lifecycle.Layers

	// Set while Run starts.
	upstreams    []*upstream
	certificates *servingcert.Certificates
	listener     net.Listener
}

// New checks config and returns a Server.
func New(config Config) (*Server, error) {
	minor, err := strconv.ParseInt(config.Version.Minor, 10, 32)
	if err != nil {
		return nil, fmt.Errorf("relay: version of this program: %w", err)
	}
	if errs := config.SecureServing.Validate(); len(errs) > 0 {
		return nil, errors.Join(errs...)
	}
	if config.Idle < 0 || config.ServeStale < 0 {
		return nil, fmt.Errorf("--idle and --serve-stale must not be negative, are %v and %v", config.Idle, config.ServeStale)
	}
	s := &Server{config: config, minor: minor, layers: lifecycle.New(), follows: func(gr schema.GroupResource) bool {
		return gr != schema.GroupResource{Resource: "secrets"} // the first read would cache the Secrets of all users
	}}
	if len(config.Resources) > 0 {
		named := sets.New[schema.GroupResource]()
		for _, name := range config.Resources {
			named.Insert(schema.ParseGroupResource(name))
		}
		s.follows = named.Has
	}
	return s, nil
}

// Run serves until ctx ends, and returns when everything that it started has ended.
func (s *Server) Run(ctx context.Context) (err error) {
	secure := s.config.SecureServing
	address := net.JoinHostPort(secure.BindAddress.String(), strconv.Itoa(secure.BindPort))
	// Listen first: a taken port is the most likely error, and all later steps write logs.
	if s.listener, _, err = options.CreateListener("", address, net.ListenConfig{}); err != nil {
		return fmt.Errorf("relay: --bind-address=%s --secure-port=%d: %w", secure.BindAddress, secure.BindPort, err)
	}
	defer s.listener.Close() // after the layers have stopped accepting
	defer func() { err = errors.Join(err, s.layers.Stop()) }()
	if s.config.SteerCollector {
		s.layers.Start(ctx, "collector", func(ctx context.Context) error { return heap.Govern(ctx, nil) })
	}
	for _, of := range s.config.Upstreams {
		u, err := s.connect(ctx, of)
		if err != nil {
			return err
		}
		s.layers.Start(ctx, "authentication "+u.Name, u.auth.Run)
		s.upstreams = append(s.upstreams, u)
	}
	if err := s.loadCertificates(ctx); err != nil {
		return err
	}
	if err := s.build(); err != nil {
		return err
	}
	behind := make(map[string]*httpapi.Server)
	for _, u := range s.upstreams {
		behind[u.Name] = u.http
		s.layers.Start(ctx, "relay "+u.Name, u.relay.Run)
		s.layers.Start(ctx, "permissions "+u.Name, u.warnOfMissingPermissions)
		s.layers.Start(ctx, "serving "+u.Name, u.http.Run)
	}
	if behind[""] == nil {
		s.layers.Start(ctx, "front", httpapi.NewFront(s.listener, s.certificates.TLS(), behind).Run)
	}
	for _, u := range s.upstreams {
		if s.config.Progress != nil {
			fmt.Fprintf(s.config.Progress, "relay of %s at https://%s%s\n", u.rest.Host, s.listener.Addr(), httpapi.PathOf(u.Name))
		}
	}
	select {
	case <-ctx.Done():
		return nil
	case layer := <-s.layers.Ended():
		return layer.Unexpected()
	}
}

// loadCertificates loads or generates the serving certificate, and loads the client CAs of all upstreams.
func (s *Server) loadCertificates(ctx context.Context) (err error) {
	secure := *s.config.SecureServing
	secure.ServerCert.PairName = "relay"
	names := append([]string{"localhost", "kubernetes", "kubernetes.default", "kubernetes.default.svc"}, pki.MachineNames()...)
	if err := secure.MaybeDefaultWithSelfSignedCerts("localhost", names, []net.IP{net.IPv4(127, 0, 0, 1), net.IPv6loopback}); err != nil {
		return fmt.Errorf("relay: serving certificate: %w", err)
	}
	var clientCAs dynamiccertificates.CAContentProvider
	for _, u := range s.upstreams {
		if clientCAs == nil {
			clientCAs = u.auth.ClientCA
		} else if u.auth.ClientCA != nil {
			clientCAs = dynamiccertificates.NewUnionCAContentProvider(clientCAs, u.auth.ClientCA)
		}
	}
	pair := secure.ServerCert.CertKey
	if s.certificates, err = servingcert.Load(pair.CertFile, pair.KeyFile, clientCAs, &secure); err != nil {
		return err
	}
	s.layers.Start(ctx, "certificates", s.certificates.Run)
	return nil
}

// build creates the registry and the server of each upstream.
func (s *Server) build() error {
	unused := new(rest.Config) // the storages require one, but a relay stores no objects
	client, err := kubernetes.NewForConfig(unused)
	if err != nil {
		return fmt.Errorf("relay: %w", err)
	}
	none := emptyStore{}
	resources, err := registry.New(registry.Config{
		Served: true, Store: none, Tail: kv.NewTail(kv.TailConfig{Store: none, Prefix: "/registry"}), Logger: s.config.Logger,
		Config: builtin.Config{
			GenericConfig: corerest.GenericConfig{LoopbackClientConfig: unused, Informers: informers.NewSharedInformerFactory(client, 0)},
			Authorizer:    authorizerfactory.NewAlwaysDenyAuthorizer(),
		},
	})
	if err != nil {
		return err
	}
	limit := s.config.MemoryBudget
	if most := debug.SetMemoryLimit(-1); limit == 0 && most < math.MaxInt64 { // -1 changes nothing
		limit = most / 2
	}
	memoryLimit := relay.NewMemoryLimit(limit)
	for _, u := range s.upstreams {
		if err := s.serve(u, resources, memoryLimit); err != nil {
			return err
		}
	}
	return nil
}

// serve creates the relay and the HTTP server of u.
func (s *Server) serve(u *upstream, resources *registry.Registry, memoryLimit *relay.MemoryLimit) (err error) {
	proxied := relay.ProxyConfig{Upstream: u.rest, Prefix: httpapi.PathOf(u.Name)}
	if u.auth.ClientCA != nil {
		proxied.ClientCAs = u.auth.ClientCA.VerifyOptions
	}
	proxy, err := relay.NewProxy(proxied)
	if err != nil {
		return err
	}
	u.relay = relay.New(relay.Config{
		Registry: resources, Client: u.client, Upstream: u.base, Proxy: proxy, Minor: s.minor, Follows: s.follows, MemoryLimit: memoryLimit,
		CacheNewer: s.config.CacheNewer, ConsistentFrom: s.config.ConsistentFrom, Idle: s.config.Idle, ServeStale: s.config.ServeStale, Logger: u.logger,
	})
	last := newDecisionFallback(s.config.ServeStale)
	health, err := path.NewAuthorizer([]string{"/healthz", "/livez", "/readyz"})
	if err != nil {
		return fmt.Errorf("relay: %w", err)
	}
	config := httpapi.Config{
		Registry: resources, Listener: s.listener, TLS: s.certificates.TLS(), Version: &s.config.Version,
		Access: httpapi.Access{
			Authenticator: last.authenticator(u.auth.Authenticator), Generation: u.auth.Generation, Audiences: u.auth.Audiences,
			Authorizer: union.New(health, last.authorizer(u.auth.Authorizer)), Revocation: u.auth.Revocation(),
		},
		Pages: httpapi.Pages{
			HealthChecks: []healthz.HealthChecker{healthz.PingHealthz}, LiveChecks: []healthz.HealthChecker{healthz.PingHealthz},
			ReadyChecks: []healthz.HealthChecker{healthz.PingHealthz}, StatusPage: true, NoProfiling: true,
		},
		Delegation: httpapi.Delegation{Relay: u.relay},
	}
	if u.Name != "" {
		config.Accept = make(chan struct{}) // the Front accepts connections
	}
	u.http, err = httpapi.New(config)
	return err
}

// emptyStore is the kv.Store of a registry without objects.
type emptyStore struct{ kv.Store }

// Replacements implements kv.Store.
func (emptyStore) Replacements() uint64 { return 0 }
