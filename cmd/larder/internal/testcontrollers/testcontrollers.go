package testcontrollers

import (
	"context"
	"fmt"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/discovery/cached/memory"
	"k8s.io/client-go/informers"
	coreinformers "k8s.io/client-go/informers/core/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/metadata/metadatainformer"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/restmapper"
	"k8s.io/klog/v2"
	"k8s.io/kubernetes/pkg/controller/certificates/rootcacertpublisher"
	"k8s.io/kubernetes/pkg/controller/garbagecollector"
	"k8s.io/kubernetes/pkg/controller/namespace"
	"k8s.io/kubernetes/pkg/controller/serviceaccount"
)

const (
	// syncInterval is the interval at which the garbage collector reads discovery. It is a sixth of upstream's,
	// because tests that create a CRD wait for it.
	syncInterval = 5 * time.Second
	// resetInterval is the interval at which cached discovery is discarded, as in upstream.
	resetInterval = 30 * time.Second
	// collectors and deleters are upstream's default numbers of workers.
	collectors, deleters = 20, 10
	// readyInterval is the interval of checks whether pods are admitted.
	readyInterval = 20 * time.Millisecond
)

// managerLease is the name of the lease that one kube-controller-manager of a cluster holds.
const managerLease = "kube-controller-manager"

// Config is the configuration of [Controllers]. Client is required.
type Config struct {
	// Client connects to the server as a user with all rights.
	Client *rest.Config
	// RootCA has the certificates, in PEM, with which pods verify the server's certificate. It is published in every
	// namespace.
	RootCA []byte
}

// Controllers are the controllers of one server. Create them with [New].
type Controllers struct {
	config   Config
	client   kubernetes.Interface
	metadata metadata.Interface
	ready    chan struct{} // closed once pods are admitted
	isReady  func()        // closes ready; may be called repeatedly
	pauses   chan *pause
}

// pause makes Run stop the controllers.
type pause struct {
	stopped chan struct{} // closed when the controllers have ended
	resumed chan struct{} // closed when they may start again
}

// New returns Controllers. It does no I/O.
func New(config Config) (*Controllers, error) {
	config.Client = rest.CopyConfig(config.Client)
	config.Client.UserAgent = "larder/test-controllers"
	client, err := kubernetes.NewForConfig(config.Client)
	if err != nil {
		return nil, fmt.Errorf("testcontrollers: %w", err)
	}
	some, err := metadata.NewForConfig(config.Client)
	if err != nil {
		return nil, fmt.Errorf("testcontrollers: %w", err)
	}
	ready := make(chan struct{})
	return &Controllers{
		config: config, client: client, metadata: some, pauses: make(chan *pause),
		ready: ready, isReady: sync.OnceFunc(func() { close(ready) }),
	}, nil
}

// WaitReady blocks until pods are admitted in the namespace default, or ctx ends.
func (c *Controllers) WaitReady(ctx context.Context) error {
	select {
	case <-c.ready:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("testcontrollers: %w", context.Cause(ctx))
	}
}

// ControllerManagerHolder returns the holder of the lease of kube-controller-manager, which runs the same controllers,
// or "" if the lease is not held.
func ControllerManagerHolder(ctx context.Context, client kubernetes.Interface) (string, error) {
	lease, err := client.CoordinationV1().Leases(metav1.NamespaceSystem).Get(ctx, managerLease, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return "", nil
	case err != nil:
		return "", fmt.Errorf("testcontrollers: %w", err)
	}
	spec := lease.Spec
	if spec.HolderIdentity == nil || spec.RenewTime == nil || spec.LeaseDurationSeconds == nil {
		return "", nil
	}
	if ends := spec.RenewTime.Add(time.Duration(*spec.LeaseDurationSeconds) * time.Second); time.Now().After(ends) {
		return "", nil
	}
	return *spec.HolderIdentity, nil
}

// Run runs the controllers until ctx ends, and then returns nil. It may be called once.
func (c *Controllers) Run(ctx context.Context) error {
	for ctx.Err() == nil {
		if err := c.runUntilPaused(ctx); err != nil {
			return err
		}
	}
	return nil
}

// runUntilPaused runs the controllers until ctx ends, or until a pause has ended.
func (c *Controllers) runUntilPaused(ctx context.Context) error {
	running, cancel := context.WithCancel(ctx)
	defer cancel()
	ended := make(chan error, 1)
	go func() { ended <- c.run(running) }()
	select {
	case err := <-ended:
		return err
	case p := <-c.pauses:
		cancel()
		err := <-ended
		close(p.stopped)
		if err != nil {
			return err
		}
		select {
		case <-p.resumed:
		case <-ctx.Done():
		}
		return nil
	}
}

// Pause stops the controllers, which must be running, and returns when they have ended. After resume, new
// controllers start without the state of the old ones. Otherwise they might delete an object that was restored
// meanwhile, because the old ones had seen it deleted or without an owner.
func (c *Controllers) Pause(ctx context.Context) (resume func(), err error) {
	p := &pause{stopped: make(chan struct{}), resumed: make(chan struct{})}
	select {
	case c.pauses <- p:
	case <-ctx.Done():
		return nil, fmt.Errorf("testcontrollers: %w", context.Cause(ctx))
	}
	<-p.stopped
	return sync.OnceFunc(func() { close(p.resumed) }), nil
}

// run runs controllers until ctx ends.
func (c *Controllers) run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	named := informers.NewSharedInformerFactoryWithOptions(c.client, 0, informers.WithTransform(trim))
	authorities := informers.NewSharedInformerFactoryWithOptions(c.client, 0, informers.WithTransform(trim), informers.WithTweakListOptions(func(o *metav1.ListOptions) {
		o.FieldSelector = fields.OneTermEqualSelector(metav1.ObjectNameField, rootcacertpublisher.RootCACertConfigMapName).String()
	}))
	everything := monitors{metadatainformer.NewSharedInformerFactoryWithOptions(c.metadata, 0, metadatainformer.WithTransform(trim))}

	namespaces, accounts := named.Core().V1().Namespaces(), named.Core().V1().ServiceAccounts()
	emptier := namespace.NewNamespaceController(ctx, c.client, c.metadata, c.client.Discovery().ServerPreferredNamespacedResources,
		namespaces, 0, corev1.FinalizerKubernetes)
	giver, err := serviceaccount.NewServiceAccountsController(klog.FromContext(ctx), accounts, namespaces, c.client, serviceaccount.DefaultServiceAccountsControllerOptions())
	if err != nil {
		return fmt.Errorf("testcontrollers: service accounts: %w", err)
	}
	publisher, err := rootcacertpublisher.NewPublisher(authorities.Core().V1().ConfigMaps(), namespaces, c.client, c.config.RootCA)
	if err != nil {
		return fmt.Errorf("testcontrollers: kube-root-ca.crt: %w", err)
	}
	mapper := restmapper.NewDeferredDiscoveryRESTMapper(memory.NewMemCacheClient(c.client.Discovery()))
	started := make(chan struct{})
	collector, err := garbagecollector.NewGarbageCollector(ctx, c.client, c.metadata, mapper, garbagecollector.DefaultIgnoredResources(), everything, started)
	if err != nil {
		return fmt.Errorf("testcontrollers: garbage collector: %w", err)
	}

	named.Start(ctx.Done())
	authorities.Start(ctx.Done())
	close(started)
	var running sync.WaitGroup
	for _, run := range []func(){
		func() { emptier.Run(ctx, deleters) },
		func() { giver.Run(ctx, 1) },
		func() { publisher.Run(ctx, 1) },
		func() { collector.Run(ctx, collectors, resetInterval) },
		func() { collector.Sync(ctx, c.client.Discovery(), syncInterval) },
		func() { wait.UntilWithContext(ctx, func(context.Context) { mapper.Reset() }, resetInterval) },
		func() { c.awaitAccount(ctx, accounts) },
	} {
		running.Go(run)
	}
	running.Wait() // all of them end with ctx
	named.Shutdown()
	authorities.Shutdown()
	everything.Shutdown()
	return nil
}

func trim(object any) (any, error) {
	if m, err := meta.Accessor(object); err == nil {
		m.SetManagedFields(nil)
	}
	return object, nil
}

// awaitAccount closes c.ready once the namespace default has its service account.
func (c *Controllers) awaitAccount(ctx context.Context, accounts coreinformers.ServiceAccountInformer) {
	lister := accounts.Lister().ServiceAccounts(metav1.NamespaceDefault)
	err := wait.PollUntilContextCancel(ctx, readyInterval, true, func(context.Context) (bool, error) {
		_, err := lister.Get("default")
		return err == nil, nil
	})
	if err == nil {
		c.isReady()
	}
}
