package httpapi

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/semaphore"
	"golang.org/x/sys/unix"
	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	upstreamdiscovery "k8s.io/apiserver/pkg/endpoints/discovery"
	"k8s.io/apiserver/pkg/features"
	"k8s.io/apiserver/pkg/server/healthz"
	"k8s.io/apiserver/pkg/server/mux"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	"k8s.io/kube-openapi/pkg/validation/spec"

	"github.com/larder-io/larder/httpapi/apimetrics"
	"github.com/larder-io/larder/httpapi/costs"
	"github.com/larder-io/larder/httpapi/discovery"
	"github.com/larder-io/larder/httpapi/http1"
	"github.com/larder-io/larder/httpapi/identity"
	"github.com/larder-io/larder/httpapi/nethttp"
	"github.com/larder-io/larder/httpapi/openapi"
	"github.com/larder-io/larder/httpapi/patches"
	"github.com/larder-io/larder/httpapi/reads"
	"github.com/larder-io/larder/httpapi/revocation"
	"github.com/larder-io/larder/httpapi/routes"
	"github.com/larder-io/larder/httpapi/statuspage"
	"github.com/larder-io/larder/httpapi/streams"
)

// New builds a server from config with all its routes. It does no I/O and starts no goroutine.
func New(config Config) (*Server, error) {
	s := newServer(config)
	if err := s.install(); err != nil {
		return nil, fmt.Errorf("httpapi: install: %w", err)
	}
	return s, nil
}

// newServer returns a server with an empty routing table.
func newServer(config Config) *Server {
	config.setDefaults()
	s := &Server{config: config, draining: make(chan struct{}), unready: make(chan struct{}), access: apimetrics.NewAccess(), streams: streams.New(), ledger: costs.New(config.cpu)}
	s.base, s.cancel = context.WithCancel(context.Background())
	s.stitcher = reads.NewStitcher(64 << 20)
	s.assemble()
	s.http1 = http1.New(s.http1Config())
	s.table.Store(routes.New())
	return s
}

// assemble builds the handler chain and its parts.
func (s *Server) assemble() {
	config, credential, digester := &s.config, identity.NewHeaders(s.config.RequestHeader), identity.NewDigester()
	s.rights = revocation.New(s.rightsConfig(credential, digester))
	s.handlers = nethttp.New(nethttp.Config{Streams: s.streams, Flow: config.Flow, Join: s.rights.Join, Credential: credential.Has})
	auditor := &auditor{policy: config.AuditPolicy, sink: config.Audit}
	s.chain = &chain{
		handlers: s.handlers, base: s.base,
		parser:   parser{hsts: config.HSTS, credentials: credential},
		auditor:  auditor,
		timeouts: timeoutFilter{timeout: config.RequestTimeout, auditor: auditor},
		cors:     newCORSFilter(config.CORS, auditor),
		authentication: authentication{auditor: auditor, relayed: config.Relay != nil, identity: &identity.Authentication{
			Authenticator: config.Authenticator, Generation: config.Generation, AnonymousByPath: config.AnonymousByPath,
			Audiences: config.Audiences, Digester: digester, Access: s.access,
		}},
		tracer: newTracer(config.Spans, config.SampleChance),
		concurrency: concurrency{
			flow: config.Flow, inflight: &s.inflight, timeout: config.RequestTimeout,
			maxReading: config.MaxInFlight, maxMutating: config.MaxMutatingInFlight,
		},
		freeUndecided:       semaphore.NewWeighted(maxFreeUndecided),
		authorization:       authorization{authorizer: config.Authorizer, access: s.access, auditor: auditor, relayed: config.Relay != nil, statusPage: config.StatusPage},
		impersonationFilter: apimetrics.ImpersonationFilter(),
		storageVersions:     newStorageVersionFilter(config.StorageVersions),
		ledger:              s.ledger,
		failures:            &s.failures,
		faults:              faultFilter{config.Faults},
		router: router{table: &s.table, extensions: config.Extensions, aggregator: config.Aggregator, peers: config.Peers, relay: config.Relay, reader: reader{
			stitcher: s.stitcher, streams: s.streams, rights: s.rights, flow: config.Flow,
			cbor:              utilfeature.DefaultFeatureGate.Enabled(features.CBORServingAndStorage),
			minRequestTimeout: config.MinRequestTimeout, timeout: config.RequestTimeout,
		}},
	}
	if config.Authorizer != nil {
		s.chain.authentication.impersonation = identity.NewImpersonation(config.Authorizer)
	}
}

// http1Config returns the configuration of package http1.
func (s *Server) http1Config() http1.Config {
	return http1.Config{
		Listener: s.config.Listener, TLS: s.config.TLS, Handler: s.chain.handle, Draining: s.draining,
		Limits: s.config.Connections.Limits, BodyTimeout: s.config.RequestTimeout, HTTP2: !s.config.DisableHTTP2,
	}
}

// rightsConfig returns the configuration of package revocation.
func (s *Server) rightsConfig(credential *identity.Headers, digester *identity.Digester) revocation.Config {
	config := revocation.Config{
		Revocation: s.config.Revocation, Authorizer: s.config.Authorizer, Audiences: s.config.Audiences,
		AnonymousByPath: s.config.AnonymousByPath, Headers: credential, Digester: digester,
		Registry: s.config.Registry, Streams: s.streams,
	}
	if s.config.Authenticator == nil { // every client is the super-user, and remains so
		config.Revocation = nil
	}
	return config
}

// install builds the routing table and publishes it.
func (s *Server) install() error {
	patches.BoundCopies()
	config := &s.config
	in := &routes.Installer{
		Admission: config.Admission, Authorizer: config.Authorizer, Version: config.Version,
		MaxBodyBytes: config.MaxBodyBytes, MinRequestTimeout: config.MinRequestTimeout,
		Models: openapi.NewModels(), Equivalents: config.Registry.Equivalents(),
		Monitors: new(apimetrics.Resources),
	}
	s.models = in.Models
	t := routes.New()
	if err := in.Install(t, config.Registry.Groups()); err != nil {
		return err
	}
	if config.Relay == nil {
		if err := s.describe(t, in); err != nil {
			return err
		}
	}
	if config.Flow != nil {
		pages := mux.NewPathRecorderMux("flow control")
		config.Flow.Install(pages)
		t.HandlePrefix("/debug/api_priority_and_fairness/", pages)
	}
	if err := s.metricsPage(in.Monitors).Install(t); err != nil {
		return err
	}
	t.Handle(costs.Path, s.ledger)
	if config.StatusPage {
		s.statusPage().Install(t)
	}
	routes.InstallHealth(t, config.HealthChecks, config.LiveChecks, s.readyChecks())
	if !config.NoProfiling {
		routes.InstallProfiling(t)
	}
	for path, h := range config.Handlers {
		if strings.HasSuffix(path, "/") {
			t.HandlePrefix(path, h)
		} else {
			t.Handle(path, h)
		}
	}
	if config.Relay == nil {
		discovery.InstallIndex(t, t.Paths(), config.Aggregator)
	}
	s.table.Store(t)
	return nil
}

// describe adds the documents that describe the API of a server with a store.
func (s *Server) describe(t *routes.Table, in *routes.Installer) error {
	config, groups := &s.config, s.config.Registry.Groups()
	err := discovery.Install(t, discovery.Config{
		Groups:     groups,
		Addresses:  upstreamdiscovery.DefaultAddresses{DefaultAddress: cmp.Or(config.ExternalAddress, config.Listener.Addr().String()), CIDRRules: config.InternalAddresses},
		Aggregator: config.Aggregator, Everything: config.Discovery, Peers: config.Peers, ID: config.ID,
	})
	if err != nil {
		return err
	}
	describer := &openapi.Describer{Models: in.Models, Groups: groups, Version: config.Version, Handlers: config.Handlers}
	if config.Extensions != nil {
		describer.Extensions = config.Extensions
	}
	if config.Aggregator != nil {
		describer.Aggregator = config.Aggregator
	}
	describer.Install(t)
	discovery.InstallVersion(t, config.Version)
	return nil
}

// metricsPage returns the page at /metrics, which includes the counts of the monitors in own.
func (s *Server) metricsPage(own *apimetrics.Resources) *apimetrics.MetricsPage {
	p := &apimetrics.MetricsPage{Resources: []*apimetrics.Resources{own}, Access: s.access, Collectors: append(s.collectors(), s.config.Collectors...), Amend: s.config.Amend, Limits: s.config.Pages.Limits, Resettable: !s.config.NoProfiling}
	if s.config.Extensions != nil {
		p.Resources = append(p.Resources, s.config.Extensions.Monitors())
	}
	if s.config.Relay != nil {
		p.Resources = append(p.Resources, s.config.Relay.Monitors())
		p.Collectors = append(p.Collectors, prometheus.CollectorFunc(s.config.Relay.Collect))
	}
	if s.config.Aggregator != nil {
		p.More = append(p.More, s.config.Aggregator)
	}
	return p
}

// collectors returns the server's own collectors of metrics.
func (s *Server) collectors() []prometheus.Collector {
	own := []prometheus.Collector{
		apimetrics.NewCacheCollector(s.config.Registry, !s.config.NoObjectCounts), apimetrics.NewBudgetCollector(s.config.Registry),
		s.rights.Collector(), apimetrics.NewBuildInfo(s.config.Version),
	}
	return slices.Concat(own, s.config.Registry.ReadMetrics().Collectors(), s.http1.Network.Collectors(), s.stitcher.Collectors())
}

// readyChecks returns the checks of the configuration, and one that fails during shutdown.
func (s *Server) readyChecks() []healthz.HealthChecker {
	return append(s.config.ReadyChecks[:len(s.config.ReadyChecks):len(s.config.ReadyChecks)], healthz.NewShutdownHealthz(s.unready))
}

// statusPage returns the page that shows the state of s.
func (s *Server) statusPage() *statuspage.Page {
	config := statuspage.Config{
		Version: s.config.Version.GitVersion, Started: time.Now(), Registry: s.config.Registry, Streams: s.streams,
		Flow: s.config.Flow, Ledger: s.ledger, Failures: &s.failures, Checks: s.readyChecks(), Lists: s.stitcher.Bytes,
	}
	if s.config.Relay != nil {
		config.Followed = s.config.Relay.Followed
	}
	return statuspage.New(config)
}

// processCPU returns the CPU time that this process has used, as the kernel counts it.
func processCPU() time.Duration {
	var used unix.Rusage
	if unix.Getrusage(unix.RUSAGE_SELF, &used) != nil { // cannot fail
		return 0
	}
	return time.Duration(used.Utime.Nano() + used.Stime.Nano())
}

// Schemas returns the OpenAPI schemas of CustomResourceDefinitions, and the schemas that custom resources refer to.
func (s *Server) Schemas() (map[string]*spec.Schema, error) {
	for _, g := range s.config.Registry.Groups() {
		if g.Name == apiextensions.GroupName {
			return s.models.Schemas(g)
		}
	}
	return nil, nil
}
