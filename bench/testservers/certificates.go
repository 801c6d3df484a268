package testservers

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"fmt"
	"math/big"
	"time"

	"k8s.io/client-go/util/cert"
)

// SelfSigned returns a self-signed CA with a key of the type that Larder uses.
func SelfSigned(name string) (tls.Certificate, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return tls.Certificate{}, fmt.Errorf("testservers: %w", err)
	}
	made, err := cert.NewSelfSignedCACert(cert.Config{CommonName: name}, key)
	if err != nil {
		return tls.Certificate{}, fmt.Errorf("testservers: %w", err)
	}
	return tls.Certificate{Certificate: [][]byte{made.Raw}, PrivateKey: key, Leaf: made}, nil
}

// Identity returns a client certificate of a user, which all servers accept. It may be called concurrently.
func (f *Servers) Identity(user string, groups ...string) (tls.Certificate, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return tls.Certificate{}, fmt.Errorf("testservers: %w", err)
	}
	const longest = 24 * time.Hour                                           // longer than any Servers lives
	number, _ := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 100)) // never fails
	template := &x509.Certificate{
		SerialNumber: number, Subject: pkix.Name{CommonName: user, Organization: groups},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(longest),
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, f.signer.Leaf, key.Public(), f.signer.PrivateKey)
	if err != nil {
		return tls.Certificate{}, fmt.Errorf("testservers: %w", err)
	}
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, nil
}
