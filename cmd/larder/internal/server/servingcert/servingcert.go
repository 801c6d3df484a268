package servingcert

import (
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"net/http"
	"slices"

	"golang.org/x/net/http2"
	"golang.org/x/sync/errgroup"
	"k8s.io/apiserver/pkg/server"
	"k8s.io/apiserver/pkg/server/dynamiccertificates"
	"k8s.io/apiserver/pkg/server/options"
	"k8s.io/klog/v2"

	"github.com/larder-io/larder/httpapi/http1"
)

// Certificates holds the TLS configuration and reloads it when its files change.
type Certificates struct {
	files      []dynamiccertificates.ControllerRunner
	controller *dynamiccertificates.DynamicServingCertificateController
	config     *tls.Config
}

// Load reads the files. Clients get the certificate in certFile, or secure's generated one, if none of secure's
// certificates has the requested name.
func Load(certFile, keyFile string, clientCA dynamiccertificates.CAContentProvider, secure *options.SecureServingOptions) (*Certificates, error) {
	// Check the files first, because upstream's constructor leaks goroutines when it fails.
	if _, err := tls.LoadX509KeyPair(certFile, keyFile); err != nil && secure.ServerCert.GeneratedCert == nil {
		return nil, fmt.Errorf("server: serving certificate: %w", err)
	}
	for _, c := range secure.SNICertKeys {
		if _, err := tls.LoadX509KeyPair(c.CertFile, c.KeyFile); err != nil {
			return nil, fmt.Errorf("server: failed to load SNI cert and key: %w", err)
		}
	}
	given := *secure
	given.ServerCert.CertKey = options.CertKey{CertFile: certFile, KeyFile: keyFile}
	base, info, err := apply(given)
	if err != nil {
		return nil, fmt.Errorf("server: serving certificate: %w", err)
	}
	for _, cipher := range base.CipherSuites {
		if slices.ContainsFunc(tls.InsecureCipherSuites(), func(insecure *tls.CipherSuite) bool { return insecure.ID == cipher }) {
			klog.Warningf("Use of insecure cipher '%s' detected.", tls.CipherSuiteName(cipher))
		}
	}
	if clientCA != nil {
		// The authenticator verifies client certificates, because a client may have another credential.
		base.ClientAuth = tls.RequestClientCert
	}
	controller := dynamiccertificates.NewDynamicServingCertificateController(base, clientCA, info.Cert, info.SNICerts, nil)
	// The outer configuration keeps the session ticket keys.
	c := &Certificates{controller: controller, config: base.Clone()}
	c.config.GetConfigForClient = controller.GetConfigForClient
	c.follow(info.Cert)
	for _, named := range info.SNICerts {
		c.follow(named)
	}
	if clientCA != nil {
		clientCA.AddListener(controller)
	}
	if err := controller.RunOnce(); err != nil {
		return nil, fmt.Errorf("server: serving certificate: %w", err)
	}
	return c, nil
}

// follow makes Run reload the files of a certificate.
func (c *Certificates) follow(pair dynamiccertificates.CertKeyContentProvider) {
	if notifier, ok := pair.(dynamiccertificates.Notifier); ok {
		notifier.AddListener(c.controller)
	}
	if files, ok := pair.(dynamiccertificates.ControllerRunner); ok {
		c.files = append(c.files, files)
	}
}

// Base returns the part of the configuration that does not change: versions, ciphers and curves. It reads no
// file.
func Base(secure *options.SecureServingOptions) (*tls.Config, error) {
	flags := *secure
	flags.ServerCert, flags.SNICertKeys = options.GeneratableKeyCert{}, nil
	base, _, err := apply(flags)
	return base, err
}

// apply returns upstream's TLS configuration for secure, without listening.
func apply(secure options.SecureServingOptions) (*tls.Config, *server.SecureServingInfo, error) {
	secure.Listener = noListener{}
	var info *server.SecureServingInfo
	if err := secure.ApplyTo(&info); err != nil {
		return nil, nil, err
	}
	base := &tls.Config{
		MinVersion: info.MinTLSVersion, CipherSuites: info.CipherSuites, CurvePreferences: info.CurvePreferences,
		NextProtos: http1.Protocols(!secure.DisableHTTP2Serving),
		// Small first records only help browsers to render earlier.
		DynamicRecordSizingDisabled: true,
	}
	if !secure.DisableHTTP2Serving { // check that clients can use HTTP/2 with these ciphers
		//lint:ignore SA1019 kube-apiserver starts only if this succeeds
		if err := http2.ConfigureServer(&http.Server{TLSConfig: base.Clone()}, nil); err != nil {
			return nil, nil, fmt.Errorf("error configuring http2: %w", err)
		}
	}
	return base, info, nil
}

// noListener has only an address, which upstream requires.
type noListener struct{ net.Listener }

// Addr implements net.Listener.
func (noListener) Addr() net.Addr { return new(net.TCPAddr) }

// TLS returns the configuration of the server, which changes with the files.
func (c *Certificates) TLS() *tls.Config { return c.config }

// Run watches the files until ctx ends. It must be called, even if only with an ended context, because the
// constructors of upstream's controllers start goroutines.
func (c *Certificates) Run(ctx context.Context) error {
	group, ctx := errgroup.WithContext(ctx)
	for _, files := range c.files {
		group.Go(func() error { files.Run(ctx, 1); return nil })
	}
	group.Go(func() error { c.controller.Run(1, ctx.Done()); return nil })
	return group.Wait()
}
