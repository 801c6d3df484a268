package server

import (
	"fmt"
	"net/url"

	"k8s.io/apiserver/pkg/server/egressselector"

	"github.com/larder-io/larder/httpapi"
	"github.com/larder-io/larder/httpapi/aggregator"
)

// aggregate adds the aggregator to config.
func (s *Server) aggregate(config *httpapi.Config) error {
	self, err := url.Parse(s.id.url)
	if err != nil {
		return fmt.Errorf("server: %w", err)
	}
	p := &s.parts
	p.aggregator, err = aggregator.New(aggregator.Config{
		Registry:        p.registry,
		ClientConfig:    p.loopback,
		Client:          p.client,
		Services:        p.informers.Core().V1().Services(),
		CRDs:            p.extensions.CRDs(),
		Discovery:       config.Discovery,
		Self:            self,
		CertFile:        s.config.ProxyClientCertFile,
		KeyFile:         s.config.ProxyClientKeyFile,
		Resolver:        p.services,
		RejectRedirects: s.config.AggregatorRejectForwardingRedirects,
		Dial:            s.egress.dialer(egressselector.Cluster),
	})
	if err != nil {
		return fmt.Errorf("server: peer proxy: %w", err)
	}
	config.Aggregator = p.aggregator
	return nil
}
