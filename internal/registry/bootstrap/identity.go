package bootstrap

import (
	"context"
	"fmt"
	"os"
	"sync"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/uuid"
	"k8s.io/component-helpers/apimachinery/lease"
	"k8s.io/klog/v2"
	controlplane "k8s.io/kubernetes/pkg/controlplane/apiserver"
	"k8s.io/kubernetes/pkg/controlplane/controller/apiserverleasegc"
	"k8s.io/kubernetes/pkg/controlplane/controller/leaderelection"
	"k8s.io/utils/clock"
)

// identity renews this server's Lease by upstream's controller.
type identity struct {
	lease.Controller
	retired context.Context // ends when the Lease is no longer renewed
	retire  context.CancelFunc
}

func newIdentity(config *Config) *identity {
	i := &identity{Controller: lease.NewController(clock.RealClock{}, config.Client, config.Identity+"_"+string(uuid.NewUUID()),
		int32(controlplane.IdentityLeaseDurationSeconds), nil, controlplane.IdentityLeaseRenewIntervalPeriod,
		config.Identity, metav1.NamespaceSystem, labelIdentity(config.PeerAddress))}
	i.retired, i.retire = context.WithCancel(context.Background())
	return i
}

// stop deletes the Lease. It first cancels a renewal, because upstream's controller would wait for that.
func (i *identity) stop() {
	i.retire()
	i.Controller.Stop()
}

// labelIdentity labels a Lease as the identity Lease of an API server, and annotates it with the address at which other
// servers reach this one.
func labelIdentity(peer string) lease.ProcessLeaseFunc {
	return func(l *coordinationv1.Lease) error {
		hostname, err := os.Hostname()
		if err != nil {
			return fmt.Errorf("bootstrap: %w", err)
		}
		metav1.SetMetaDataLabel(&l.ObjectMeta, controlplane.IdentityLeaseComponentLabelKey, controlplane.KubeAPIServer)
		metav1.SetMetaDataLabel(&l.ObjectMeta, corev1.LabelHostname, hostname)
		if peer != "" {
			metav1.SetMetaDataAnnotation(&l.ObjectMeta, corev1.AnnotationPeerAdvertiseAddress, peer)
		}
		return nil
	}
}

// keep renews the Lease until ctx ends. It first deletes the Lease of an earlier process of this server,
// which has another holder, or waits until that process hands its Lease over.
func (i *identity) keep(c *Config, namespaces <-chan struct{}) func(context.Context, func()) error {
	return background(func(ctx context.Context) {
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		defer context.AfterFunc(i.retired, cancel)()
		if !await(ctx, namespaces) || c.TakesOver != nil && !await(ctx, c.TakesOver) {
			return
		}
		if c.TakesOver == nil {
			err := c.Client.CoordinationV1().Leases(metav1.NamespaceSystem).Delete(ctx, c.Identity, metav1.DeleteOptions{})
			if err != nil && !apierrors.IsNotFound(err) && ctx.Err() == nil {
				klog.ErrorS(err, "Cannot delete the lease of this server's previous process", "lease", c.Identity)
			}
		}
		i.Run(ctx)
	})
}

// collectIdentities deletes the Leases of servers that no longer exist, by upstream's controller.
func (c *Config) collectIdentities(ctx context.Context) {
	apiserverleasegc.NewAPIServerLeaseGC(c.Client, controlplane.IdentityLeaseGCPeriod,
		metav1.NamespaceSystem, controlplane.IdentityLeaseComponentLabelKey+"="+controlplane.KubeAPIServer).RunWithContext(ctx)
}

// newElection requests the informers that upstream's controllers need. It returns the hook that runs these controllers
// while this server is elected.
func (c *Config) newElection() func(context.Context, func()) error {
	leases, candidates := c.Informers.Coordination().V1().Leases(), c.Informers.Coordination().V1beta1().LeaseCandidates()
	leases.Informer()
	candidates.Informer()
	client := c.Client
	return background(func(ctx context.Context) {
		run := func() (func(context.Context, int), error) {
			elect, err := leaderelection.NewController(leases, candidates, client.CoordinationV1(), client.CoordinationV1beta1())
			if err != nil {
				return nil, err
			}
			collect := leaderelection.NewLeaseCandidateGC(client, controlplane.LeaseCandidateGCPeriod, candidates)
			return func(ctx context.Context, workers int) {
				var both sync.WaitGroup
				both.Go(func() { elect.Run(ctx, workers) })
				both.Go(func() { collect.Run(ctx) })
				both.Wait()
			}, nil
		}
		leaderelection.RunWithLeaderElection(ctx, c.ClientConfig, run, *c.Leadership)
	})
}
