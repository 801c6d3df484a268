package httpapi

import (
	"strings"
	"sync/atomic"

	jsonpatch "github.com/evanphx/json-patch"
	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apiserver/pkg/server/healthz"

	"github.com/larder-io/larder/httpapi/apimetrics"
	"github.com/larder-io/larder/httpapi/discovery"
	"github.com/larder-io/larder/httpapi/openapi"
	"github.com/larder-io/larder/httpapi/routes"
)

// install builds the table of everything that the server answers and publishes it.
func (s *Server) install() error {
	boundCopies()
	config := &s.config
	groups := config.Registry.Groups()
	in := &routes.Installer{
		Admission:    config.Admission,
		Authorizer:   config.Authorizer,
		Version:      config.Version,
		MaxBodyBytes: config.MaxRequestBodyBytes,
		MinWatch:     config.MinRequestTimeout,
		Models:       openapi.NewModels(),
	}
	s.models = in.Models
	t := routes.New()
	if err := in.Install(t, groups); err != nil {
		return err
	}
	documents := discovery.New(discovery.Config{
		Groups: groups, Address: config.externalAddress(),
		Extensions: config.Extensions, Aggregator: config.Aggregator, Everything: config.Discovery,
	})
	if err := documents.Install(t); err != nil {
		return err
	}
	describer := &openapi.Describer{Models: in.Models, Groups: groups, Version: config.Version, Extensions: config.Extensions, Aggregator: config.Aggregator, Handlers: config.Handlers}
	describer.Install(t)
	if config.Flow != nil {
		serveFlow(t, config.Flow)
	}
	if err := s.metricsPage(t).Install(t); err != nil {
		return err
	}
	discovery.InstallVersion(t, config.Version)
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
	discovery.InstallIndex(t, t.Paths(), config.Aggregator)
	s.publish(t)
	return nil
}

// metricsPage is what /metrics tells of what t serves.
func (s *Server) metricsPage(t *routes.Table) *apimetrics.Page {
	p := &apimetrics.Page{Resources: t, Access: &s.access, Collectors: append(s.collectors(), s.config.Collectors...)}
	if s.config.Flow != nil {
		p.Amend = append(p.Amend, s.config.Flow.AddTo)
	}
	if s.config.Amend != nil {
		p.Amend = append(p.Amend, s.config.Amend)
	}
	if s.config.Aggregator != nil {
		p.More = append(p.More, s.config.Aggregator)
	}
	return p
}

// collectors report what the server itself has.
func (s *Server) collectors() []prometheus.Collector {
	own := []prometheus.Collector{
		apimetrics.NewCacheCollector(s.config.Registry, !s.config.NoObjectCounts), apimetrics.NewBudgetCollector(s.config.Registry), apimetrics.NewAccessCollector(&s.access),
		s.front.Collector(), s.rights.Collector(),
		apimetrics.NewBuildInfo(s.config.Version),
	}
	return append(own, s.stitcher.Collectors()...)
}

// readyChecks are those of the configuration, and that shutdown has not begun.
func (s *Server) readyChecks() []healthz.HealthChecker {
	return append(s.config.ReadyChecks[:len(s.config.ReadyChecks):len(s.config.ReadyChecks)], healthz.NewShutdownHealthz(s.draining))
}

// externalAddress is where clients reach the server.
func (c *Config) externalAddress() string {
	if c.ExternalAddress != "" {
		return c.ExternalAddress
	}
	return c.Listener.Addr().String()
}

// publish makes t what requests are routed by from now on.
func (s *Server) publish(t *routes.Table) { s.table.Store(t) }

// maxCopied is how many bytes the copies of one JSON patch may add in all (apiserver
// pkg/server/config.go). Without a bound few operations would fill any memory.
const maxCopied = 3 << 20

// boundCopies bounds them, for the whole process: the library has a variable for it.
func boundCopies() { atomic.CompareAndSwapInt64(&jsonpatch.AccumulatedCopySizeLimit, 0, maxCopied) }
