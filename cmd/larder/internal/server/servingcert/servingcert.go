package servingcert

import (
	"context"
	"crypto/tls"
	"fmt"

	"golang.org/x/sync/errgroup"
	"k8s.io/apiserver/pkg/server/dynamiccertificates"
	"k8s.io/apiserver/pkg/server/options"
	cliflag "k8s.io/component-base/cli/flag"

	"github.com/larder-io/larder/httpapi/http1"
)

// Certificates serves the TLS configuration and follows the files behind it: new
// connections get what the files hold, and a bad file leaves the last good one.
type Certificates struct {
	pair       *dynamiccertificates.DynamicCertKeyPairContent
	named      []dynamiccertificates.SNICertKeyContentProvider // for single names
	controller *dynamiccertificates.DynamicServingCertificateController
	config     *tls.Config
}

// Load reads the files. Who is not named by one of secure's certificates gets
// the pair that is named first.
func Load(certFile, keyFile string, clientCA dynamiccertificates.CAContentProvider, secure *options.SecureServingOptions) (*Certificates, error) {
	// Checked first: upstream's constructor leaves goroutines behind when it fails.
	if _, err := tls.LoadX509KeyPair(certFile, keyFile); err != nil {
		return nil, fmt.Errorf("server: serving certificate: %w", err)
	}
	for _, c := range secure.SNICertKeys {
		if _, err := tls.LoadX509KeyPair(c.CertFile, c.KeyFile); err != nil {
			return nil, fmt.Errorf("server: failed to load SNI cert and key: %w", err)
		}
	}
	pair, err := dynamiccertificates.NewDynamicServingContentFromFiles("serving-cert", certFile, keyFile)
	if err != nil {
		return nil, fmt.Errorf("server: serving certificate: %w", err)
	}
	base, err := Base(secure)
	if err != nil {
		return nil, err
	}
	if clientCA != nil {
		// Verified by the authenticator, as other credentials may stand in.
		base.ClientAuth = tls.RequestClientCert
	}
	named, err := namedPairs(secure)
	if err != nil {
		return nil, err
	}
	controller := dynamiccertificates.NewDynamicServingCertificateController(base, clientCA, pair, named, nil)
	pair.AddListener(controller)
	for _, p := range named {
		if p, ok := p.(dynamiccertificates.Notifier); ok {
			p.AddListener(controller)
		}
	}
	if clientCA != nil {
		clientCA.AddListener(controller)
	}
	if err := controller.RunOnce(); err != nil {
		return nil, fmt.Errorf("server: serving certificate: %w", err)
	}
	// The outer configuration is the one that keeps the session ticket keys.
	config := base.Clone()
	config.GetConfigForClient = controller.GetConfigForClient
	return &Certificates{pair: pair, named: named, controller: controller, config: config}, nil
}

// Base is what does not change: versions, ciphers and curves.
func Base(secure *options.SecureServingOptions) (*tls.Config, error) {
	config := &tls.Config{
		MinVersion: tls.VersionTLS12,
		NextProtos: http1.Protocols(!secure.DisableHTTP2Serving),
		// Small records first help a browser's first paint and nobody here.
		DynamicRecordSizingDisabled: true,
	}
	if secure.MinTLSVersion != "" {
		version, err := cliflag.TLSVersion(secure.MinTLSVersion)
		if err != nil {
			return nil, err
		}
		config.MinVersion = version
	}
	if len(secure.CipherSuites) > 0 {
		suites, err := cliflag.TLSCipherSuites(secure.CipherSuites)
		if err != nil {
			return nil, err
		}
		config.CipherSuites = suites
	}
	if len(secure.CurvePreferences) > 0 {
		curves, err := cliflag.TLSCurvePreferences(secure.CurvePreferences)
		if err != nil {
			return nil, err
		}
		config.CurvePreferences = curves
	}
	return config, nil
}

// namedPairs are the certificates of single names, those that are named first before
// others of the same name, as apiserver pkg/server/options/serving.go has it.
func namedPairs(secure *options.SecureServingOptions) ([]dynamiccertificates.SNICertKeyContentProvider, error) {
	var all []dynamiccertificates.SNICertKeyContentProvider
	for _, c := range secure.SNICertKeys {
		pair, err := dynamiccertificates.NewDynamicSNIContentFromFiles("sni-serving-cert", c.CertFile, c.KeyFile, c.Names...)
		if err != nil {
			return nil, fmt.Errorf("server: failed to load SNI cert and key: %w", err)
		}
		all = append(all, pair)
	}
	return all, nil
}

// TLS returns the configuration of the server, which changes with the files.
func (c *Certificates) TLS() *tls.Config { return c.config }

// Run follows the files until ctx ends. It must be called, if only with an ended
// context: upstream's controllers have goroutines from their construction on.
func (c *Certificates) Run(ctx context.Context) error {
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { c.pair.Run(ctx, 1); return nil })
	for _, pair := range c.named {
		if pair, ok := pair.(dynamiccertificates.ControllerRunner); ok {
			group.Go(func() error { pair.Run(ctx, 1); return nil })
		}
	}
	group.Go(func() error { c.controller.Run(1, ctx.Done()); return nil })
	return group.Wait()
}
