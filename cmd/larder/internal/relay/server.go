package relay

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math"
	"net"
	"net/http"
	"net/url"
	"os"
	"runtime/debug"
	"strconv"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/version"
	"k8s.io/apiserver/pkg/authorization/authorizerfactory"
	"k8s.io/apiserver/pkg/authorization/path"
	"k8s.io/apiserver/pkg/authorization/union"
	"k8s.io/apiserver/pkg/server/healthz"
	"k8s.io/apiserver/pkg/server/options"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/larder-io/larder/cmd/larder/internal/server/lifecycle"
	"github.com/larder-io/larder/cmd/larder/internal/server/servingcert"
	"github.com/larder-io/larder/httpapi"
	"github.com/larder-io/larder/httpapi/relay"
	"github.com/larder-io/larder/internal/auth"
	"github.com/larder-io/larder/internal/registry"
	"github.com/larder-io/larder/internal/registry/builtin"
	"github.com/larder-io/larder/kv"
)

// Config is the configuration of a [Server].
type Config struct {
	// Kubeconfig names the upstream and has the relay's own credentials there; "" means the cluster that the
	// relay runs in.
	Kubeconfig string

	// SecureServing is where to listen. Without a certificate one is generated.
	SecureServing *options.SecureServingOptions
	// ClientCAFile has the CAs of client certificates; "" accepts none.
	ClientCAFile string

	// Resources are the resources that are followed, as RESOURCE or RESOURCE.GROUP; empty means all but secrets.
	Resources []string
	// ConsistentFrom, Idle and ServeStale are those of [relay.Config].
	ConsistentFrom   int
	Idle, ServeStale time.Duration
	// MemoryBudget is the number of bytes that cached objects may have. 0 means half of the memory limit of the
	// process, or no limit if that has none.
	MemoryBudget int64

	// Version is the Kubernetes that this program has the types of.
	Version version.Info
	// Progress gets a line when the relay is ready.
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
	dir          string // private files
	kubeconfig   *clientcmdapi.Config
	upstream     *rest.Config
	client       *http.Client // has the relay's own credentials
	base         *url.URL
	auth         *auth.Auth
	certificates *servingcert.Certificates
	listener     net.Listener
	relay        *relay.Relay
	http         *httpapi.Server
}

// New checks config and returns a Server that is not running.
func New(config Config) (*Server, error) {
	minor, err := strconv.ParseInt(config.Version.Minor, 10, 32)
	if err != nil {
		return nil, fmt.Errorf("relay: version of this program: %w", err)
	}
	if errs := config.SecureServing.Validate(); len(errs) > 0 {
		return nil, errors.Join(errs...)
	}
	s := &Server{config: config, minor: minor, layers: lifecycle.New(), follows: func(gr schema.GroupResource) bool {
		return gr != schema.GroupResource{Resource: "secrets"} // a read of one would have all of them kept here
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
	if s.dir, err = os.MkdirTemp("", "larder-relay-"); err != nil {
		return fmt.Errorf("relay: %w", err)
	}
	defer os.RemoveAll(s.dir)
	defer func() { err = errors.Join(err, s.layers.Stop()) }()
	for _, step := range []func(context.Context) error{s.reach, s.authorize, s.listen, s.build} {
		if err := step(ctx); err != nil {
			return err
		}
	}
	s.layers.Start(ctx, "relay", s.relay.Run)
	s.layers.Start(ctx, "serving", s.http.Run)
	s.warn(ctx)
	if s.config.Progress != nil {
		fmt.Fprintf(s.config.Progress, "relay of %s at https://%s\n", s.upstream.Host, s.listener.Addr())
	}
	select {
	case <-ctx.Done():
		return nil
	case layer := <-s.layers.Ended():
		return layer.Unexpected()
	}
}

// warn logs what the relay may not do at the upstream.
func (s *Server) warn(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	client, err := kubernetes.NewForConfigAndClient(s.upstream, s.client)
	if err != nil {
		return
	}
	lines, err := missingPermissions(ctx, client.AuthorizationV1(), s.config.ClientCAFile != "")
	if err != nil {
		s.config.Logger.Warn("cannot ask the upstream for the relay's rights", "error", err)
	}
	for _, line := range lines {
		s.config.Logger.Warn(line)
	}
}

// reach makes the client of the upstream.
func (s *Server) reach(context.Context) (err error) {
	if s.kubeconfig, err = loadUpstream(s.config.Kubeconfig); err != nil {
		return err
	}
	if s.upstream, err = clientcmd.NewDefaultClientConfig(*s.kubeconfig, nil).ClientConfig(); err != nil {
		return fmt.Errorf("relay: upstream: %w", err)
	}
	s.upstream.UserAgent = "larder-relay"
	if s.client, err = rest.HTTPClientFor(s.upstream); err != nil {
		return fmt.Errorf("relay: upstream: %w", err)
	}
	if s.base, _, err = rest.DefaultServerUrlFor(s.upstream); err != nil {
		return fmt.Errorf("relay: upstream: %w", err)
	}
	return nil
}

// authorize loads authentication and authorization, which the upstream decides about.
func (s *Server) authorize(ctx context.Context) (err error) {
	if s.auth, err = loadRights(ctx, s.dir, s.kubeconfig, s.config.ClientCAFile, true); err != nil {
		return err
	}
	s.layers.Start(ctx, "authentication", s.auth.Run)
	return nil
}

// listen loads the certificates and opens the port.
func (s *Server) listen(ctx context.Context) (err error) {
	secure := *s.config.SecureServing
	if secure.ServerCert.CertKey.CertFile == "" && secure.ServerCert.CertDirectory == "" {
		secure.ServerCert.CertDirectory = s.dir
	}
	secure.ServerCert.PairName = "relay"
	names := []string{"localhost", "kubernetes", "kubernetes.default", "kubernetes.default.svc"}
	if name, err := os.Hostname(); err == nil {
		names = append(names, name)
	}
	if err := secure.MaybeDefaultWithSelfSignedCerts("localhost", names, []net.IP{net.IPv4(127, 0, 0, 1), net.IPv6loopback}); err != nil {
		return fmt.Errorf("relay: serving certificate: %w", err)
	}
	pair := secure.ServerCert.CertKey
	if s.certificates, err = servingcert.Load(pair.CertFile, pair.KeyFile, s.auth.ClientCA, &secure); err != nil {
		return err
	}
	s.layers.Start(ctx, "certificates", s.certificates.Run)
	address := net.JoinHostPort(secure.BindAddress.String(), strconv.Itoa(secure.BindPort))
	if s.listener, _, err = options.CreateListener("", address, net.ListenConfig{}); err != nil {
		return fmt.Errorf("relay: %w", err)
	}
	return nil
}

// build makes the parts that serve.
func (s *Server) build(context.Context) (err error) {
	resources, err := s.registry()
	if err != nil {
		return err
	}
	proxied := relay.ProxyConfig{Upstream: s.upstream}
	if s.auth.ClientCA != nil {
		proxied.ClientCAs = s.auth.ClientCA.VerifyOptions
	}
	proxy, err := relay.NewProxy(proxied)
	if err != nil {
		return err
	}
	limit := s.config.MemoryBudget
	if most := debug.SetMemoryLimit(-1); limit == 0 && most < math.MaxInt64 { // -1 changes nothing
		limit = most / 2
	}
	s.relay, err = relay.New(relay.Config{
		Registry: resources, Client: s.client, Upstream: s.base, Proxy: proxy, Minor: s.minor, Follows: s.follows, Budget: relay.NewBudget(limit),
		ConsistentFrom: s.config.ConsistentFrom, Idle: s.config.Idle, ServeStale: s.config.ServeStale, Logger: s.config.Logger,
	})
	if err != nil {
		return err
	}
	last := newStale(s.config.ServeStale)
	health, err := path.NewAuthorizer([]string{"/healthz", "/livez", "/readyz"})
	if err != nil {
		return fmt.Errorf("relay: %w", err)
	}
	s.http, err = httpapi.New(httpapi.Config{
		Registry: resources, Listener: s.listener, TLS: s.certificates.TLS(), Version: &s.config.Version,
		Access: httpapi.Access{
			Authenticator: last.authenticator(s.auth.Authenticator), Generation: s.auth.Generation, Audiences: s.auth.Audiences,
			Authorizer: union.New(health, last.authorizer(s.auth.Authorizer)), Revocation: s.auth.Revocation(),
		},
		Pages: httpapi.Pages{
			HealthChecks: []healthz.HealthChecker{healthz.PingHealthz}, LiveChecks: []healthz.HealthChecker{healthz.PingHealthz},
			ReadyChecks: []healthz.HealthChecker{healthz.PingHealthz}, StatusPage: true, NoProfiling: true,
		},
		Delegation: httpapi.Delegation{Relay: s.relay},
	})
	return err
}

// registry returns the built-in resources, which are not stored here.
func (s *Server) registry() (*registry.Registry, error) {
	client, err := kubernetes.NewForConfigAndClient(s.upstream, s.client)
	if err != nil {
		return nil, fmt.Errorf("relay: %w", err)
	}
	none := nothing{}
	return registry.New(registry.Config{
		Served: true, Store: none, Tail: kv.NewTail(kv.TailConfig{Store: none, Prefix: "/registry"}),
		Logger: s.config.Logger,
		Config: builtin.Config{
			ClientConfig: s.upstream, Informers: informers.NewSharedInformerFactory(client, 0),
			Authorizer: authorizerfactory.NewAlwaysDenyAuthorizer(),
		},
	})
}

// nothing is the store of a registry that stores nothing.
type nothing struct{ kv.Store }

// Replacements implements kv.Store.
func (nothing) Replacements() uint64 { return 0 }
