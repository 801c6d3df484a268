package testservers

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"time"
)

// signer reserved the certificates of clients.
type signer struct {
	key  *ecdsa.PrivateKey
	cert *x509.Certificate
}

func newSigner() (*signer, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("testservers: %w", err)
	}
	template := template("clients")
	template.IsCA, template.BasicConstraintsValid, template.KeyUsage = true, true, x509.KeyUsageCertSign
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return nil, fmt.Errorf("testservers: %w", err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, fmt.Errorf("testservers: %w", err)
	}
	return &signer{key, cert}, nil
}

// template is of a certificate of a day, longer than any Servers lives.
func template(name string) *x509.Certificate {
	const longest = 24 * time.Hour
	number, _ := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 100)) // never fails
	return &x509.Certificate{
		SerialNumber: number, Subject: pkix.Name{CommonName: name},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(longest),
	}
}

func (s *signer) pem() []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: s.cert.Raw})
}

// Identity returns a certificate by which all servers know a user. It may be called
// concurrently.
func (f *Servers) Identity(user string, groups ...string) (tls.Certificate, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return tls.Certificate{}, fmt.Errorf("testservers: %w", err)
	}
	template := template(user)
	template.Subject.Organization = groups
	template.KeyUsage, template.ExtKeyUsage = x509.KeyUsageDigitalSignature, []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}
	der, err := x509.CreateCertificate(rand.Reader, template, f.signer.cert, key.Public(), f.signer.key)
	if err != nil {
		return tls.Certificate{}, fmt.Errorf("testservers: %w", err)
	}
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, nil
}
