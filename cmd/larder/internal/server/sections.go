package server

import (
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

// Store configures the store beyond kube-apiserver's options.
type Store struct {
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
		return errors.New("--quota-backend-bytes is of the embedded etcd, and --etcd-servers names another")
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
