package server

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/apiserver/pkg/server/options"
	"k8s.io/kubernetes/pkg/controlplane/reconcilers"
	kubeoptions "k8s.io/kubernetes/pkg/kubeapiserver/options"

	"github.com/larder-io/larder/internal/admission"
	"github.com/larder-io/larder/internal/auth"
)

// Config is everything a Larder process can be told. The zero value of a field
// is what its comment says; [Default] fills in what `larder serve` starts with.
type Config struct {
	// DataDir holds the embedded etcd, the certificates and keys that nobody
	// gave, and the administrator's kubeconfig. It may be "" where Store.Servers
	// names an etcd cluster: nothing is kept then.
	DataDir string
	// Scratch has the certificates, keys and kubeconfig made without a DataDir, too:
	// in a temporary directory that goes when the Server ends, or, if it is killed, when
	// the next one makes its own. Without either, only a serving certificate is made, in
	// Serving.CertDir, and the rest must be named, as for kube-apiserver.
	Scratch bool

	Serving  Serving
	Store    Store
	Services Services

	// Authentication says which credentials are accepted, Authorization who may do what:
	// kube-apiserver's own options. Certificates are accepted of the authority in
	// DataDir/pki, which is made when missing, if no other is named; service accounts'
	// issuers and keys have defaults, too.
	Authentication *kubeoptions.BuiltInAuthenticationOptions
	Authorization  *kubeoptions.BuiltInAuthorizationOptions
	// Signing says who signs service-account tokens. The zero value makes a key in
	// DataDir/pki.
	Signing auth.Signing

	// AllowPrivileged lets pods have privileged containers. It is upstream's own switch,
	// and one for the whole process.
	AllowPrivileged bool

	// Admission says which plugins decide what may be written; nil means those that
	// kube-apiserver has by default.
	Admission *admission.Options

	// InFlight says how many requests are served at once.
	InFlight InFlight

	// Aggregation says how other API servers are reached.
	Aggregation Aggregation

	// Encryption says how values are encrypted in the store.
	Encryption Encryption

	// Audit says what is recorded of requests, and where; nil records nothing.
	Audit *options.AuditOptions

	// Upstream is what else kube-apiserver can be told; nil means its defaults.
	Upstream *Upstream

	// KeepWatches lets watches go on whose senders have lost the right to them.
	KeepWatches bool

	// TestControllers runs the controllers of package testcontrollers in the process. They
	// must not run beside a kube-controller-manager.
	TestControllers bool

	// Beside, if not nil, is run in a goroutine once the server is ready, and told to end,
	// and awaited, before anything else ends. If it ends before, so does the server.
	Beside func(context.Context) error

	// EventTTL is how long events are kept.
	EventTTL time.Duration

	// IndexLabels are label keys of resources by whose values objects are found
	// without a search, beside those that are learnt.
	IndexLabels map[schema.GroupResource][]string

	// CacheBytes bounds what the caches keep beside the present objects, CacheShares
	// what single resources may have of that: see registry.Config.
	CacheBytes  int64
	CacheShares map[schema.GroupResource]int64

	// Checkpoints lets who may post to checkpoint.Path bring all objects back to a state
	// that they had: for test suites.
	Checkpoints bool

	// SteerCollector fits the percentage of the garbage collector, which belongs to the
	// whole program, to the heap while the Server runs.
	SteerCollector bool

	// Fatal is called with the reason when the embedded store cannot store something: no
	// write may be acknowledged any more. It must end the process; nil panics.
	Fatal func(error)

	// Notify is told the state of the process, READY=1 when it serves and STOPPING=1 when
	// it begins to end, as systemd's services tell it; nil tells nobody.
	Notify func(state string)

	// Progress receives a few lines about the start and the end; nil discards them.
	Progress io.Writer
	// Terminal rewrites the running count on Progress in place.
	Terminal bool
}

// Serving says where and how requests are taken.
type Serving struct {
	BindAddress net.IP
	// AdvertiseAddress is published as the endpoint of the kubernetes service;
	// nil picks the bind address or that of the default route, and publishes none if
	// the bind address is a loopback one.
	AdvertiseAddress net.IP
	Port             int
	// ExternalHost is the name by which others are told to find this server; "" is
	// AdvertiseAddress.
	ExternalHost string
	// CertDir holds apiserver.crt and apiserver.key, which are made when they
	// are missing; "" is DataDir/pki.
	CertDir string
	// CertFile and KeyFile, given together, are used instead of CertDir.
	CertFile, KeyFile string

	// RequestTimeout bounds every request but the long-running.
	RequestTimeout time.Duration
	// MinRequestTimeout is the least time after which the server ends a watch
	// whose client named none.
	MinRequestTimeout time.Duration
	// ShutdownDelay is how long requests are still served after /readyz turned red.
	ShutdownDelay time.Duration

	// MaxConnections bounds open connections, MaxConnectionsPerAddress those from one
	// IPv4 address or one /64 of IPv6 addresses; 0 sets no such bound.
	MaxConnections, MaxConnectionsPerAddress int
}

// Store says where objects are kept.
type Store struct {
	// Servers are the endpoints of an etcd cluster; none starts one inside
	// this process.
	Servers []string
	// CAFile, CertFile and KeyFile are the client's side of etcd's TLS.
	CAFile, CertFile, KeyFile string
	// Prefix begins every key.
	Prefix string
	// CompactionInterval is how often old revisions are given up; 0 never does.
	CompactionInterval time.Duration
	// ReplayRevisions is how many revisions that the store still has are replayed
	// at the start, at most, so that clients can go on watching where they were;
	// 0 replays none.
	ReplayRevisions int64
	// CheckInterval is how often each cache is compared with the store; 0 is
	// never.
	CheckInterval time.Duration
	// QuotaBytes is how large the embedded etcd's database may grow before writes are
	// refused; 0 is 8 GiB.
	QuotaBytes int64
	// DefragmentInterval is how often the embedded etcd's database is made smaller, if
	// most of it is free; 0 never is.
	DefragmentInterval time.Duration
	// UnsafeNoFsync lets the embedded etcd lose what the operating system had
	// not written when the machine stops.
	UnsafeNoFsync bool
}

// Services says which addresses and ports Services are given.
type Services struct {
	// ClusterIPRanges are one range or, for dual stack, two of different families; none
	// means 10.0.0.0/24.
	ClusterIPRanges []*net.IPNet
	NodePorts       utilnet.PortRange
	// EndpointReconciler says how the endpoints of the kubernetes service are kept:
	// "lease", "master-count" or "none".
	EndpointReconciler reconcilers.Type
	// Instances is how many servers there are, for "master-count".
	Instances int
}

// DefaultIssuer is the service-account issuer when none is named.
const DefaultIssuer = "https://kubernetes.default.svc.cluster.local"

// Default returns what `larder serve` starts with when no flag is given.
func Default() Config {
	return Config{
		DataDir: "larder-data",
		Serving: Serving{
			BindAddress:       net.IPv4(127, 0, 0, 1),
			Port:              6443,
			RequestTimeout:    time.Minute,
			MinRequestTimeout: 30 * time.Minute,
			MaxConnections:    1 << 16,
		},
		Store:          Store{Prefix: "/registry", CompactionInterval: 5 * time.Minute, ReplayRevisions: 10_000, CheckInterval: 10 * time.Minute, DefragmentInterval: time.Hour},
		Authentication: kubeoptions.NewBuiltInAuthenticationOptions().WithAll(),
		Authorization:  authorizeByRoles(),
		// A newcomer's network plugin and kube-proxy are privileged pods, and only those
		// may make some whom roles allow it.
		AllowPrivileged: true,
		InFlight:        InFlight{Fairness: true, Most: 400, MostMutating: 200},
		Aggregation:     Aggregation{RejectRedirects: true},
		Services: Services{
			ClusterIPRanges: []*net.IPNet{defaultRange()},
			NodePorts:       utilnet.PortRange{Base: 30000, Size: 2768},

			EndpointReconciler: reconcilers.LeaseEndpointReconcilerType,
			Instances:          1,
		},
		EventTTL: time.Hour,
	}
}

// DefaultUpstream returns what kube-apiserver starts with when no flag is given.
func DefaultUpstream() Config {
	c := Default()
	c.DataDir, c.AllowPrivileged, c.Services.ClusterIPRanges = "", false, nil
	c.Serving.BindAddress, c.Serving.CertDir = net.IPv4zero, "/var/run/kubernetes"
	c.Authorization = kubeoptions.NewBuiltInAuthorizationOptions()
	return c
}

func authorizeByRoles() *kubeoptions.BuiltInAuthorizationOptions {
	o := kubeoptions.NewBuiltInAuthorizationOptions()
	o.Modes = []string{auth.ModeRBAC}
	return o
}

// defaultRange is of kubernetes pkg/kubeapiserver/options, DefaultServiceIPCIDR.
func defaultRange() *net.IPNet {
	return &net.IPNet{IP: net.IPv4(10, 0, 0, 0).To4(), Mask: net.CIDRMask(24, 32)}
}

// complete fills in what was left open.
func (c *Config) complete() {
	if c.Upstream == nil {
		c.Upstream = NewUpstream()
	}
	if c.Notify == nil {
		c.Notify = func(string) {}
	}
	if len(c.Services.ClusterIPRanges) == 0 {
		c.Services.ClusterIPRanges = []*net.IPNet{defaultRange()}
	}
}

// provisions reports whether what nobody gave is made.
func (c *Config) provisions() bool { return c.DataDir != "" || c.Scratch }

// Validate checks what can be known without I/O.
func (c *Config) Validate() error {
	errs := []error{c.Upstream.validate(c), c.Serving.validate(), c.Store.validate(), c.Services.validate(), c.InFlight.validate(), c.Aggregation.validate(), c.Encryption.validate(), auth.ValidateAudit(c.Audit)}
	if len(c.Store.Servers) == 0 && c.DataDir == "" {
		return errors.New("--etcd-servers or --data-dir must be specified")
	}
	switch signed := c.Signing != (auth.Signing{}) && len(c.Authentication.ServiceAccounts.Issuers) > 0; {
	case !c.provisions() && !signed:
		errs = append(errs, errors.New("--service-account-signing-key-file and --service-account-issuer are required flags"))
	case !c.provisions() && c.Serving.CertDir == "" && c.Serving.CertFile == "":
		errs = append(errs, errors.New("--cert-dir or --tls-cert-file and --tls-private-key-file must be specified"))
	}
	if c.EventTTL <= 0 {
		errs = append(errs, fmt.Errorf("--event-ttl must be positive, not %v", c.EventTTL))
	}
	if len(c.Authentication.ServiceAccounts.KeyFiles) > 0 && c.Signing == (auth.Signing{}) {
		errs = append(errs, errors.New("--service-account-key-file needs --service-account-signing-key-file"))
	}
	config := c.access(c.Authentication.ClientCert.ClientCA)
	errs = append(errs, config.Validate())
	if c.Admission != nil {
		errs = append(errs, admission.Validate(c.Admission))
	}
	return errors.Join(errs...)
}

func (s *Serving) validate() error {
	switch {
	case s.Port < 1 || s.Port > 65535:
		return fmt.Errorf("--secure-port must be between 1 and 65535, not %d", s.Port)
	case (s.CertFile == "") != (s.KeyFile == ""):
		return errors.New("--tls-cert-file and --tls-private-key-file must be given together")
	case s.RequestTimeout <= 0:
		return fmt.Errorf("--request-timeout must be positive, not %v", s.RequestTimeout)
	case s.MinRequestTimeout < 0:
		return fmt.Errorf("--min-request-timeout must not be negative, is %v", s.MinRequestTimeout)
	case s.MaxConnections < 1:
		return fmt.Errorf("--max-connections must be positive, not %d", s.MaxConnections)
	case s.MaxConnectionsPerAddress < 0:
		return fmt.Errorf("--max-connections-per-address must not be negative, is %d", s.MaxConnectionsPerAddress)
	case s.ShutdownDelay < 0:
		return fmt.Errorf("--shutdown-delay-duration must not be negative, is %v", s.ShutdownDelay)
	}
	return nil
}

func (s *Store) validate() error {
	switch {
	case s.CompactionInterval < 0:
		return fmt.Errorf("--etcd-compaction-interval must not be negative, is %v", s.CompactionInterval)
	case s.ReplayRevisions < 0:
		return fmt.Errorf("--replay-revisions must not be negative, is %d", s.ReplayRevisions)
	case s.CheckInterval < 0:
		return fmt.Errorf("--consistency-check-interval must not be negative, is %v", s.CheckInterval)
	case s.QuotaBytes < 0:
		return fmt.Errorf("--quota-backend-bytes must not be negative, is %d", s.QuotaBytes)
	case s.DefragmentInterval < 0:
		return fmt.Errorf("--defrag-interval must not be negative, is %v", s.DefragmentInterval)
	case len(s.Servers) > 0 && s.QuotaBytes > 0:
		return errors.New("--quota-backend-bytes is of the embedded etcd, and --etcd-servers names another")
	case (s.CertFile == "") != (s.KeyFile == ""):
		return errors.New("--etcd-certfile and --etcd-keyfile must be given together")
	case len(s.Servers) == 0 && s.CAFile+s.CertFile != "":
		return errors.New("--etcd-cafile, --etcd-certfile and --etcd-keyfile need --etcd-servers")
	}
	return nil
}

// validate applies kubernetes pkg/controlplane/apiserver/options/options.go, ServiceIPRange.
func (s *Services) validate() error {
	ranges := s.ClusterIPRanges
	if len(ranges) > 2 {
		return fmt.Errorf("--service-cluster-ip-range must hold one or two ranges, not %d", len(ranges))
	}
	for _, r := range ranges {
		if ones, bits := r.Mask.Size(); bits-ones < 3 {
			return fmt.Errorf("--service-cluster-ip-range %v must hold at least 8 addresses", r)
		}
	}
	if len(ranges) == 2 && (ranges[0].IP.To4() == nil) == (ranges[1].IP.To4() == nil) {
		return errors.New("--service-cluster-ip-range: two ranges must be of different IP families")
	}
	if !slices.Contains(reconcilers.AllTypes, s.EndpointReconciler) {
		return fmt.Errorf("--endpoint-reconciler-type must be one of %s, not %q", strings.Join(reconcilers.AllTypes.Names(), ", "), s.EndpointReconciler)
	}
	if s.Instances <= 0 {
		return fmt.Errorf("--apiserver-count should be a positive number, but value '%d' provided", s.Instances)
	}
	return nil
}

// access returns how requests are authenticated and authorized if clientCA signs
// certificates, with defaults for what New's caller left open.
func (c *Config) access(clientCA string) auth.Config {
	authentication, authorization, signing := *c.Authentication, *c.Authorization, c.Signing
	accounts := *authentication.ServiceAccounts
	if len(accounts.Issuers) == 0 && c.provisions() {
		accounts.Issuers = []string{DefaultIssuer}
	}
	if signing == (auth.Signing{}) && c.provisions() {
		signing.KeyFile = filepath.Join(c.pkiDir(), saKeyName)
	}
	if len(accounts.KeyFiles) == 0 && signing.KeyFile != "" {
		accounts.KeyFiles = []string{signing.KeyFile}
	}
	certificates := *authentication.ClientCert
	certificates.ClientCA = clientCA
	authentication.ServiceAccounts, authentication.ClientCert = &accounts, &certificates
	authorization.Complete()
	return auth.Config{Authentication: &authentication, Authorization: &authorization, Signing: signing}
}

func (c *Config) pkiDir() string { return filepath.Join(c.DataDir, "pki") }

func (c *Config) certDir() string {
	if c.Serving.CertDir != "" {
		return c.Serving.CertDir
	}
	return c.pkiDir()
}
