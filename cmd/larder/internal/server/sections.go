package server

import (
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"time"

	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/kubernetes/pkg/controlplane/reconcilers"
	netutils "k8s.io/utils/net"

	"github.com/larder-io/larder/internal/registry/builtin"
)

// Serving configures the listener, its certificate and the limits of requests.
type Serving struct {
	BindAddress net.IP
	// AdvertiseAddress is published as the endpoint of the kubernetes service;
	// nil picks the bind address or that of the default route, and publishes none if
	// the bind address is a loopback one.
	AdvertiseAddress net.IP
	Port             int
	// ExternalHost is the name at which other machines reach this server; "" is
	// AdvertiseAddress.
	ExternalHost string
	// CertDir holds apiserver.crt and apiserver.key, which are made when they
	// are missing; "" is DataDir/pki.
	CertDir string
	// CertFile and KeyFile, given together, are used instead of CertDir.
	CertFile, KeyFile string

	// RequestTimeout bounds every request but the long-running.
	RequestTimeout time.Duration
	// MinRequestTimeout is the least time after which the server ends a watch whose client
	// set no timeout.
	MinRequestTimeout time.Duration
	// ShutdownDelay is how long requests are still served after /readyz has begun to fail.
	ShutdownDelay time.Duration

	// MaxConnections bounds open connections, MaxConnectionsPerAddress those from one
	// IPv4 address or one /64 of IPv6 addresses; 0 sets no bound.
	MaxConnections, MaxConnectionsPerAddress int
}

// Store configures where objects are stored.
type Store struct {
	// Servers are the endpoints of an etcd cluster; none starts one inside
	// this process.
	Servers []string
	// CAFile verifies etcd's certificates; CertFile and KeyFile hold the client certificate.
	CAFile, CertFile, KeyFile string
	// Prefix is the prefix of every key. A missing slash at its start is added, slashes at its
	// end are dropped, and "" is "/".
	Prefix string
	// CompactionInterval is how often old revisions are compacted; 0 is never.
	CompactionInterval time.Duration
	// ReplayRevisions bounds how many old revisions are read from the store at the start, so
	// that clients can resume watches; 0 reads none.
	ReplayRevisions int64
	// CheckInterval is how often each cache is compared with the store; 0 is
	// never.
	CheckInterval time.Duration
	// QuotaBytes is how large the embedded etcd's database may grow before writes are
	// refused; 0 is 8 GiB.
	QuotaBytes int64
	// DefragmentInterval is how often the embedded etcd's database is defragmented, if most
	// of it is free; 0 is never.
	DefragmentInterval time.Duration
	// UnsafeNoFsync disables the embedded etcd's fsync: acknowledged writes may be lost when
	// the machine stops.
	UnsafeNoFsync bool
}

// Services configures the addresses and ports that Services are given, and the endpoints of
// the kubernetes service.
type Services struct {
	// ClusterIPRanges are one range or, for dual stack, two of different families; none
	// means 10.0.0.0/24.
	ClusterIPRanges []*net.IPNet
	NodePorts       utilnet.PortRange
	// EndpointReconciler says how the endpoints of the kubernetes service are kept:
	// "lease", "master-count" or "none".
	EndpointReconciler reconcilers.Type
	// AnyPort has "lease" enter endpoints that other servers have published with another port.
	AnyPort bool
	// Instances is how many servers there are, for "master-count".
	Instances int
}

func (s *Serving) validate() error {
	switch {
	case (s.CertFile == "") != (s.KeyFile == ""):
		return errors.New("--tls-cert-file and --tls-private-key-file must be given together")
	case s.RequestTimeout == 0: // kube-apiserver starts, and is never ready
		return errors.New("--request-timeout must not be 0: no request would be answered in time")
	case s.MaxConnections < 0:
		return fmt.Errorf("--max-connections must not be negative, is %d", s.MaxConnections)
	case s.MaxConnectionsPerAddress < 0:
		return fmt.Errorf("--max-connections-per-address must not be negative, is %d", s.MaxConnectionsPerAddress)
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

// largestBitmap is how many bits tell the addresses of a range apart, at most, if they are
// allocated from a bitmap.
const largestBitmap = 20

// validate applies kubernetes cmd/kube-apiserver/app/options/validation.go and
// pkg/controlplane/apiserver/options/options.go, ServiceIPRange, in their words.
func (s *Services) validate() error {
	ranges := s.ClusterIPRanges
	if ones, bits := ranges[0].Mask.Size(); bits-ones < 3 {
		return errors.New("error determining service IP ranges for primary service cidr: the service cluster IP range must be at least 8 IP addresses")
	}
	if len(ranges) > 2 {
		return errors.New("--service-cluster-ip-range must not contain more than two entries")
	}
	for i, r := range ranges {
		if ones, bits := r.Mask.Size(); bits-ones > largestBitmap && builtin.BitmapAddresses() {
			flag := [...]string{"--service-cluster-ip-range", "--service-cluster-ip-range[1]"}[i]
			return fmt.Errorf("specified %s is too large; for %d-bit addresses, the mask must be >= %d", flag, bits, bits-largestBitmap)
		}
	}
	if len(ranges) == 2 && (ranges[0].IP.To4() == nil) == (ranges[1].IP.To4() == nil) {
		return errors.New("--service-cluster-ip-range[0] and --service-cluster-ip-range[1] must be of different IP family")
	}
	if !slices.Contains(reconcilers.AllTypes, s.EndpointReconciler) {
		return fmt.Errorf("--endpoint-reconciler-type must be one of %s, not %q", strings.Join(reconcilers.AllTypes.Names(), ", "), s.EndpointReconciler)
	}
	if s.Instances <= 0 {
		return fmt.Errorf("--apiserver-count should be a positive number, but value '%d' provided", s.Instances)
	}
	return nil
}

// reach checks that endpoints of the kubernetes service can have the address, which may be nil:
// kubernetes cmd/kube-apiserver/app/options/validation.go.
func (s *Services) reach(public net.IP) error {
	r := s.ClusterIPRanges[0]
	if len(public) == 0 || public.IsUnspecified() || s.EndpointReconciler == reconcilers.NoneEndpointReconcilerType || netutils.IsIPv4CIDR(r) == netutils.IsIPv4(public) {
		return nil
	}
	return fmt.Errorf("service IP family %q must match public address family %q", r, public)
}

// Aggregation configures how aggregated API servers are reached.
type Aggregation struct {
	// CertFile and KeyFile, given together, are the client certificate by which aggregated
	// servers recognise this one as a front proxy.
	CertFile, KeyFile string
	// EndpointRouting connects to the endpoints of their services instead of cluster IPs.
	EndpointRouting bool
	// RejectRedirects does not pass their redirects on to clients.
	RejectRedirects bool
}

func (a *Aggregation) validate() error {
	if (a.CertFile == "") != (a.KeyFile == "") {
		return errors.New("--proxy-client-cert-file and --proxy-client-key-file must be given together")
	}
	return nil
}

// check reads the files, so that a bad one is an error at the start: later, the aggregator
// reloads them when they change.
func (a *Aggregation) check() error {
	if a.CertFile == "" {
		return nil
	}
	if _, err := tls.LoadX509KeyPair(a.CertFile, a.KeyFile); err != nil {
		return fmt.Errorf("server: --proxy-client-cert-file: %w", err)
	}
	return nil
}

// Encryption configures how values are encrypted in the store.
type Encryption struct {
	// File names an EncryptionConfiguration; "" encrypts nothing.
	File string
	// Reload applies changes of File while the server runs, within a minute.
	Reload bool
}

func (e *Encryption) validate() error {
	if e.Reload && e.File == "" {
		return errors.New("--encryption-provider-config-automatic-reload must be set with --encryption-provider-config")
	}
	return nil
}

// InFlight configures how many requests are served at once.
type InFlight struct {
	// Fairness enables API Priority and Fairness, which divides the sum of Most and
	// MostMutating among the priority levels. Without it, Most bounds reading requests and
	// MostMutating the others; 0 sets no bound.
	Fairness           bool
	Most, MostMutating int
}

func (c *InFlight) validate() error {
	if c.Fairness && c.Most+c.MostMutating <= 0 {
		return fmt.Errorf("invalid configuration: MaxRequestsInFlight=%d and MaxMutatingRequestsInFlight=%d; they must add up to something positive", c.Most, c.MostMutating)
	}
	return nil
}
