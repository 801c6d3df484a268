package server

import (
	"fmt"

	"k8s.io/apiserver/pkg/endpoints/discovery/aggregated"
	"k8s.io/kube-openapi/pkg/validation/spec"

	"github.com/larder-io/larder/httpapi"
	"github.com/larder-io/larder/internal/extension"
)

// extend adds custom resources to what config serves.
func (s *Server) extend(config *httpapi.Config) (err error) {
	p := &s.parts
	config.Discovery = aggregated.NewResourceManager("apis")
	p.extensions, err = extension.New(extension.Config{
		Registry:     p.registry,
		ClientConfig: p.loopback,
		Webhooks:     p.webhooks,
		Admission:    p.admission,
		Authorizer:   p.auth.Authorizer,
		Discovery:    config.Discovery.WithSource(aggregated.CRDSource),
		Complete:     func() bool { return p.aggregator.Registered() },
		// Called only for requests, and so p.door is set by then.
		Schemas:           func() (map[string]*spec.Schema, error) { return p.door.Schemas() },
		Alone:             len(s.config.Store.Servers) == 0,
		RequestTimeout:    config.RequestTimeout,
		MinRequestTimeout: config.MinRequestTimeout,
		Logger:            newLogger(),
	})
	if err != nil {
		return fmt.Errorf("server: custom resources: %w", err)
	}
	config.Extensions = p.extensions
	return nil
}
