package server

import (
	"crypto/tls"
	"errors"
	"fmt"
	"net/url"

	"k8s.io/apiserver/pkg/server/egressselector"

	"github.com/larder-io/larder/httpapi"
	"github.com/larder-io/larder/internal/aggregator"
)

// Aggregation says how other API servers are reached, which answer for parts of this one.
type Aggregation struct {
	// CertFile and KeyFile, given together, prove to them who hands requests on.
	CertFile, KeyFile string
	// EndpointRouting turns to the endpoints of their services instead of cluster IPs.
	EndpointRouting bool
	// RejectRedirects lets none of them redirect clients.
	RejectRedirects bool
}

func (a *Aggregation) validate() error {
	if (a.CertFile == "") != (a.KeyFile == "") {
		return errors.New("--proxy-client-cert-file and --proxy-client-key-file must be given together")
	}
	return nil
}

// check reads the files, which are read again when they change.
func (a *Aggregation) check() error {
	if a.CertFile == "" {
		return nil
	}
	if _, err := tls.LoadX509KeyPair(a.CertFile, a.KeyFile); err != nil {
		return fmt.Errorf("server: --proxy-client-cert-file: %w", err)
	}
	return nil
}

// aggregate lets other servers answer for parts of what config serves.
func (s *Server) aggregate(config *httpapi.Config) error {
	self, err := url.Parse(s.id.url)
	if err != nil {
		return fmt.Errorf("server: %w", err)
	}
	p, c := &s.parts, &s.config.Aggregation
	p.aggregator, err = aggregator.New(aggregator.Config{
		Registry:        p.registry,
		ClientConfig:    p.loopback,
		Client:          p.client,
		Services:        p.informers.Core().V1().Services(),
		Definitions:     p.extensions.Definitions(),
		Discovery:       config.Discovery,
		Self:            self,
		CertFile:        c.CertFile,
		KeyFile:         c.KeyFile,
		EndpointRouting: c.EndpointRouting,
		RejectRedirects: c.RejectRedirects,
		Dial:            s.dialer(egressselector.Cluster),
	})
	if err != nil {
		return fmt.Errorf("server: other servers: %w", err)
	}
	config.Aggregator = p.aggregator
	return nil
}
