package server

import (
	"context"
	"crypto/x509"
	"fmt"
	"os"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"
	certutil "k8s.io/client-go/util/cert"

	"github.com/larder-io/larder/cmd/larder/internal/testcontrollers"
)

// buildControllers creates the controllers that tests need, if the configuration enables them.
func (s *Server) buildControllers() (err error) {
	if !s.config.TestControllers {
		return nil
	}
	trusted, err := caCertificatesIn(s.id.certFile)
	if err != nil {
		return err
	}
	s.parts.controllers, err = testcontrollers.New(testcontrollers.Config{Client: s.parts.loopback, RootCA: trusted})
	return err
}

// caCertificatesIn returns the CA certificates in the file of a serving certificate. If there are
// none, the CA is unknown, and it returns the whole file: clients can only trust the certificate
// itself.
func caCertificatesIn(certFile string) ([]byte, error) {
	bundle, err := os.ReadFile(certFile)
	if err != nil {
		return nil, fmt.Errorf("server: serving certificate: %w", err)
	}
	certs, err := certutil.ParseCertsPEM(bundle)
	if err != nil {
		return nil, fmt.Errorf("server: %s: %w", certFile, err)
	}
	cas := slices.DeleteFunc(certs, func(cert *x509.Certificate) bool { return !cert.IsCA })
	if len(cas) == 0 {
		return bundle, nil
	}
	return certutil.EncodeCertificates(cas...)
}

// awaitControllers blocks until pods can be admitted, or ctx ends. It warns if a
// kube-controller-manager runs. It retries while the store does not respond.
func (s *Server) awaitControllers(ctx context.Context) error {
	controllers := s.parts.controllers
	if controllers == nil {
		return nil
	}
	var rival string
	var err error
	_ = wait.PollUntilContextCancel(ctx, time.Second, true, func(ctx context.Context) (bool, error) {
		rival, err = testcontrollers.Rival(ctx, s.parts.client)
		return err == nil, nil
	})
	if err != nil {
		return err
	}
	if rival != "" {
		s.progress.printf("warning: kube-controller-manager %s also runs in this cluster: --test-controllers must not run beside it", rival)
	}
	return controllers.WaitReady(ctx)
}
