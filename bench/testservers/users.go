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
	"path/filepath"
	"time"

	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"k8s.io/client-go/util/cert"
	"k8s.io/client-go/util/keyutil"
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

// Kubeconfig writes a kubeconfig for a user with a client certificate, and returns its path.
func (f *Servers) Kubeconfig(s *Server, user string, groups ...string) (string, error) {
	identity, err := f.Identity(user, groups...)
	if err != nil {
		return "", err
	}
	key, err := keyutil.MarshalPrivateKeyToPEM(identity.PrivateKey)
	if err != nil {
		return "", fmt.Errorf("testservers: %w", err)
	}
	const name = "bench"
	config := clientcmdapi.NewConfig()
	config.Clusters[name] = &clientcmdapi.Cluster{Server: "https://" + s.Target.Address(), InsecureSkipTLSVerify: true}
	config.AuthInfos[name] = &clientcmdapi.AuthInfo{ClientCertificateData: certificatePEM(identity.Certificate[0]), ClientKeyData: key}
	config.Contexts[name] = &clientcmdapi.Context{Cluster: name, AuthInfo: name}
	config.CurrentContext = name
	f.count++
	file := filepath.Join(f.config.Dir, fmt.Sprintf("kubeconfig-%d", f.count))
	if err := clientcmd.WriteToFile(*config, file); err != nil {
		return "", fmt.Errorf("testservers: %w", err)
	}
	return file, nil
}

func certificatePEM(der []byte) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: cert.CertificateBlockType, Bytes: der})
}
