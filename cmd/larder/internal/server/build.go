package server

import (
	"cmp"
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"net/url"
	"path"
	"runtime/debug"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/endpoints/discovery"
	"k8s.io/apiserver/pkg/endpoints/discovery/aggregated"
	"k8s.io/apiserver/pkg/features"
	"k8s.io/apiserver/pkg/server/egressselector"
	"k8s.io/apiserver/pkg/storage"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	flowrequest "k8s.io/apiserver/pkg/util/flowcontrol/request"
	"k8s.io/client-go/kubernetes"
	"k8s.io/klog/v2"
	"k8s.io/kube-openapi/pkg/validation/spec"
	"k8s.io/kubernetes/pkg/controlplane/reconcilers"
	corerest "k8s.io/kubernetes/pkg/registry/core/rest"

	"github.com/larder-io/larder/cmd/larder/internal/server/loopback"
	"github.com/larder-io/larder/cmd/larder/internal/server/pki"
	"github.com/larder-io/larder/cmd/larder/internal/server/servingcert"
	"github.com/larder-io/larder/cmd/larder/internal/server/storestats"
	"github.com/larder-io/larder/httpapi"
	"github.com/larder-io/larder/httpapi/aggregator"
	"github.com/larder-io/larder/httpapi/apimetrics"
	"github.com/larder-io/larder/httpapi/customresources"
	"github.com/larder-io/larder/httpapi/faults"
	"github.com/larder-io/larder/httpapi/faults/inject"
	"github.com/larder-io/larder/httpapi/http1"
	"github.com/larder-io/larder/httpapi/negotiate"
	"github.com/larder-io/larder/internal/admission"
	"github.com/larder-io/larder/internal/auth"
	"github.com/larder-io/larder/internal/flow"
	"github.com/larder-io/larder/internal/registry"
	"github.com/larder-io/larder/internal/registry/bootstrap"
	"github.com/larder-io/larder/internal/registry/builtin"
	"github.com/larder-io/larder/kv"
)

// buildAuth creates the in-process client and reads every file that Config names. It also starts the layers that
// reload the files, because the constructors of upstream's reloaders start goroutines.
func (s *Server) buildAuth(ctx context.Context) (err error) {
	p := &s.parts
	p.transport, p.informersStarted, p.informersEnd = loopback.NewTransport(), make(chan struct{}), make(chan struct{})
	p.loopback = loopback.Config(p.transport, s.config.UserAgent)
	if p.client, err = kubernetes.NewForConfig(p.loopback); err != nil {
		return fmt.Errorf("server: in-process client: %w", err)
	}
	p.informers = loopback.NewInformers(p.client)
	access := s.config.access(s.id.clientCAFile)
	access.Client, access.Informers = p.client, p.informers
	access.ExternalAddress, access.Egress = s.externalAddress(), s.egress.EgressSelector
	access.ServerID = serverID()
	deciding, stop := context.WithCancel(ctx)
	p.stopWaiting, access.Ended = stop, deciding.Done()
	if p.auth, err = auth.Load(ctx, access); err != nil {
		return err
	}
	s.layers.Start(ctx, "authentication", p.auth.Run)
	if p.audit, err = auth.LoadAudit(s.config.Audit, s.egress.EgressSelector); err != nil {
		return err
	}
	if p.audit != nil {
		s.layers.Start(ctx, "audit", p.audit.Run)
	}
	p.certificates, err = servingcert.Load(s.id.certFile, s.id.keyFile, p.auth.ClientCA, s.config.SecureServing.SecureServingOptions)
	if err != nil {
		return err
	}
	s.layers.Start(ctx, "certificates", p.certificates.Run)
	s.layers.Start(ctx, "renewal of certificates", func(ctx context.Context) error {
		pki.KeepRenewed(ctx, s.id.renewals, func(err error) { klog.ErrorS(err, "Cannot renew a certificate") })
		return nil
	})
	if c := &s.config; c.ProxyClientCertFile != "" { // so that the start fails if it is invalid; the aggregator reads it again
		if _, err := tls.LoadX509KeyPair(c.ProxyClientCertFile, c.ProxyClientKeyFile); err != nil {
			return fmt.Errorf("server: --proxy-client-cert-file: %w", err)
		}
	}
	return nil
}

// build creates the parts that need the store, and listens. It starts only admission.
func (s *Server) build(ctx context.Context) (err error) {
	p := &s.parts
	if p.registry, err = s.newRegistry(); err != nil {
		return err
	}
	// Listen after checking all flags, so that mistakes in them are reported even if the port is taken.
	if s.listener, err = s.config.listen(); err != nil {
		return fmt.Errorf("server: %w", err)
	}
	sources := []storestats.Source{{Store: s.store, Tail: s.tail}}
	for _, a := range s.overrides {
		sources = append(sources, storestats.Source{Store: a.store, Tail: a.tail})
	}
	s.metrics.Attach(sources, p.registry.Resources())
	if err := s.buildAdmission(ctx); err != nil {
		return err
	}
	base := bootstrap.Config{
		Registry: p.registry, Client: p.client, ClientConfig: p.loopback, Informers: p.informers,
		ServiceNodePort: s.config.KubernetesServiceNodePort,
		PublicAddress:   s.id.publish, PublicPort: s.config.SecureServing.BindPort, Trust: p.auth.TrustedCAs(), RBAC: p.auth.RBAC,
		EndpointReconciler: reconcilers.Type(s.config.EndpointReconcilerType), Instances: s.config.MasterCount,
		AnyPort: s.config.AnyPort, Identity: identityLease(), Leadership: s.leadership(),
	}
	if s.config.Inherited.takesOver() {
		base.TakesOver = s.accept
	}
	if err := s.publishPeerAddress(&base); err != nil {
		return err
	}
	s.publishVersions(&base)
	if p.bootstrap, err = bootstrap.New(base); err != nil {
		return err
	}
	p.flow = s.newFlow()
	if p.http, err = s.newHTTPServer(); err != nil {
		return err
	}
	p.transport.Attach(p.http.RoundTripper())
	return s.buildControllers()
}

func (s *Server) newTail(store *kv.Etcd) *kv.Tail {
	prefix := s.config.Etcd.StorageConfig.Prefix
	most := debug.SetMemoryLimit(-1) / 8 // -1 changes nothing
	return kv.NewTail(kv.TailConfig{
		Store: store, Prefix: prefix, Replay: s.config.Store.ReplayRevisions, Logger: newLogger(),
		// After a kill, a client resumes from its last bookmark, which is at most about 60 s old. Servers renew
		// their Leases every 10 s: kubernetes pkg/controlplane/apiserver/server.go, IdentityLeaseRenewIntervalPeriod.
		Clock: kv.Clock{Prefix: path.Join(prefix, "leases/kube-system") + "/apiserver-", Ticks: 8, Limit: 100_000},
		ReplayFrom: func(ctx context.Context, past, present int64) (int64, error) {
			return store.Recent(ctx, past, present, most)
		},
	})
}

func (s *Server) newRegistry() (*registry.Registry, error) {
	p, up := &s.parts, s.config.ServerRunOptions
	s.tail = s.newTail(s.store)
	config := registry.Config{
		Store: s.fence.Store(s.store), Tail: s.tail, IndexLabels: s.config.IndexLabels,
		CacheBytes: s.config.CacheBytes, CacheShares: s.config.CacheShares,
		CheckInterval: s.config.Store.CheckInterval,
		// A client must be able to watch from the revision of a list that took as long as the request timeout
		// (kubernetes pkg/controlplane/apiserver/options/options.go, Complete).
		History:      s.config.GenericServerRunOptions.RequestTimeout + 15*time.Second,
		Logger:       newLogger(),
		Transformers: p.encryption.transformers,
		Overrides:    s.registryOverrides(),
		Linearizable: s.config.uncached(),
		// The last third is left for the parts that load from the caches.
		LoadTimeout: max(up.GenericServerRunOptions.StorageInitializationTimeout*2/3, 1),

		DeleteCollectionWorkers: up.Etcd.DeleteCollectionWorkers, DisableGarbageCollection: !up.Etcd.EnableGarbageCollection,
		Config: builtin.Config{
			Prefix: s.config.Etcd.StorageConfig.Prefix, APIResources: s.resources,
			StorageMediaType: cmp.Or(up.Etcd.DefaultStorageMediaType, runtime.ContentTypeJSON), // as upstream's factory
			ServersOverrides: up.Etcd.EtcdServersOverrides,
			Kubelet:          up.KubeletConfig, ProxyDial: s.egress.dialer(egressselector.Cluster),

			EmulationForwardCompatible:              up.GenericServerRunOptions.EmulationForwardCompatible,
			RuntimeConfigEmulationForwardCompatible: up.GenericServerRunOptions.RuntimeConfigEmulationForwardCompatible,

			GenericConfig: corerest.GenericConfig{
				LoopbackClientConfig: p.loopback, Informers: p.informers, APIAudiences: p.auth.Audiences,
				EventTTL:             max(s.config.EventTTL, 1), // builtin takes 0 for an hour
				ServiceAccountIssuer: p.auth.Issuer.Tokens, ServiceAccountMaxExpiration: p.auth.Issuer.MaxExpiration,
				ExtendExpiration: s.config.Authentication.ServiceAccounts.ExtendExpiration, MaxExtendedExpiration: p.auth.Issuer.MaxExtendedExpiration,
			},
			Authenticator: p.auth.Authenticator, Authorizer: p.auth.Authorizer, RuleResolver: p.auth.RuleResolver,
			Services: corerest.ServicesConfig{
				ClusterIPRange: up.PrimaryServiceClusterIPRange, SecondaryClusterIPRange: up.SecondaryServiceClusterIPRange, NodePortRange: up.ServiceNodePortRange,
			},
		},
	}
	if !utilfeature.DefaultFeatureGate.Enabled(features.DetectCacheInconsistency) {
		config.CheckInterval = 0
	}
	if s.egress.EgressSelector != nil {
		config.Kubelet.Lookup = s.egress.Lookup
	}
	return registry.New(config)
}

func (s *Server) newHTTPServer() (*httpapi.Server, error) {
	p := &s.parts
	version, up := s.config.version(), s.config.ServerRunOptions
	handlers := s.debugHandlers()
	s.addCheckpoints(handlers)
	if p.auth.OpenID != nil {
		routed := negotiate.Routed(p.auth.OpenID)
		for _, path := range auth.OpenIDPaths() {
			handlers[path] = routed
		}
	}
	var injected *inject.Faults
	if s.config.Faults {
		injected = inject.New(s.config.FaultSeed)
		handlers[faults.Path], handlers[faults.Path+"/"] = injected, injected
	}
	limits, err := apimetrics.NewLimits(up.Metrics)
	if err != nil {
		return nil, err
	}
	generic := up.GenericServerRunOptions
	config := httpapi.Config{
		Registry: p.registry, Listener: s.listener, TLS: p.certificates.TLS(), Admission: p.admission, Version: &version, Faults: injected,
		ExternalAddress: s.externalAddress(),
		// Clients in the service range get the kubernetes service's address (kubernetes pkg/controlplane/instance.go).
		InternalAddresses: []discovery.CIDRRule{{
			IPRange: s.config.PrimaryServiceClusterIPRange, Address: net.JoinHostPort(s.id.serviceIP.String(), "443"),
		}},
		Access: httpapi.Access{
			Authenticator: p.auth.Authenticator, Generation: p.auth.Generation, RequestHeader: p.auth.RequestHeader,
			AnonymousByPath: p.auth.AnonymousByPath, Audiences: p.auth.Audiences, Authorizer: p.auth.Authorizer,
			HSTS: strings.Join(generic.HSTSDirectives, "; "), CORS: generic.CorsAllowedOriginList,
		},
		Pages: httpapi.Pages{
			Handlers: handlers, NoProfiling: !up.Features.EnableProfiling, StatusPage: s.config.StatusPage,
			Collectors: []prometheus.Collector{s.metrics}, Limits: limits, Amend: p.registry.CountAddresses,
			NoObjectCounts: up.Etcd.StorageConfig.CountMetricPollPeriod <= 0,
		},
		Delegation: httpapi.Delegation{StorageVersions: p.versions},
		Timeouts: httpapi.Timeouts{
			RequestTimeout: generic.RequestTimeout, MinRequestTimeout: max(time.Duration(generic.MinRequestTimeout)*time.Second, 1), // httpapi takes 0 for its default
			ShutdownGrace: generic.RequestTimeout, WatchGrace: generic.ShutdownWatchTerminationGracePeriod,
			SendRetryAfter: generic.ShutdownSendRetryAfter,
		},
		Connections: httpapi.Connections{
			Accept: s.accept, DisableHTTP2: up.SecureServing.DisableHTTP2Serving,
			Limits: http1.Limits{
				MaxConns: s.config.MaxConnections, MaxConnsPerIP: s.config.MaxConnectionsPerAddress,
				MaxStreams: max(0, up.SecureServing.HTTP2MaxStreamsPerConnection), GoAwayChance: generic.GoawayChance,
			},
		},
	}
	if config.Flow = p.flow; p.flow == nil {
		config.MaxInFlight, config.MaxMutatingInFlight = generic.MaxRequestsInFlight, generic.MaxMutatingRequestsInFlight
	}
	if s.config.RevokeWatches {
		config.Revocation = p.auth.Revocation()
	}
	if p.audit != nil {
		config.Audit, config.AuditPolicy = p.audit.Backend, p.audit.Policy
	}
	if err := s.extend(&config); err != nil {
		return nil, err
	}
	if err := s.aggregate(&config); err != nil {
		return nil, err
	}
	if err := s.addPeers(&config); err != nil {
		return nil, err
	}
	if s.traces != nil {
		config.Spans, config.SampleChance = s.traces.requests, s.traces.chance
	}
	s.addHealth(&config)
	return httpapi.New(config)
}

// buildAdmission creates the admission plugins and starts their layer, because the constructors of
// upstream's plugins start goroutines.
func (s *Server) buildAdmission(ctx context.Context) (err error) {
	p := &s.parts
	p.services = admission.NewServiceResolver(p.registry, s.config.EnableAggregatorRouting)
	if p.webhooks, err = admission.NewWebhooks(p.services, p.loopback, s.egress.EgressSelector, s.traces.outgoing()); err != nil {
		return err
	}
	p.admission, err = admission.Load(admission.Config{
		Options: s.config.Admission, Registry: p.registry, ClientConfig: p.loopback, Client: p.client,
		Informers: p.informers, InformersEnd: p.informersEnd, Authorizer: p.auth.Authorizer, Webhooks: p.webhooks,
		APIResources: s.resources, ServerID: serverID(),
	})
	if err != nil {
		return err
	}
	s.layers.Start(ctx, "admission", p.admission.Run)
	return nil
}

// extend adds custom resources to config.
func (s *Server) extend(config *httpapi.Config) (err error) {
	p := &s.parts
	config.Discovery = aggregated.NewResourceManager("apis")
	p.extensions, err = customresources.New(customresources.Config{
		Registry: p.registry, ClientConfig: p.loopback, Webhooks: p.webhooks, Admission: p.admission,
		Authorizer: p.auth.Authorizer, Discovery: config.Discovery.WithSource(aggregated.CRDSource),
		Complete: func() bool { return p.aggregator.Registered() },
		// p.http is set by then, because only requests call Schemas.
		Schemas:           func() (map[string]*spec.Schema, error) { return p.http.Schemas() },
		Alone:             !s.config.external(),
		Servers:           s.config.MasterCount,
		MinRequestTimeout: config.MinRequestTimeout,
	})
	if err != nil {
		return fmt.Errorf("server: custom resources: %w", err)
	}
	config.Extensions = p.extensions
	return nil
}

// aggregate adds the aggregator to config.
func (s *Server) aggregate(config *httpapi.Config) error {
	self, err := url.Parse(s.id.url)
	if err != nil {
		return fmt.Errorf("server: %w", err)
	}
	p := &s.parts
	p.aggregator, err = aggregator.New(aggregator.Config{
		Registry: p.registry, ClientConfig: p.loopback, Client: p.client,
		Services: p.informers.Core().V1().Services(), CRDs: p.extensions.CRDs(), Discovery: config.Discovery,
		Self: self, CertFile: s.config.ProxyClientCertFile, KeyFile: s.config.ProxyClientKeyFile,
		Resolver: p.services, RejectRedirects: s.config.AggregatorRejectForwardingRedirects,
		Dial: s.egress.dialer(egressselector.Cluster),
	})
	if err != nil {
		return fmt.Errorf("server: aggregator: %w", err)
	}
	config.Aggregator = p.aggregator
	return nil
}

// newFlow returns API Priority and Fairness; nil if it is disabled.
func (s *Server) newFlow() *flow.Control {
	if !s.config.Features.EnablePriorityAndFairness {
		return nil
	}
	p := &s.parts
	return flow.New(flow.Config{
		Client: p.client, Informers: p.informers, Stored: stored(p.registry),
		Limit: s.config.GenericServerRunOptions.MaxRequestsInFlight + s.config.GenericServerRunOptions.MaxMutatingRequestsInFlight,
	})
}

// stored returns a function that returns the number and size of a resource's objects. Like kube-apiserver, the function
// knows a custom resource only after a request has named it.
func stored(all *registry.Registry) func(string) (storage.Stats, error) {
	known := make(map[string]*registry.Resource)
	for _, r := range all.Resources() {
		known[r.GroupResource.String()] = r
	}
	return func(name string) (storage.Stats, error) {
		r := known[name]
		if r == nil {
			r = all.CustomResource(schema.ParseGroupResource(name))
		}
		if r == nil || r.Cache == nil || !r.Cache.Ready() {
			return storage.Stats{}, flowrequest.ObjectCountNotFoundErr
		}
		now := r.Cache.Snapshot()
		objects := int64(now.Len())
		return storage.Stats{ObjectCount: objects, EstimatedAverageObjectSizeBytes: int64(now.StoredBytes()) / max(objects, 1)}, nil
	}
}
