// Package testcert makes certificates for tests. They are valid from an hour ago until an hour from now. Keys
// use the curve P-256. Functions fail the test with t.Fatal on an error, so they must be called from the
// test's goroutine.
package testcert

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// Authority is a CA. Key is the private key of Cert.
type Authority struct {
	Key  *ecdsa.PrivateKey
	Cert *x509.Certificate
}

// New makes a CA with a common name.
func New(t testing.TB, name string) *Authority {
	t.Helper()
	template := newTemplate(pkix.Name{CommonName: name})
	template.KeyUsage, template.BasicConstraintsValid, template.IsCA = x509.KeyUsageCertSign, true, true
	key := newKey(t)
	der := must[[]byte](t)(x509.CreateCertificate(rand.Reader, template, template, key.Public(), key))
	return &Authority{Key: key, Cert: must[*x509.Certificate](t)(x509.ParseCertificate(der))}
}

// Of returns an Authority that signs with cert, which has an ECDSA key. cert is an intermediate CA, or a certificate
// that must not sign.
func Of(t testing.TB, cert tls.Certificate) *Authority {
	t.Helper()
	return &Authority{Key: cert.PrivateKey.(*ecdsa.PrivateKey), Cert: must[*x509.Certificate](t)(x509.ParseCertificate(cert.Certificate[0]))}
}

// PEM returns the CA's certificate.
func (a *Authority) PEM() string {
	return string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: a.Cert.Raw}))
}

// Sign makes a client certificate with a common name and groups. edit, if not nil, changes the template
// first.
func (a *Authority) Sign(t testing.TB, name string, groups []string, edit func(*x509.Certificate)) tls.Certificate {
	t.Helper()
	template := newTemplate(pkix.Name{CommonName: name, Organization: groups})
	template.KeyUsage, template.ExtKeyUsage = x509.KeyUsageDigitalSignature, []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}
	if edit != nil {
		edit(template)
	}
	key := newKey(t)
	der := must[[]byte](t)(x509.CreateCertificate(rand.Reader, template, a.Cert, key.Public(), a.Key))
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}
}

// Loopback returns the TLS configuration of a server at 127.0.0.1, and the CA pool of its clients.
func Loopback(t testing.TB) (*tls.Config, *x509.CertPool) {
	t.Helper()
	a := New(t, "loopback")
	cert := a.Sign(t, "127.0.0.1", nil, func(c *x509.Certificate) {
		c.IPAddresses, c.ExtKeyUsage = []net.IP{net.IPv4(127, 0, 0, 1)}, []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}
	})
	pool := x509.NewCertPool()
	pool.AddCert(a.Cert)
	return &tls.Config{Certificates: []tls.Certificate{cert}}, pool
}

// Write writes a certificate and its key in PEM to dir, as name.crt and name.key, and
// returns the files.
func Write(t testing.TB, dir, name string, cert tls.Certificate) (certFile, keyFile string) {
	t.Helper()
	key := must[[]byte](t)(x509.MarshalECPrivateKey(cert.PrivateKey.(*ecdsa.PrivateKey)))
	certFile, keyFile = filepath.Join(dir, name+".crt"), filepath.Join(dir, name+".key")
	for file, block := range map[string]*pem.Block{certFile: {Type: "CERTIFICATE", Bytes: cert.Certificate[0]}, keyFile: {Type: "EC PRIVATE KEY", Bytes: key}} {
		if err := os.WriteFile(file, pem.EncodeToMemory(block), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return certFile, keyFile
}

func newTemplate(subject pkix.Name) *x509.Certificate {
	return &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()), Subject: subject,
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
	}
}

func newKey(t testing.TB) *ecdsa.PrivateKey {
	t.Helper()
	return must[*ecdsa.PrivateKey](t)(ecdsa.GenerateKey(elliptic.P256(), rand.Reader))
}

// must returns a function that returns its first argument, or fails the test if the error is not nil.
func must[T any](t testing.TB) func(T, error) T {
	return func(result T, err error) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return result
	}
}
