package testservers

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"os"
	"path/filepath"

	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
)

// SigningKey is the file of the key that reserved the tokens of service accounts.
func (f *Servers) SigningKey() string { return f.key() }

// CAFile is the file of the CA that signs the certificates of clients.
func (f *Servers) CAFile() string { return f.caFile() }

// StartBeside starts a program beside the servers, a controller for example. It has no Target.
// Close stops it before all that was started earlier.
func (f *Servers) StartBeside(name, program string, args []string) (*Server, error) {
	return f.start(name, program, args)
}

// Kubeconfig writes a kubeconfig for a user with a client certificate, and returns its name.
func (f *Servers) Kubeconfig(s *Server, user string, groups ...string) (string, error) {
	identity, err := f.Identity(user, groups...)
	if err != nil {
		return "", err
	}
	cert, key, err := pemOf(identity)
	if err != nil {
		return "", err
	}
	const name = "it"
	config := clientcmdapi.NewConfig()
	config.Clusters[name] = &clientcmdapi.Cluster{Server: "https://" + s.Address(), InsecureSkipTLSVerify: true}
	config.AuthInfos[name] = &clientcmdapi.AuthInfo{ClientCertificateData: cert, ClientKeyData: key}
	config.Contexts[name] = &clientcmdapi.Context{Cluster: name, AuthInfo: name}
	config.CurrentContext = name
	f.count++
	file := filepath.Join(f.config.Dir, fmt.Sprintf("kubeconfig-%d", f.count))
	text, err := clientcmd.Write(*config)
	if err != nil {
		return "", fmt.Errorf("testservers: %w", err)
	}
	if err := os.WriteFile(file, text, 0o600); err != nil {
		return "", fmt.Errorf("testservers: %w", err)
	}
	return file, nil
}

// pemOf encodes a certificate and its key.
func pemOf(identity tls.Certificate) (cert, key []byte, err error) {
	der, err := x509.MarshalPKCS8PrivateKey(identity.PrivateKey)
	if err != nil {
		return nil, nil, fmt.Errorf("testservers: %w", err)
	}
	var chain bytes.Buffer
	for _, c := range identity.Certificate {
		if err := pem.Encode(&chain, &pem.Block{Type: "CERTIFICATE", Bytes: c}); err != nil {
			return nil, nil, fmt.Errorf("testservers: %w", err)
		}
	}
	return chain.Bytes(), pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}), nil
}
