package servingcert

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"io"
	"path/filepath"
	"strings"
	"testing"

	"k8s.io/apiserver/pkg/server/options"

	"github.com/larder-io/larder/cmd/larder/internal/server/pki"
	"github.com/larder-io/larder/internal/proctest"
)

// shake connects once and returns the state of the TLS handshake.
func shake(t *testing.T, address string, roots *x509.CertPool, cache tls.ClientSessionCache) (tls.ConnectionState, error) {
	t.Helper()
	conn, err := tls.Dial("tcp", address, &tls.Config{RootCAs: roots, ServerName: "host", ClientSessionCache: cache})
	if err != nil {
		return tls.ConnectionState{}, err
	}
	defer conn.Close()
	// The server's first byte comes after its session tickets.
	if _, err := io.ReadFull(conn, make([]byte, 1)); err != nil {
		return tls.ConnectionState{}, err
	}
	return conn.ConnectionState(), nil
}

// listenTLS greets every connection with a byte until the test ends.
func listenTLS(t *testing.T, config *tls.Config) string {
	t.Helper()
	l, err := tls.Listen("tcp", "127.0.0.1:0", config)
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			_, _ = conn.Write([]byte("!"))
			conn.Close()
		}
	}()
	t.Cleanup(func() { l.Close(); <-done })
	return l.Addr().String()
}

func poolOf(t *testing.T, a *pki.Authority) *x509.CertPool {
	t.Helper()
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(a.Bundle) {
		t.Fatal("no certificate")
	}
	return pool
}

// TestReplacedCertificatesAreShown checks that sessions are resumed, and that new connections get a replaced key
// pair.
func TestReplacedCertificatesAreShown(t *testing.T) {
	before, err := pki.Load(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	after, err := pki.Load(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	certFile, keyFile := filepath.Join(dir, "a.crt"), filepath.Join(dir, "a.key")
	if err := before.Serve(certFile, keyFile, []string{"host"}); err != nil {
		t.Fatal(err)
	}
	c, err := Load(certFile, keyFile, nil, options.NewSecureServingOptions())
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- c.Run(ctx) }()
	defer func() { cancel(); <-ended }()
	address, cache := listenTLS(t, c.TLS()), tls.NewLRUClientSessionCache(1)
	for i := range 2 {
		state, err := shake(t, address, poolOf(t, before), cache)
		if err != nil {
			t.Fatal(err)
		}
		if state.NegotiatedProtocol != "" || state.Version != tls.VersionTLS13 || state.DidResume != (i == 1) {
			t.Errorf("connection %d: %+v", i, state)
		}
	}
	certPEM, keyPEM, err := after.Issue(&x509.Certificate{DNSNames: []string{"host"}})
	if err != nil {
		t.Fatal(err)
	}
	if err := pki.WritePair(certFile, certPEM, keyFile, keyPEM); err != nil {
		t.Fatal(err)
	}
	proctest.Eventually(t, "the new certificate is shown", func() error {
		_, err := shake(t, address, poolOf(t, after), nil)
		return err
	})
}

func TestCertificatesBroken(t *testing.T) {
	if _, err := Load("missing.crt", "missing.key", nil, options.NewSecureServingOptions()); err == nil || !strings.Contains(err.Error(), "missing.crt") {
		t.Errorf("error %v", err)
	}
}
