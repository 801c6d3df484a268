package server

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"path"
	"path/filepath"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/kubernetes/pkg/controlplane/reconcilers"

	"github.com/larder-io/larder/internal/admission"
	"github.com/larder-io/larder/internal/auth"
)

// Config configures a Server. Make it with [Default] or [DefaultUpstream]; a field's comment says
// what its zero value means.
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

	// Upstream holds kube-apiserver's options. If they name no etcd servers, an etcd runs in this
	// process; if no client CA, that in DataDir/pki is trusted, which is made if it is missing.
	// Without a signing key one is made there, and service accounts' issuers have a default, too.
	*Upstream

	Store    Store
	Services Services

	// AllowPrivileged lets pods have privileged containers. It is a global variable of
	// upstream's: all servers in a process must have the same.
	AllowPrivileged bool

	// MaxConnections bounds open connections, MaxConnectionsPerAddress those from one
	// IPv4 address or one /64 of IPv6 addresses; 0 sets no bound.
	MaxConnections, MaxConnectionsPerAddress int

	// KeepWatches lets a watch go on when its user has lost the right to it.
	KeepWatches bool

	// TestControllers runs the controllers of package testcontrollers in the process. They
	// must not run beside a kube-controller-manager.
	TestControllers bool

	// Beside, if not nil, is run in a goroutine once the server is ready. It is ended, and
	// awaited, before any other part. If it ends by itself, so does the server.
	Beside func(context.Context) error

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
	up := NewUpstream()
	up.SecureServing.BindAddress, up.SecureServing.ServerCert.CertDirectory = net.IPv4(127, 0, 0, 1), ""
	up.Authorization.Modes = []string{auth.ModeRBAC}
	return Config{
		DataDir:  "larder-data",
		Upstream: up,
		Store:    Store{ReplayRevisions: 10_000, CheckInterval: 10 * time.Minute, DefragmentInterval: time.Hour},
		// Network plugins and kube-proxy run as privileged pods. RBAC, which is on by
		// default, restricts who may create them.
		AllowPrivileged: true,
		Services: Services{
			ClusterIPRanges: []*net.IPNet{defaultRange()},
			NodePorts:       utilnet.PortRange{Base: 30000, Size: 2768},

			EndpointReconciler: reconcilers.LeaseEndpointReconcilerType,
			Instances:          1,
		},
		StatusPage: true,
		UserAgent:  "larder",
	}
}

// DefaultUpstream returns what kube-apiserver starts with when no flag is given.
func DefaultUpstream() Config {
	c := Default()
	c.DataDir, c.AllowPrivileged, c.Services.ClusterIPRanges = "", false, nil
	c.Upstream, c.StatusPage = NewUpstream(), false
	c.UserAgent, c.Services.AnyPort = upstreamUserAgent(), true
	return c
}

// defaultRange is of kubernetes pkg/kubeapiserver/options, DefaultServiceIPCIDR.
func defaultRange() *net.IPNet {
	return &net.IPNet{IP: net.IPv4(10, 0, 0, 0).To4(), Mask: net.CIDRMask(24, 32)}
}

// complete sets the defaults of fields that are nil or empty.
func (c *Config) complete() {
	etcd := &c.Etcd.StorageConfig
	etcd.Prefix = path.Join("/", etcd.Prefix) // apiserver pkg/storage/etcd3/store.go, New
	if c.Notify == nil {
		c.Notify = func(string) {}
	}
	if len(c.Services.ClusterIPRanges) == 0 {
		c.Services.ClusterIPRanges = []*net.IPNet{defaultRange()}
	}
}

// provisions reports whether certificates and keys that Config does not name are made.
func (c *Config) provisions() bool { return c.DataDir != "" || c.Scratch }

// external reports whether the store is an etcd outside of this process.
func (c *Config) external() bool { return len(c.Etcd.StorageConfig.Transport.ServerList) > 0 }

// Validate checks what can be known without I/O.
func (c *Config) Validate() error {
	if !c.external() && c.DataDir == "" {
		return errors.New("--etcd-servers or --data-dir must be specified")
	}
	errs := []error{c.Upstream.validate(c), c.Store.validate(c.external()), c.Services.validate(), c.Services.reach(c.GenericServerRunOptions.AdvertiseAddress), auth.ValidateAudit(c.Audit)}
	if c.MaxConnections < 0 || c.MaxConnectionsPerAddress < 0 {
		errs = append(errs, fmt.Errorf("--max-connections and --max-connections-per-address must not be negative, are %d and %d", c.MaxConnections, c.MaxConnectionsPerAddress))
	}
	issuers := c.Authentication.ServiceAccounts.Issuers
	issued, signed := len(issuers) > 0 && issuers[0] != "", c.signing() != (auth.Signing{})
	switch {
	case !c.provisions() && !issued && !signed && len(c.Authentication.APIAudiences) == 0:
		errs = append(errs, errors.New("--service-account-signing-key-file and --service-account-issuer are required flags"))
	case !c.provisions() && !(issued && signed):
		errs = append(errs, errors.New("--service-account-signing-key-file, --service-account-issuer, and --api-audiences should be specified together"))
	case !c.provisions() && c.SecureServing.ServerCert.CertDirectory == "" && c.SecureServing.ServerCert.CertKey.CertFile == "":
		errs = append(errs, errors.New("--cert-dir or --tls-cert-file and --tls-private-key-file must be specified"))
	}
	if c.provisions() && !signed && len(c.Authentication.ServiceAccounts.KeyFiles) > 0 {
		errs = append(errs, errors.New("--service-account-key-file needs --service-account-signing-key-file"))
	}
	config := c.access(c.Authentication.ClientCert.ClientCA)
	return errors.Join(append(errs, config.Validate(), admission.Validate(c.Admission))...)
}

// signing says with which key, or by which external signer, service-account tokens are signed.
func (c *Config) signing() auth.Signing {
	return auth.Signing{KeyFile: c.ServiceAccountSigningKeyFile, Endpoint: c.ServiceAccountSigningEndpoint}
}

// access returns the configuration of package auth with clientCA as the CA of client
// certificates, and with defaults for the fields of c that are not set.
func (c *Config) access(clientCA string) auth.Config {
	authentication, authorization, signing := *c.Authentication, *c.Authorization, c.signing()
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
	return cmp.Or(c.SecureServing.ServerCert.CertDirectory, c.pkiDir())
}
