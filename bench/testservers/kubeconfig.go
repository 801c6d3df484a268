package testservers

import (
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"path/filepath"

	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
)

// Kubeconfig writes a kubeconfig for a user with a client certificate, and returns its path.
func (f *Servers) Kubeconfig(s *Server, user string, groups ...string) (string, error) {
	identity, err := f.Identity(user, groups...)
	if err != nil {
		return "", err
	}
	der, err := x509.MarshalPKCS8PrivateKey(identity.PrivateKey)
	if err != nil {
		return "", fmt.Errorf("testservers: %w", err)
	}
	f.count++
	file := filepath.Join(f.config.Dir, fmt.Sprintf("kubeconfig-%d", f.count))
	return file, writeKubeconfig(file, s.Target.Address(), &clientcmdapi.AuthInfo{
		ClientCertificateData: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: identity.Certificate[0]}),
		ClientKeyData:         pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}),
	})
}

// writeKubeconfig writes a kubeconfig for the server at an address.
func writeKubeconfig(file, address string, user *clientcmdapi.AuthInfo) error {
	const name = "bench"
	config := clientcmdapi.NewConfig()
	config.Clusters[name] = &clientcmdapi.Cluster{Server: "https://" + address, InsecureSkipTLSVerify: true}
	config.AuthInfos[name] = user
	config.Contexts[name] = &clientcmdapi.Context{Cluster: name, AuthInfo: name}
	config.CurrentContext = name
	if err := clientcmd.WriteToFile(*config, file); err != nil {
		return fmt.Errorf("testservers: %w", err)
	}
	return nil
}
