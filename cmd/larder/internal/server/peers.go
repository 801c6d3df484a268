package server

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strconv"
	"sync"
	"time"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/wait"
	apiserverfeatures "k8s.io/apiserver/pkg/features"
	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/apiserver/pkg/server/egressselector"
	"k8s.io/apiserver/pkg/storageversion"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	utilpeerproxy "k8s.io/apiserver/pkg/util/peerproxy"
	"k8s.io/client-go/transport"
	"k8s.io/klog/v2"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"
	"k8s.io/kubernetes/pkg/api/legacyscheme"
	controlplane "k8s.io/kubernetes/pkg/controlplane/apiserver"
	"k8s.io/kubernetes/pkg/controlplane/controller/leaderelection"

	"github.com/larder-io/larder/httpapi"
	"github.com/larder-io/larder/internal/registry/bootstrap"
)

// peers proxies requests for resources that only other servers of the cluster serve. It uses upstream's
// mixed-version proxy.
type peers struct {
	utilpeerproxy.Interface
	synced     chan struct{} // closed when the other servers are known
	discovered chan struct{} // closed when the resources of this server are known
}

// interoperable reports whether servers publish their addresses for each other.
func interoperable() bool {
	return utilfeature.DefaultFeatureGate.Enabled(apiserverfeatures.UnknownVersionInteroperabilityProxy)
}

// peerAddress returns the address at which other servers reach this one; "" if they cannot.
func (s *Server) peerAddress() string {
	configured := s.config.PeerAdvertiseAddress
	switch {
	case !interoperable():
		return ""
	case configured.PeerAdvertiseIP != "" && configured.PeerAdvertisePort != "":
		return net.JoinHostPort(configured.PeerAdvertiseIP, configured.PeerAdvertisePort)
	case s.id.publish == nil:
		return ""
	}
	return net.JoinHostPort(s.id.publish.String(), strconv.Itoa(s.config.SecureServing.BindPort))
}

// publishPeerAddress makes config publish the address at which other servers reach this one.
func (s *Server) publishPeerAddress(config *bootstrap.Config) error {
	config.PeerAddress = s.peerAddress()
	if config.Identity == "" || !interoperable() {
		return nil
	}
	leases, err := s.parts.registry.PeerLeases()
	if err != nil {
		return err
	}
	config.Peers = leases
	return nil
}

// addPeers makes config proxy requests for resources that only peers serve, if --peer-ca-file names the CA
// of their certificates.
func (s *Server) addPeers(config *httpapi.Config) error {
	p, c, ca := &s.parts, &s.config, s.config.PeerCAFile
	if ca == "" || !interoperable() {
		return nil
	}
	if c.ProxyClientCertFile == "" { // the key is set with it
		return errors.New("server: --peer-ca-file needs --proxy-client-cert-file and --proxy-client-key-file")
	}
	leases, err := p.registry.PeerLeases()
	if err != nil {
		return err
	}
	onward := &transport.Config{TLS: transport.TLSConfig{
		CertFile: c.ProxyClientCertFile, KeyFile: c.ProxyClientKeyFile, CAFile: ca, ServerName: "kubernetes.default.svc",
	}}
	if dial := s.egress.dialer(egressselector.ControlPlane); dial != nil {
		onward.DialHolder = &transport.DialHolder{Dial: dial}
	}
	proxy, err := utilpeerproxy.NewPeerProxyHandler(serverID(), controlplane.IdentityLeaseComponentLabelKey+"="+controlplane.KubeAPIServer,
		p.informers.Coordination().V1().Leases(), leases, legacyscheme.Codecs, p.loopback, onward)
	if err != nil {
		return fmt.Errorf("server: peers: %w", err)
	}
	// All servers have the same CRDs and APIServices, so their resources are not proxied to peers.
	if err := proxy.RegisterCRDInformerHandlers(p.extensions.CRDs().Informer(), crdVersions); err != nil {
		return fmt.Errorf("server: peers: %w", err)
	}
	if err := proxy.RegisterAPIServiceInformerHandlers(p.aggregator.APIServices(), remoteVersions); err != nil {
		return fmt.Errorf("server: peers: %w", err)
	}
	p.peers = &peers{Interface: proxy, synced: make(chan struct{}), discovered: make(chan struct{})}
	config.Peers, config.ID = p.peers, serverID()
	return nil
}

// crdVersions returns the versions of a CRD.
func crdVersions(obj any) (versions []schema.GroupVersion) {
	crd, ok := obj.(*apiextensionsv1.CustomResourceDefinition)
	if !ok {
		return nil
	}
	for _, v := range crd.Spec.Versions {
		versions = append(versions, schema.GroupVersion{Group: crd.Spec.Group, Version: v.Name})
	}
	return versions
}

// remoteVersions returns the version of an APIService with a service.
func remoteVersions(obj any) []schema.GroupVersion {
	service, ok := obj.(*apiregistrationv1.APIService)
	if !ok || service.Spec.Service == nil {
		return nil
	}
	return []schema.GroupVersion{{Group: service.Spec.Group, Version: service.Spec.Version}}
}

// run watches the peers and their resources until ctx ends. This server must already serve requests.
func (p *peers) run(ctx context.Context) error {
	var running sync.WaitGroup
	defer running.Wait()
	running.Go(func() { p.RunPeerDiscoveryCacheSync(ctx, 1) })
	running.Go(func() { p.RunPeerDiscoveryActiveGVTracker(ctx) })
	running.Go(func() { p.RunPeerDiscoveryRefilter(ctx) })
	running.Go(func() {
		if err := p.WaitForCacheSync(ctx.Done()); err == nil {
			close(p.synced)
		}
	})
	if err := wait.PollUntilContextCancel(ctx, time.Second, true, func(ctx context.Context) (bool, error) {
		err := p.RunLocalDiscoveryCacheSync(ctx.Done())
		if err != nil {
			klog.ErrorS(err, "Cannot discover the resources of this server, will retry")
		}
		return err == nil, nil
	}); err == nil {
		close(p.discovered)
	}
	<-ctx.Done()
	return nil
}

// await blocks until requests can be proxied.
func (p *peers) await(ctx context.Context) error {
	for _, done := range []<-chan struct{}{p.synced, p.discovered} {
		select {
		case <-done:
		case <-ctx.Done():
			return fmt.Errorf("server: peers: %w", context.Cause(ctx))
		}
	}
	return nil
}

// serverID returns the name of this server in its cluster, the same after each restart.
func serverID() string { return genericapiserver.NewConfig(legacyscheme.Codecs).APIServerID }

// identityLease returns the name of the server's identity Lease; "" if it has none.
func identityLease() string {
	if !utilfeature.DefaultFeatureGate.Enabled(apiserverfeatures.APIServerIdentity) {
		return ""
	}
	return serverID()
}

// leadership returns the timers of coordinated leader election; nil if it is disabled.
func (s *Server) leadership() *leaderelection.LeaderElectionTimers {
	if !utilfeature.DefaultFeatureGate.Enabled(apiserverfeatures.CoordinatedLeaderElection) {
		return nil
	}
	up := s.config.ServerRunOptions
	return &leaderelection.LeaderElectionTimers{
		LeaseDuration: up.CoordinatedLeadershipLeaseDuration,
		RenewDeadline: up.CoordinatedLeadershipRenewDeadline, RetryPeriod: up.CoordinatedLeadershipRetryPeriod,
	}
}

// publishVersions makes base publish the registry's storage versions, if that is enabled.
func (s *Server) publishVersions(base *bootstrap.Config) {
	p := &s.parts
	if base.Identity == "" || !utilfeature.DefaultFeatureGate.Enabled(apiserverfeatures.StorageVersionAPI) {
		return
	}
	p.versions = storageversion.NewDefaultManager()
	p.versions.AddResourceInfo(p.registry.StorageVersions()...)
	base.StorageVersions = p.versions
}
