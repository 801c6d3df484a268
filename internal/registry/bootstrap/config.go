package bootstrap

import (
	"cmp"
	"context"
	"net"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	peerreconcilers "k8s.io/apiserver/pkg/reconcilers"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"
	"k8s.io/kubernetes/pkg/controlplane/controller/clusterauthenticationtrust"
	"k8s.io/kubernetes/pkg/controlplane/reconcilers"

	"github.com/larder-io/larder/internal/registry"
)

// Config says what a cluster starts with. Registry, Client and Informers are
// required.
type Config struct {
	Registry *registry.Registry

	// Client reaches this server. Informers use it as well; New asks for those that it
	// needs, and the caller starts them.
	Client    kubernetes.Interface
	Informers informers.SharedInformerFactory

	// SystemNamespaces are made and kept; nil means kube-system, kube-public,
	// kube-node-lease and default.
	SystemNamespaces []string

	// RBAC makes its roles and bindings.
	RBAC bool

	// PublicAddress and PublicPort are where others reach this server. Without an
	// address that they could reach, no endpoints are published.
	PublicAddress net.IP
	PublicPort    int

	// EndpointReconciler says how this server enters itself into the endpoints of the
	// kubernetes service; "" means by leases. Instances is the number of servers, for
	// reconcilers.MasterCountReconcilerType; 0 means 1.
	EndpointReconciler reconcilers.Type
	Instances          int
	// AnyPort has this server enter endpoints that others have published with another port, as
	// kube-apiserver does. Then some of the endpoints are wrong.
	AnyPort bool

	// Trust is published for other API servers: whose certificates this one accepts.
	Trust clusterauthenticationtrust.ClusterAuthenticationInfo

	// TakesOver says that an earlier process of this server serves until this one is ready: its
	// endpoint and its identity Lease are this one's.
	TakesOver bool

	// Identity is the name of this server's identity Lease; "" writes none.
	Identity string

	// PeerAddress is the host and port at which the other servers of the cluster reach this one; ""
	// publishes none. Peers keeps the addresses of all servers, by their Identity.
	PeerAddress string
	Peers       peerreconcilers.PeerEndpointLeaseReconciler

	// StorageVersions has this server publish the versions that it stores; nil publishes none.
	// It needs Identity.
	StorageVersions *StorageVersions

	// Leadership has this server elect leaders for others; nil elects none.
	Leadership *Leadership

	// ServicePort is the port of the kubernetes service; 0 means 443.
	ServicePort int

	// ServiceNodePort, if not 0, is the service's port on every node.
	ServiceNodePort int

	// EndpointTTL is how long the endpoints of a server that died stay; 0 means
	// 15 s. EndpointInterval is how often they are refreshed; 0 means 10 s.
	EndpointTTL      time.Duration
	EndpointInterval time.Duration

	// Grace is how long the server is not ready because a namespace or the kubernetes
	// service cannot be made; 0 means 5 s. RetryInterval is how often it is tried after
	// that; 0 means 10 s.
	Grace         time.Duration
	RetryInterval time.Duration

	// RepairInterval is how often service addresses and ports are compared with
	// the services; 0 means 3 minutes.
	RepairInterval time.Duration
}

func (c *Config) setDefaults() {
	if c.SystemNamespaces == nil {
		c.SystemNamespaces = []string{
			metav1.NamespaceSystem, metav1.NamespacePublic, corev1.NamespaceNodeLease, metav1.NamespaceDefault}
	}
	c.ServicePort = cmp.Or(c.ServicePort, 443)
	c.EndpointReconciler = cmp.Or(c.EndpointReconciler, reconcilers.LeaseEndpointReconcilerType)
	c.EndpointTTL = cmp.Or(c.EndpointTTL, 15*time.Second)
	c.EndpointInterval = cmp.Or(c.EndpointInterval, 10*time.Second)
	c.Instances = cmp.Or(c.Instances, 1)
	c.Grace = cmp.Or(c.Grace, 5*time.Second)
	c.RetryInterval = cmp.Or(c.RetryInterval, 10*time.Second)
	c.RepairInterval = cmp.Or(c.RepairInterval, 3*time.Minute)
}

// Leadership says how this server elects leaders among components that have made
// themselves candidates. One server of the cluster does, which is elected itself.
type Leadership struct {
	ClientConfig *rest.Config // reaches this server

	// LeaseDuration is how long a server keeps that office without renewing it,
	// RenewDeadline how long it tries to renew it, RetryPeriod how often.
	LeaseDuration, RenewDeadline, RetryPeriod time.Duration
}

// hookTimeout is how long a hook tries before it fails, as upstream's do.
const hookTimeout = 30 * time.Second

// keepTrying calls work until it succeeds, as upstream's controllers do. A webhook, for
// example, may refuse the work until this server is ready: so ready is called after Grace at
// the latest. It returns false if ctx ended first.
func (c *Config) keepTrying(ctx context.Context, ready func(), what string, work func(context.Context) error) bool {
	err := retry(ctx, c.Grace, work)
	for ; err != nil && ctx.Err() == nil; err = work(ctx) {
		klog.ErrorS(err, "Cannot make what a cluster needs, trying again", "what", what, "interval", c.RetryInterval)
		ready()
		select {
		case <-ctx.Done():
		case <-time.After(c.RetryInterval):
		}
	}
	if ctx.Err() != nil {
		return false
	}
	ready()
	return true
}

// retry calls work until it succeeds, ever more slowly, for at most limit, and then
// returns its last error.
func retry(ctx context.Context, limit time.Duration, work func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	delay := wait.Backoff{Duration: 10 * time.Millisecond, Factor: 2, Steps: 7, Cap: time.Second}
	var last error
	err := delay.DelayFunc().Until(ctx, true, false, func(ctx context.Context) (bool, error) {
		last = work(ctx)
		return last == nil, nil
	})
	if err != nil && last != nil {
		return last
	}
	return err
}
