package server

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path"
	"path/filepath"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/kubernetes/cmd/kube-apiserver/app/options"
	"k8s.io/kubernetes/pkg/controlplane/reconcilers"
	kubeoptions "k8s.io/kubernetes/pkg/kubeapiserver/options"
	netutils "k8s.io/utils/net"

	"github.com/larder-io/larder/internal/auth"
)

// Config configures a Server. Make it with [Default] or [DefaultKubeAPIServer].
type Config struct {
	// DataDir holds the embedded etcd, the certificates and keys that Config does not
	// name, and the administrator's kubeconfig. It may be "" if ServerRunOptions names
	// etcd servers; no files are kept then.
	DataDir string
	// Scratch uses a temporary directory for certificates, keys and kubeconfig if DataDir is "". The
	// Server removes it when it ends. If the process is killed, the next Server with Scratch removes
	// it. Without DataDir and Scratch, only a serving certificate is generated, in
	// SecureServing.ServerCert.CertDirectory, and Config must name the other files, as for
	// kube-apiserver.
	Scratch bool

	// ServerRunOptions are kube-apiserver's options. If they name no etcd servers, etcd runs in
	// this process. If they name no client CA, the CA in DataDir/pki is used, and generated if it is
	// missing. The same applies to the signing key. AllowPrivileged sets a global variable of
	// upstream, so all servers of a process must have the same value.
	*options.ServerRunOptions
	// GitVersion is the version that the server reports; "" means the build's.
	GitVersion string

	Store Store

	// AnyPort lets the endpoint reconciler "lease" publish this server among endpoints with a different
	// port.
	AnyPort bool

	// MaxConnections limits open connections, and MaxConnectionsPerAddress those from one
	// IPv4 address or one IPv6 /64. 0 sets no limit, except that MaxConnections is then embedded.ReservedFiles with an
	// embedded etcd.
	MaxConnections, MaxConnectionsPerAddress int

	// RevokeWatches ends a watch after its user loses access.
	RevokeWatches bool

	// TestControllers runs the controllers of package testcontrollers in the process. They
	// must not run beside a kube-controller-manager.
	TestControllers bool

	// Beside, unless nil, runs in a goroutine when the server is ready. The server ends it, and waits
	// for it, before any other part. If Beside returns earlier, the server also ends.
	Beside func(context.Context) error

	// IndexLabels are the label keys of each resource that are always indexed. Caches index other
	// labels when selectors often need them.
	IndexLabels map[schema.GroupResource][]string

	// CacheBytes and CacheShares limit the memory of caches in addition to the objects: see
	// registry.Config.
	CacheBytes  int64
	CacheShares map[schema.GroupResource]int64

	// Checkpoints serves checkpoint.Path, where a user with the right to post can reset all objects to an earlier
	// state. It is for test suites.
	Checkpoints bool

	// Faults serves faults.Path, where a user with the right to put can inject faults into the requests of other
	// clients. It is for controller tests. A FaultSeed other than 0 injects random faults from the start.
	Faults    bool
	FaultSeed uint64

	// StatusPage serves a page at /larder/ that shows the state of the server to users with the right to get
	// /larder/status.
	StatusPage bool

	// SteerCollector lets package heap set the garbage collector's percentage while the Server runs.
	// The percentage applies to the whole process.
	SteerCollector bool

	// UserAgent is the user agent of the requests that the Server sends to itself. Its part before the
	// first slash is the field manager of the Server's writes.
	UserAgent string

	// Fatal is called with the reason when the embedded store has failed to write and must not
	// acknowledge any further write. Fatal must end the process; nil panics.
	Fatal func(error)

	// Notify is called with states of systemd's protocol: READY=1 when the Server serves,
	// and STOPPING=1 when it starts to stop. It may be nil.
	Notify func(state string)

	// Upgrade receives when another process should take over. Successor starts that process, with files
	// as its file descriptors from 3 on: the files of Inherited, in the order Listener, Ready, Lock.
	Upgrade   <-chan os.Signal
	Successor func(files []uintptr) (*os.Process, error)
	Inherited Inherited

	// Progress receives a few lines about the start and the end; nil discards them.
	Progress io.Writer
}

// Store configures the store beyond kube-apiserver's options.
type Store struct {
	// ReplayRevisions is the number of past revisions that are read from the store at the start, so that
	// clients can resume watches; 0 reads none. Up to 100,000 are read if they are less than 80 s old, and fewer from an
	// embedded etcd under a memory limit.
	ReplayRevisions int64
	// CheckInterval is how often each cache is compared with the store; 0 means never.
	CheckInterval time.Duration
	// QuotaBytes is the size of the embedded etcd's database at which writes are rejected; 0 means 8 GiB.
	QuotaBytes int64
	// DefragmentInterval is how often the embedded etcd's database is checked, and defragmented if at least half of it
	// is free; 0 means never.
	DefragmentInterval time.Duration
	// UnsafeNoFsync disables the embedded etcd's fsync: acknowledged writes may be lost when
	// the machine stops.
	UnsafeNoFsync bool
}

func (s *Store) validate(external bool) error {
	switch {
	case s.ReplayRevisions < 0:
		return fmt.Errorf("--replay-revisions must not be negative, is %d", s.ReplayRevisions)
	case s.CheckInterval < 0:
		return fmt.Errorf("--consistency-check-interval must not be negative, is %v", s.CheckInterval)
	case s.QuotaBytes < 0:
		return fmt.Errorf("--quota-backend-bytes must not be negative, is %d", s.QuotaBytes)
	case s.DefragmentInterval < 0:
		return fmt.Errorf("--defrag-interval must not be negative, is %v", s.DefragmentInterval)
	case external && s.QuotaBytes > 0:
		return errors.New("--quota-backend-bytes applies to the embedded etcd and cannot be used with --etcd-servers")
	}
	return nil
}

// DefaultIssuer is the service-account issuer when none is named.
const DefaultIssuer = "https://kubernetes.default.svc.cluster.local"

// Default returns the configuration of `larder serve` without flags.
func Default() Config {
	up := options.NewServerRunOptions()
	up.SecureServing.BindAddress, up.SecureServing.ServerCert.CertDirectory = net.IPv4(127, 0, 0, 1), ""
	up.Authorization.Modes = []string{auth.ModeRBAC}
	up.ServiceClusterIPRanges = kubeoptions.DefaultServiceIPCIDR.String()
	// Network plugins and kube-proxy run as privileged pods. RBAC, which is on by default, restricts the users that
	// can create them.
	up.AllowPrivileged = true
	return Config{
		DataDir:          "larder-data",
		ServerRunOptions: up,
		Store:            Store{ReplayRevisions: 10_000, CheckInterval: 10 * time.Minute, DefragmentInterval: time.Hour},
		StatusPage:       true,
		RevokeWatches:    true,
		UserAgent:        "larder",
	}
}

// DefaultKubeAPIServer returns kube-apiserver's default configuration.
func DefaultKubeAPIServer() Config {
	c := Default()
	c.DataDir, c.ServerRunOptions, c.StatusPage = "", options.NewServerRunOptions(), false
	c.UserAgent, c.AnyPort = kubeAPIServerUserAgent(), true
	return c
}

// complete sets the defaults of fields that are nil or empty. It copies upstream's options that it or
// completeKubeAPIServer changes, because the caller may use them for another server.
func (c *Config) complete() {
	up, core, etcd := *c.ServerRunOptions, *c.Options, *c.Etcd
	c.ServerRunOptions, up.Options, core.Etcd = &up, &core, &etcd
	etcd.StorageConfig.Prefix = path.Join("/", etcd.StorageConfig.Prefix) // apiserver pkg/storage/etcd3/store.go, New
	if c.Notify == nil {
		c.Notify = func(string) {}
	}
	if c.ServiceClusterIPRanges == "" {
		c.ServiceClusterIPRanges = kubeoptions.DefaultServiceIPCIDR.String()
	}
}

// generatesKeys reports whether certificates and keys that Config does not name are generated.
func (c *Config) generatesKeys() bool { return c.DataDir != "" || c.Scratch }

// external reports whether the store is an external etcd.
func (c *Config) external() bool { return len(c.Etcd.StorageConfig.Transport.ServerList) > 0 }

// validate checks c as far as possible without I/O, and completes upstream's options.
func (c *Config) validate() error {
	if !c.external() && c.DataDir == "" {
		return errors.New("--etcd-servers or --data-dir must be specified")
	}
	errs := []error{c.completeKubeAPIServer(), c.validateKubeAPIServer(), c.Store.validate(c.external())}
	if c.MaxConnections < 0 || c.MaxConnectionsPerAddress < 0 {
		errs = append(errs, fmt.Errorf("--max-connections and --max-connections-per-address must not be negative, are %d and %d", c.MaxConnections, c.MaxConnectionsPerAddress))
	}
	if !c.generatesKeys() && c.SecureServing.ServerCert.CertDirectory == "" && c.SecureServing.ServerCert.CertKey.CertFile == "" {
		errs = append(errs, errors.New("--cert-dir or --tls-cert-file and --tls-private-key-file must be specified"))
	}
	if c.generatesKeys() && c.signing() == (auth.Signing{}) && len(c.Authentication.ServiceAccounts.KeyFiles) > 0 {
		errs = append(errs, errors.New("--service-account-key-file needs --service-account-signing-key-file"))
	}
	return errors.Join(errs...)
}

// checkAdvertised checks that the kubernetes service's endpoints can have the address public, as kubernetes
// cmd/kube-apiserver/app/options/validation.go does. public may be nil.
func (c *Config) checkAdvertised(public net.IP) error {
	services := &c.PrimaryServiceClusterIPRange
	if len(public) == 0 || c.EndpointReconcilerType == string(reconcilers.NoneEndpointReconcilerType) || netutils.IsIPv4CIDR(services) == netutils.IsIPv4(public) {
		return nil
	}
	return fmt.Errorf("--service-cluster-ip-range and --advertise-address: service IP family %q must match public address family %q", services, public)
}

// signing returns the key or external signer of service-account tokens.
func (c *Config) signing() auth.Signing {
	return auth.Signing{KeyFile: c.ServiceAccountSigningKeyFile, Endpoint: c.ServiceAccountSigningEndpoint}
}

// access returns the configuration of package auth. clientCA is the CA of client certificates. Fields of c
// that are not set get defaults.
func (c *Config) access(clientCA string) auth.Config {
	authentication, authorization, signing := *c.Authentication, *c.Authorization, c.signing()
	accounts := *authentication.ServiceAccounts
	if len(accounts.Issuers) == 0 && c.generatesKeys() {
		accounts.Issuers = []string{DefaultIssuer}
	}
	if signing == (auth.Signing{}) && c.generatesKeys() {
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

// EtcdDir returns the directory of the embedded etcd below a Config's DataDir.
func EtcdDir(dataDir string) string { return filepath.Join(dataDir, "etcd") }

func (c *Config) pkiDir() string { return filepath.Join(c.DataDir, "pki") }
