package server

import (
	"context"
	"crypto/tls"
	"fmt"

	"golang.org/x/sync/errgroup"
	"k8s.io/apiserver/pkg/server/dynamiccertificates"
)

// certificates serves the TLS configuration and follows the files behind it: new
// connections get what the files hold, and a bad file leaves the last good one.
type certificates struct {
	pair       *dynamiccertificates.DynamicCertKeyPairContent
	controller *dynamiccertificates.DynamicServingCertificateController
	config     *tls.Config
}

func loadCertificates(certFile, keyFile string, clientCA dynamiccertificates.CAContentProvider) (*certificates, error) {
	// Checked first: upstream's constructor leaves goroutines behind when it fails.
	if _, err := tls.LoadX509KeyPair(certFile, keyFile); err != nil {
		return nil, fmt.Errorf("server: serving certificate: %w", err)
	}
	pair, err := dynamiccertificates.NewDynamicServingContentFromFiles("serving-cert", certFile, keyFile)
	if err != nil {
		return nil, fmt.Errorf("server: serving certificate: %w", err)
	}
	base := &tls.Config{
		MinVersion: tls.VersionTLS12,
		NextProtos: []string{"http/1.1"},
		// Small records first help a browser's first paint and nobody here.
		DynamicRecordSizingDisabled: true,
	}
	if clientCA != nil {
		// Verified by the authenticator, as other credentials may stand in.
		base.ClientAuth = tls.RequestClientCert
	}
	controller := dynamiccertificates.NewDynamicServingCertificateController(base, clientCA, pair, nil, nil)
	pair.AddListener(controller)
	if clientCA != nil {
		clientCA.AddListener(controller)
	}
	if err := controller.RunOnce(); err != nil {
		return nil, fmt.Errorf("server: serving certificate: %w", err)
	}
	// The outer configuration is the one that keeps the session ticket keys.
	config := base.Clone()
	config.GetConfigForClient = controller.GetConfigForClient
	return &certificates{pair: pair, controller: controller, config: config}, nil
}

// run follows the files until ctx ends. It must be called, if only with an ended
// context: upstream's controllers have goroutines from their construction on.
func (c *certificates) run(ctx context.Context) error {
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { c.pair.Run(ctx, 1); return nil })
	group.Go(func() error { c.controller.Run(1, ctx.Done()); return nil })
	return group.Wait()
}
