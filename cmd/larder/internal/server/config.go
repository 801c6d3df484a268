package server

import (
	"context"
	"errors"
	"io"
	"net"
	"path"
	"path/filepath"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/apiserver/pkg/server/options"
	"k8s.io/kubernetes/pkg/controlplane/reconcilers"
	kubeoptions "k8s.io/kubernetes/pkg/kubeapiserver/options"

	"github.com/larder-io/larder/internal/admission"
	"github.com/larder-io/larder/internal/auth"
)

// Config configures a Server. A field's comment says what its zero value means; [Default]
// returns what `larder serve` starts with.
type Config struct {
	// DataDir holds the embedded etcd, the certificates and keys that Config does not
	// name, and the administrator's kubeconfig. It may be "" if Store.Servers names an
	// etcd cluster: nothing is kept then.
	DataDir string
	// Scratch lets the certificates, keys and kubeconfig be made without a DataDir, too, in
	// a temporary directory. The Server removes it when it ends; if the process is killed,
	// the next Server with Scratch removes it. Without DataDir and Scratch, only a serving
	// certificate is made, in Serving.CertDir, and Config must name the other files, as for
	// kube-apiserver.
	Scratch bool

	Serving  Serving
	Store    Store
	Services Services

	// Authentication and Authorization are kube-apiserver's own options. If no client CA is
	// named, that in DataDir/pki is trusted, which is made if it is missing; service
	// accounts' issuers and keys have defaults, too.
	Authentication *kubeoptions.BuiltInAuthenticationOptions
	Authorization  *kubeoptions.BuiltInAuthorizationOptions
	// Signing says with which key, or by which external signer, service-account tokens are
	// signed. The zero value makes a key in DataDir/pki.
	Signing auth.Signing

	// AllowPrivileged lets pods have privileged containers. It is a global variable of
	// upstream's: all servers in a process must have the same.
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

	// Upstream holds kube-apiserver's other options; nil means its defaults.
	Upstream *Upstream

	// KeepWatches lets a watch go on when its user has lost the right to it.
	KeepWatches bool

	// TestControllers runs the controllers of package testcontrollers in the process. They
	// must not run beside a kube-controller-manager.
	TestControllers bool

	// Beside, if not nil, is run in a goroutine once the server is ready. It is ended, and
	// awaited, before any other part. If it ends by itself, so does the server.
	Beside func(context.Context) error

	// EventTTL is how long events are kept; less than a second keeps them for ever.
	EventTTL time.Duration

	// IndexLabels are the label keys of each resource that are always indexed, beside those
	// that a cache learns to index.
	IndexLabels map[schema.GroupResource][]string

	// CacheBytes and CacheShares bound the memory that caches use beside the objects
	// themselves: see registry.Config.
	CacheBytes  int64
	CacheShares map[schema.GroupResource]int64

	// Checkpoints enables checkpoint.Path, where a user with the right to post can reset all
	// objects to an earlier state: for test suites.
	Checkpoints bool

	// StatusPage serves a page at /larder/ that shows how the server is to those who may get
	// /larder/status.
	StatusPage bool

	// SteerCollector lets package heap set the garbage collector's percentage, which is the
	// whole process's, while the Server runs.
	SteerCollector bool

	// NativeHistograms gives the histograms of requests to etcd native buckets, too, as the feature
	// gate of that name does with upstream's.
	NativeHistograms bool

	// UserAgent is that of the requests that the Server sends to itself. Up to the first slash it
	// is the field manager of what the Server writes.
	UserAgent string

	// Fatal is called with the reason when the embedded store has failed to write: it must not
	// acknowledge any further write. Fatal must end the process; nil panics.
	Fatal func(error)

	// Notify is called with the states of systemd's protocol: READY=1 when the Server serves,
	// and STOPPING=1 when it begins to end. It may be nil.
	Notify func(state string)

	// Progress receives a few lines about the start and the end; nil discards them.
	Progress io.Writer
	// Terminal says that Progress is a terminal: the count of loaded objects is rewritten in
	// place.
	Terminal bool
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
		},
		Store:          Store{Prefix: "/registry", CompactionInterval: 5 * time.Minute, ReplayRevisions: 10_000, CheckInterval: 10 * time.Minute, DefragmentInterval: time.Hour},
		Authentication: kubeoptions.NewBuiltInAuthenticationOptions().WithAll(),
		Authorization:  authorizeByRoles(),
		// Network plugins and kube-proxy run as privileged pods. RBAC, which is on by
		// default, restricts who may create them.
		AllowPrivileged: true,
		InFlight:        InFlight{Fairness: true, Most: 400, MostMutating: 200},
		Aggregation:     Aggregation{RejectRedirects: true},
		Services: Services{
			ClusterIPRanges: []*net.IPNet{defaultRange()},
			NodePorts:       utilnet.PortRange{Base: 30000, Size: 2768},

			EndpointReconciler: reconcilers.LeaseEndpointReconcilerType,
			Instances:          1,
		},
		EventTTL:   time.Hour,
		StatusPage: true,
		UserAgent:  "larder",
	}
}

// DefaultUpstream returns what kube-apiserver starts with when no flag is given.
func DefaultUpstream() Config {
	c := Default()
	c.DataDir, c.AllowPrivileged, c.Services.ClusterIPRanges = "", false, nil
	c.Serving.BindAddress, c.Serving.CertDir = net.IPv4zero, "/var/run/kubernetes"
	c.Authorization, c.StatusPage = kubeoptions.NewBuiltInAuthorizationOptions(), false
	c.UserAgent, c.Services.AnyPort = upstreamUserAgent(), true
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

// complete sets the defaults of fields that are nil or empty.
func (c *Config) complete() {
	if c.Upstream == nil {
		c.Upstream = NewUpstream()
	}
	c.Store.Prefix = path.Join("/", c.Store.Prefix) // apiserver pkg/storage/etcd3/store.go, New
	if c.Notify == nil {
		c.Notify = func(string) {}
	}
	if len(c.Services.ClusterIPRanges) == 0 {
		c.Services.ClusterIPRanges = []*net.IPNet{defaultRange()}
	}
}

// provisions reports whether certificates and keys that Config does not name are made.
func (c *Config) provisions() bool { return c.DataDir != "" || c.Scratch }

// Validate checks what can be known without I/O.
func (c *Config) Validate() error {
	errs := []error{c.Upstream.validate(c), c.Serving.validate(), c.Store.validate(), c.Services.validate(), c.Services.reach(c.Serving.AdvertiseAddress), c.InFlight.validate(), c.Aggregation.validate(), c.Encryption.validate(), auth.ValidateAudit(c.Audit)}
	if len(c.Store.Servers) == 0 && c.DataDir == "" {
		return errors.New("--etcd-servers or --data-dir must be specified")
	}
	issuers := c.Authentication.ServiceAccounts.Issuers
	issued, signed := len(issuers) > 0 && issuers[0] != "", c.Signing != (auth.Signing{})
	switch {
	case !c.provisions() && !issued && !signed && len(c.Authentication.APIAudiences) == 0:
		errs = append(errs, errors.New("--service-account-signing-key-file and --service-account-issuer are required flags"))
	case !c.provisions() && !(issued && signed):
		errs = append(errs, errors.New("--service-account-signing-key-file, --service-account-issuer, and --api-audiences should be specified together"))
	case !c.provisions() && c.Serving.CertDir == "" && c.Serving.CertFile == "":
		errs = append(errs, errors.New("--cert-dir or --tls-cert-file and --tls-private-key-file must be specified"))
	}
	if c.provisions() && !signed && len(c.Authentication.ServiceAccounts.KeyFiles) > 0 {
		errs = append(errs, errors.New("--service-account-key-file needs --service-account-signing-key-file"))
	}
	config := c.access(c.Authentication.ClientCert.ClientCA)
	errs = append(errs, config.Validate())
	if c.Admission != nil {
		errs = append(errs, admission.Validate(c.Admission))
	}
	return errors.Join(errs...)
}

// access returns the configuration of package auth with clientCA as the authority of client
// certificates, and with defaults for the fields of c that are not set.
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

// saKeyName is the name of the file with the key that signs service-account tokens.
const saKeyName = "sa.key"

// EtcdDir is the directory of the embedded etcd below a Config's DataDir.
func EtcdDir(dataDir string) string { return filepath.Join(dataDir, "etcd") }

func (c *Config) pkiDir() string { return filepath.Join(c.DataDir, "pki") }

func (c *Config) certDir() string {
	if c.Serving.CertDir != "" {
		return c.Serving.CertDir
	}
	return c.pkiDir()
}
