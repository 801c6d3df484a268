package bootstrap

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"

	"golang.org/x/sync/errgroup"
	flowcontrolv1 "k8s.io/api/flowcontrol/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	peerreconcilers "k8s.io/apiserver/pkg/reconcilers"
	flowcontrolrest "k8s.io/kubernetes/pkg/registry/flowcontrol/rest"
	rbacrest "k8s.io/kubernetes/pkg/registry/rbac/rest"
	schedulingrest "k8s.io/kubernetes/pkg/registry/scheduling/rest"

	"github.com/larder-io/larder/internal/registry"
	"github.com/larder-io/larder/internal/registry/builtin"
)

// Bootstrap creates a cluster's first objects and repairs them. Build one with [New].
type Bootstrap struct {
	config   Config
	hooks    []*Hook
	repair   sync.RWMutex // locked while the repair of service addresses is paused
	service  *kubernetesService
	identity *identity                                    // nil if no Lease is written
	peers    *peerreconcilers.PeerEndpointLeaseController // nil if this server does not publish its address for peers
}

// Hook creates and repairs some of the objects. kube-apiserver calls it a post-start hook.
type Hook struct {
	// Name is the name of its health check, as in kube-apiserver.
	Name string

	run          func(ctx context.Context, ready func()) error
	ready        chan struct{}
	waits        bool        // it retries without limit; a failure of another hook ends the server
	mayBeUnready atomic.Bool // by AllowUnready
}

// Check returns an error until the hook's objects exist, or AllowUnready lets it be unready.
func (h *Hook) Check() error {
	select {
	case <-h.ready:
		return nil
	default:
		if h.mayBeUnready.Load() {
			return nil
		}
		return ErrNotFinished
	}
}

// ErrNotFinished has the text of kube-apiserver's health checks.
var ErrNotFinished = errors.New("not finished")

// New prepares a Bootstrap. It does no I/O.
func New(config Config) (*Bootstrap, error) {
	config.setDefaults()
	b := &Bootstrap{config: config}
	c := &b.config
	namespaces := b.add("start-system-namespaces-controller", c.keepNamespaces)
	waits, cidr := []*Hook{namespaces}, (<-chan struct{})(nil)
	if builtin.ObjectAddresses() {
		h := b.add("start-kubernetes-service-cidr-controller", c.keepServiceCIDR)
		waits, cidr = append(waits, h), h.ready
	}
	repair := b.add("start-service-ip-repair-controllers", c.newRepair(cidr, &b.repair))
	service, err := newKubernetesService(c, namespaces.ready, repair.ready)
	if err != nil {
		return nil, fmt.Errorf("bootstrap: %w", err)
	}
	b.service = service
	keep := b.add("bootstrap-controller", service.run)
	for _, h := range append(waits, repair, keep) {
		h.waits = true
	}
	if config.Leadership != nil {
		b.add("start-kube-apiserver-coordinated-leader-election-controller", c.newElection())
	}
	if config.Peers != nil {
		if config.PeerAddress != "" {
			b.peers = peerreconcilers.New(config.Identity, config.PeerAddress, config.Peers, config.EndpointInterval, config.Client)
		}
		b.add("peer-endpoint-reconciler-controller", background(func(ctx context.Context) {
			if b.peers != nil { // it publishes the address while this server is ready
				b.peers.Run(ctx.Done())
			}
		}))
	}
	b.add("start-cluster-authentication-info-controller", c.publishTrustedCAs(namespaces.ready))
	if config.Identity != "" {
		b.identity = newIdentity(&config)
		b.add("start-kube-apiserver-identity-lease-controller", b.identity.keep(c, namespaces.ready))
		b.add("start-kube-apiserver-identity-lease-garbage-collector", background(c.collectIdentities))
	}
	if config.StorageVersions != nil {
		b.add(storageVersionsHook, c.publishStorageVersions)
	}
	b.add("start-legacy-token-tracking-controller", c.keepTokenTracking(namespaces.ready))
	if config.RBAC && c.serves(rbacv1.GroupName) {
		b.add(rbacrest.PostStartHookName, once(c.ensureRBAC))
	}
	if c.serves(schedulingv1.GroupName) {
		b.add(schedulingrest.PostStartHookName, once(c.ensurePriorityClasses))
	}
	if c.serves(flowcontrolv1.GroupName) {
		b.add(flowcontrolrest.PostStartHookName, c.newFlowControl())
	}
	return b, nil
}

// serves reports whether a group is served. The hook of another group could never succeed.
func (c *Config) serves(group string) bool {
	return slices.ContainsFunc(c.Registry.Groups(), func(g *registry.Group) bool { return g.Name == group })
}

func (b *Bootstrap) add(name string, run func(context.Context, func()) error) *Hook {
	h := &Hook{Name: "poststarthook/" + name, run: run, ready: make(chan struct{})}
	b.hooks = append(b.hooks, h)
	return h
}

// once returns a hook that is ready when work returns, and then ends.
func once(work func(context.Context) error) func(context.Context, func()) error {
	return func(ctx context.Context, ready func()) error {
		err := work(ctx)
		if err == nil {
			ready()
		}
		return err
	}
}

// background returns a hook that is ready at once and runs work, which ends with its context.
func background(work func(context.Context)) func(context.Context, func()) error {
	return func(ctx context.Context, ready func()) error {
		ready()
		work(ctx)
		return nil
	}
}

// Hooks lists the parts of the work.
func (b *Bootstrap) Hooks() []*Hook { return b.hooks }

// Run waits until the registry has loaded. Then it runs all hooks until ctx ends, and returns nil, or until a required
// hook fails. It may be called once.
func (b *Bootstrap) Run(ctx context.Context) error {
	// Hooks fail after a while, and loading a large store may take longer.
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

// AllowUnready lets the server be ready without the hooks that are not ready, for example because a cache does not
// load, and returns their names. These hooks continue. Hooks whose failure ends the server are still required.
func (b *Bootstrap) AllowUnready() []string {
	var unready []string
	for _, h := range b.hooks {
		if h.waits && h.Check() != nil {
			h.mayBeUnready.Store(true)
			unready = append(unready, h.Name)
		}
	}
	return unready
}

// WaitReady blocks until every hook is ready or may be unready.
func (b *Bootstrap) WaitReady(ctx context.Context) error {
	for _, h := range b.hooks {
		if h.Check() != nil && !await(ctx, h.ready) {
			return fmt.Errorf("bootstrap: %s: %w", h.Name, ctx.Err())
		}
	}
	return nil
}

// Stop removes this server's endpoints and its identity Lease. Call it before the server stops serving.
func (b *Bootstrap) Stop() {
	var all sync.WaitGroup // each waits for a store that does not respond
	all.Go(b.service.stop)
	if b.identity != nil {
		all.Go(b.identity.stop)
	}
	if b.peers != nil {
		all.Go(b.peers.Stop)
	}
	all.Wait()
}

// PauseRepair makes the loop over service addresses wait until resume is called. Meanwhile Services and IPAddresses may
// be written in any order. The loop deletes an IPAddress that is older than a minute and has no Service.
func (b *Bootstrap) PauseRepair() (resume func()) {
	b.repair.Lock()
	return b.repair.Unlock
}

// HandOver ends the renewal of the identity Lease, which the process that has taken over renews.
func (b *Bootstrap) HandOver() {
	if b.identity != nil {
		b.identity.retire()
	}
}

// task creates or reconciles one object.
type task func(context.Context) error

// maxParallel limits the concurrent writes. They share etcd's sync to disk, which is nearly all of their
// cost.
const maxParallel = 16

// inParallel runs all tasks, also after one has failed, and joins their errors.
func inParallel(ctx context.Context, tasks []task) error {
	var group errgroup.Group
	group.SetLimit(maxParallel)
	errs := make([]error, len(tasks))
	for i, t := range tasks {
		group.Go(func() error {
			errs[i] = t(ctx)
			return nil
		})
	}
	_ = group.Wait()
	return errors.Join(errs...)
}
