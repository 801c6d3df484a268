package bootstrap

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	peerreconcilers "k8s.io/apiserver/pkg/reconcilers"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/klog/v2"
	"k8s.io/kubernetes/pkg/controlplane/controller/clusterauthenticationtrust"
	"k8s.io/kubernetes/pkg/controlplane/reconcilers"
	flowcontrolrest "k8s.io/kubernetes/pkg/registry/flowcontrol/rest"
	rbacrest "k8s.io/kubernetes/pkg/registry/rbac/rest"
	schedulingrest "k8s.io/kubernetes/pkg/registry/scheduling/rest"

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

	// Trust is published for other API servers: whose certificates this one accepts.
	Trust clusterauthenticationtrust.ClusterAuthenticationInfo

	// Identity is the name of the Lease that tells that this server lives; "" writes none.
	Identity string

	// PeerAddress is the host and port at which the other servers of the cluster reach this
	// one; "" if they are not told. Peers keeps what each is told of the others then, under
	// the name of Identity.
	PeerAddress string
	Peers       peerreconcilers.PeerEndpointLeaseReconciler

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

func (c *Config) check() error {
	if c.Registry == nil || c.Client == nil || c.Informers == nil {
		return errors.New("bootstrap: Config needs Registry, Client and Informers")
	}
	return nil
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

// Bootstrap makes and keeps a cluster's first objects. Build one with [New].
type Bootstrap struct {
	config   Config
	hooks    []*Hook
	service  *kubernetesService
	identity *identity                                    // nil if no Lease is written
	peers    *peerreconcilers.PeerEndpointLeaseController // nil if other servers are not told of this one
}

// Hook makes and keeps some of the objects. Upstream calls it a post-start hook.
type Hook struct {
	// Name is the name of its health check, as in kube-apiserver.
	Name string

	run     func(ctx context.Context, ready func()) error
	ready   chan struct{}
	waits   bool        // it tries for as long as it takes; others fail, which ends the server
	excused atomic.Bool // by Excuse
}

// Ready is closed once the hook's objects exist.
func (h *Hook) Ready() <-chan struct{} { return h.ready }

// Check returns an error until the hook's objects exist, or it is excused.
func (h *Hook) Check() error {
	select {
	case <-h.ready:
		return nil
	default:
	}
	if h.excused.Load() {
		return nil
	}
	return errNotFinished
}

// errNotFinished has the text of kube-apiserver's health check.
var errNotFinished = errors.New("not finished")

// New prepares a Bootstrap. It does no I/O.
func New(config Config) (*Bootstrap, error) {
	if err := config.check(); err != nil {
		return nil, err
	}
	config.setDefaults()
	b := &Bootstrap{config: config}
	namespaces := b.add("start-system-namespaces-controller", b.keepNamespaces)
	cidr := b.add("start-kubernetes-service-cidr-controller", b.keepServiceCIDR)
	repair := b.add("start-service-ip-repair-controllers", b.newRepair(cidr.ready))
	service, err := newKubernetesService(&b.config, namespaces.ready, repair.ready)
	if err != nil {
		return nil, fmt.Errorf("bootstrap: %w", err)
	}
	b.service = service
	keep := b.add("bootstrap-controller", service.run)
	for _, h := range []*Hook{namespaces, cidr, repair, keep} {
		h.waits = true
	}
	if config.Leadership != nil {
		b.add("start-kube-apiserver-coordinated-leader-election-controller", b.newElection())
	}
	if config.Peers != nil {
		if config.PeerAddress != "" {
			b.peers = peerreconcilers.New(config.Identity, config.PeerAddress, config.Peers, config.EndpointInterval, config.Client)
		}
		b.add("peer-endpoint-reconciler-controller", b.keepPeerEndpoint)
	}
	b.add("start-cluster-authentication-info-controller", b.keepTrust(namespaces.ready))
	if config.Identity != "" {
		b.identity = newIdentity(&config)
		b.add("start-kube-apiserver-identity-lease-controller", b.keepIdentity(namespaces.ready))
		b.add("start-kube-apiserver-identity-lease-garbage-collector", b.collectIdentities)
	}
	b.add("start-legacy-token-tracking-controller", b.keepTokenTracking(namespaces.ready))
	if config.RBAC {
		b.add(rbacrest.PostStartHookName, once(b.ensureRBAC))
	}
	b.add(schedulingrest.PostStartHookName, once(b.ensurePriorityClasses))
	b.add(flowcontrolrest.PostStartHookName, b.keepFlowControl)
	return b, nil
}

func (b *Bootstrap) add(name string, run func(context.Context, func()) error) *Hook {
	h := &Hook{Name: "poststarthook/" + name, run: run, ready: make(chan struct{})}
	b.hooks = append(b.hooks, h)
	return h
}

// once makes a hook of work that is done when it is ready.
func once(work func(context.Context) error) func(context.Context, func()) error {
	return func(ctx context.Context, ready func()) error {
		err := work(ctx)
		if err == nil {
			ready()
		}
		return err
	}
}

// Hooks lists the parts of the work.
func (b *Bootstrap) Hooks() []*Hook { return b.hooks }

// Run waits until the registry has loaded and then runs all hooks until ctx ends, which is
// no error, or one of them fails, without which the server is useless. It may be called
// once.
func (b *Bootstrap) Run(ctx context.Context) error {
	// Hooks give up after a while, and loading a large store may take longer.
	if err := b.config.Registry.WaitReady(ctx); err != nil {
		if ctx.Err() != nil {
			return nil
		}
		return fmt.Errorf("bootstrap: %w", err)
	}
	group, inner := errgroup.WithContext(ctx)
	for _, h := range b.hooks {
		group.Go(func() error {
			err := h.run(inner, sync.OnceFunc(func() { close(h.ready) }))
			if err != nil && inner.Err() == nil {
				return fmt.Errorf("bootstrap: %s: %w", h.Name, err)
			}
			return nil
		})
	}
	return group.Wait()
}

// Excuse lets the server be ready without the hooks that are not ready yet, because a cache
// that they need does not load for example, and returns their names. They go on. A hook
// whose failure would end the server is not excused: without roles no user has any right.
func (b *Bootstrap) Excuse() []string {
	var excused []string
	for _, h := range b.hooks {
		if h.waits && h.Check() != nil {
			h.excused.Store(true)
			excused = append(excused, h.Name)
		}
	}
	return excused
}

// WaitReady blocks until every hook is ready or was excused before.
func (b *Bootstrap) WaitReady(ctx context.Context) error {
	for _, h := range b.hooks {
		if h.Check() == nil { // even if ctx has ended
			continue
		}
		select {
		case <-h.ready:
		case <-ctx.Done():
			return fmt.Errorf("bootstrap: %s: %w", h.Name, ctx.Err())
		}
	}
	return nil
}

// Stop withdraws this server's endpoints, so that clients use other servers, and its identity
// Lease. Call it when the server is about to stop, while it still serves.
func (b *Bootstrap) Stop() {
	var all sync.WaitGroup // each waits a while for a store that does not answer
	all.Go(b.service.stop)
	if b.identity != nil {
		all.Go(b.identity.stop)
	}
	if b.peers != nil {
		all.Go(b.peers.Stop)
	}
	all.Wait()
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
