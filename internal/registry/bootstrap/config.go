package bootstrap

import (
	"cmp"
	"context"
	"net"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"
	peerreconcilers "k8s.io/apiserver/pkg/reconcilers"
	"k8s.io/apiserver/pkg/storageversion"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"
	"k8s.io/kubernetes/pkg/controlplane/controller/clusterauthenticationtrust"
	"k8s.io/kubernetes/pkg/controlplane/controller/leaderelection"
	"k8s.io/kubernetes/pkg/controlplane/reconcilers"

	"github.com/larder-io/larder/internal/registry"
)

// Config is the configuration of a [Bootstrap]. Registry, Client and Informers are required, and ClientConfig for
// StorageVersions and Leadership.
type Config struct {
	Registry *registry.Registry

	// Client and ClientConfig connect to this server. New requests the informers that it needs, and the caller starts them. Those of
	// Services and IPAddresses must resync every RepairInterval, so that upstream's repair of addresses sees unchanged
	// objects again.
	Client       kubernetes.Interface
	ClientConfig *rest.Config
	Informers    informers.SharedInformerFactory

	// RBAC creates upstream's roles and bindings.
	RBAC bool

	// PublicAddress and PublicPort are published as an endpoint of the kubernetes service. Without
	// an address that others can reach, no endpoints are published.
	PublicAddress net.IP
	PublicPort    int

	// EndpointReconciler selects upstream's reconciler of the endpoints of the kubernetes service; ""
	// means by leases. Instances is the number of servers, for
	// reconcilers.MasterCountReconcilerType; 0 means 1.
	EndpointReconciler reconcilers.Type
	Instances          int
	// AnyPort adds this server to endpoints that other servers have published with another port, as kube-apiserver
	// does. Some endpoints are then wrong.
	AnyPort bool

	// Trust is published for other API servers: the CAs whose certificates this server accepts.
	Trust clusterauthenticationtrust.ClusterAuthenticationInfo

	// TakesOver, unless nil, says that an earlier process of this server serves until the channel is closed. It has the
	// same endpoint and identity Lease, which it renews until then.
	TakesOver <-chan struct{}

	// Identity is the name of this server's identity Lease; "" writes none.
	Identity string

	// PeerAddress is the host and port at which the other servers of the cluster reach this server; ""
	// publishes none. Peers stores the addresses of all servers, by their Identity.
	PeerAddress string
	Peers       peerreconcilers.PeerEndpointLeaseReconciler

	// StorageVersions has the versions that this server stores, which are published; nil publishes none. It needs
	// Identity.
	StorageVersions storageversion.Manager

	// Leadership, unless nil, enables coordinated leader election: one server of the cluster, which is elected itself
	// with these timers, elects the leaders of components that have registered as candidates.
	Leadership *leaderelection.LeaderElectionTimers

	// ServiceNodePort, if not 0, is the kubernetes service's port on every node.
	ServiceNodePort int

	// EndpointTTL is the time after which the endpoints of a dead server are removed; 0 means
	// 15 s. EndpointInterval is the interval of refreshes; 0 means 10 s.
	EndpointTTL      time.Duration
	EndpointInterval time.Duration

	// Grace limits how long a namespace or kubernetes service that cannot be created delays
	// readiness; 0 means 5 s. RetryInterval is the interval of later attempts; 0 means 10 s.
	Grace         time.Duration
	RetryInterval time.Duration
}

func (c *Config) setDefaults() {
	c.EndpointReconciler = cmp.Or(c.EndpointReconciler, reconcilers.LeaseEndpointReconcilerType)
	c.EndpointTTL = cmp.Or(c.EndpointTTL, 15*time.Second)
	c.EndpointInterval = cmp.Or(c.EndpointInterval, 10*time.Second)
	c.Instances = cmp.Or(c.Instances, 1)
	c.Grace = cmp.Or(c.Grace, 5*time.Second)
	c.RetryInterval = cmp.Or(c.RetryInterval, 10*time.Second)
}

// hookTimeout limits the attempts of a hook. kube-apiserver exits after 30 s. A stalled disk recovers sooner without a
// restart.
const hookTimeout = 3 * time.Minute

// keepTrying calls work until it succeeds, as upstream's controllers do. It calls ready after Grace at the latest,
// because a webhook may reject the work until this server is ready. It returns false if ctx ends first.
func (c *Config) keepTrying(ctx context.Context, ready func(), what string, work func(context.Context) error) bool {
	err := retry(ctx, c.Grace, work)
	for ; err != nil && ctx.Err() == nil; err = work(ctx) {
		klog.ErrorS(err, "Cannot create objects that a cluster needs, will retry", "what", what, "interval", c.RetryInterval)
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

// retry calls work with growing pauses until it succeeds. After limit it returns the last error.
func retry(ctx context.Context, limit time.Duration, work func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	delay := wait.Backoff{Duration: 10 * time.Millisecond, Factor: 2, Steps: 7, Cap: time.Second}
	var last error
	err := delay.DelayFunc().Until(ctx, true, false, func(ctx context.Context) (bool, error) {
		last = work(ctx)
		return last == nil, nil
	})
	return cmp.Or(last, err)
}
