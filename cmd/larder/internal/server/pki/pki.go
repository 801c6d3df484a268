package pki

import (
	"bytes"
	"cmp"
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
	"unicode"

	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	certutil "k8s.io/client-go/util/cert"
	"k8s.io/client-go/util/keyutil"
)

const (
	// leafLife is how long certificates other than the CA's are valid.
	leafLife = 365 * 24 * time.Hour
	// renewBefore is how long before its expiry a certificate is replaced.
	renewBefore = 30 * 24 * time.Hour
	// renewEvery is how often a running process checks certificates.
	renewEvery = 12 * time.Hour
	// backdate makes new certificates valid on machines whose clock is behind.
	backdate = 5 * time.Minute
)

// Authority is the CA that signs generated certificates.
type Authority struct {
	Cert *x509.Certificate
	// Bundle is Cert in PEM.
	Bundle []byte

	key crypto.PrivateKey
}

// Load reads dir/ca.crt and dir/ca.key, or generates both.
func Load(dir string) (*Authority, error) {
	certFile, keyFile := filepath.Join(dir, "ca.crt"), filepath.Join(dir, "ca.key")
	found, err := pairExists(certFile, keyFile)
	if err != nil {
		return nil, err
	}
	if !found {
		return newAuthority(certFile, keyFile)
	}
	pair, err := tls.LoadX509KeyPair(certFile, keyFile)
	if err != nil {
		return nil, fmt.Errorf("server: certificate authority %s: %w", certFile, err)
	}
	bundle, err := os.ReadFile(certFile)
	if err != nil {
		return nil, fmt.Errorf("server: certificate authority: %w", err)
	}
	return &Authority{Cert: pair.Leaf, key: pair.PrivateKey, Bundle: bundle}, nil
}

// newAuthority generates a CA that is valid for ten years.
func newAuthority(certFile, keyFile string) (*Authority, error) {
	key, keyPEM := newKey()
	cert, err := certutil.NewSelfSignedCACert(certutil.Config{CommonName: "larder-ca", NotBefore: time.Now().Add(-backdate)}, key)
	if err != nil {
		return nil, fmt.Errorf("server: certificate authority: %w", err)
	}
	a := &Authority{Cert: cert, Bundle: encode(cert.Raw), key: key}
	return a, WritePair(certFile, a.Bundle, keyFile, keyPEM)
}

func encode(certificate []byte) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: certutil.CertificateBlockType, Bytes: certificate})
}

// Issue generates a key and signs a certificate for it. The certificate is valid until template.NotAfter, by default for
// a year.
func (a *Authority) Issue(template *x509.Certificate) (certPEM, keyPEM []byte, err error) {
	key, keyPEM := newKey()
	now := time.Now()
	template.NotBefore, template.NotAfter = now.Add(-backdate), cmp.Or(template.NotAfter, now.Add(leafLife))
	certificate, err := x509.CreateCertificate(rand.Reader, template, a.Cert, key.Public(), a.key)
	if err != nil {
		return nil, nil, fmt.Errorf("server: certificate %s: %w", template.Subject, err)
	}
	return encode(certificate), keyPEM, nil
}

// IssueClient issues the client certificate of a user in groups.
func (a *Authority) IssueClient(name string, groups ...string) (certPEM, keyPEM []byte, err error) {
	return a.Issue(&x509.Certificate{
		Subject:     pkix.Name{CommonName: name, Organization: groups},
		KeyUsage:    x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	})
}

// kubeconfigName is the name of the cluster, the user and the context in a kubeconfig.
const kubeconfigName = "larder"

// WriteKubeconfig writes a kubeconfig for url, with the trusted ca and a client certificate. It contains a
// key, so its mode is 0600.
func WriteKubeconfig(file, url string, ca, certPEM, keyPEM []byte) error {
	data, err := kubeconfig(url, ca, certPEM, keyPEM)
	if err != nil {
		return err
	}
	return writeFile(file, data, 0o600)
}

func kubeconfig(url string, ca, certPEM, keyPEM []byte) ([]byte, error) {
	config := clientcmdapi.NewConfig()
	config.Clusters[kubeconfigName] = &clientcmdapi.Cluster{Server: url, CertificateAuthorityData: ca}
	config.AuthInfos[kubeconfigName] = &clientcmdapi.AuthInfo{ClientCertificateData: certPEM, ClientKeyData: keyPEM}
	config.Contexts[kubeconfigName] = &clientcmdapi.Context{Cluster: kubeconfigName, AuthInfo: kubeconfigName}
	config.CurrentContext = kubeconfigName
	data, err := clientcmd.Write(*config)
	if err != nil {
		return nil, fmt.Errorf("server: kubeconfig: %w", err)
	}
	return data, nil
}

// CurrentKubeconfig returns the client certificate of a kubeconfig that WriteKubeconfig has written for url and the
// trusted ca. It returns nil if there is no such file, if a has not signed the certificate for this user, or if the
// certificate expires soon.
func (a *Authority) CurrentKubeconfig(file, url string, ca []byte, name string, groups ...string) *x509.Certificate {
	data, err := os.ReadFile(file)
	if err != nil {
		return nil
	}
	config, err := clientcmd.Load(data)
	if err != nil || config.AuthInfos[kubeconfigName] == nil {
		return nil
	}
	certPEM, keyPEM := config.AuthInfos[kubeconfigName].ClientCertificateData, config.AuthInfos[kubeconfigName].ClientKeyData
	pair, err := tls.X509KeyPair(certPEM, keyPEM)
	if err != nil || pair.Leaf.CheckSignatureFrom(a.Cert) != nil || NearEnd(pair.Leaf) {
		return nil
	}
	if subject := pair.Leaf.Subject; subject.CommonName != name || !slices.Equal(subject.Organization, groups) {
		return nil
	}
	want, err := kubeconfig(url, ca, certPEM, keyPEM)
	info, statErr := os.Stat(file)
	if err != nil || statErr != nil || info.Mode().Perm() != 0o600 || !bytes.Equal(data, want) {
		return nil
	}
	return pair.Leaf
}

// MachineNames returns the host name of this machine, unless a certificate cannot contain it as a DNS name.
func MachineNames() []string {
	name, err := os.Hostname()
	if err != nil || name == "" || net.ParseIP(name) != nil || strings.ContainsFunc(name, func(r rune) bool { return r > unicode.MaxASCII }) {
		return nil
	}
	return []string{name}
}

// Serve ensures that certFile and keyFile hold a serving certificate for hosts. It does not change a pair
// that another CA signed.
func (a *Authority) Serve(certFile, keyFile string, hosts []string) error {
	found, err := pairExists(certFile, keyFile)
	if err != nil {
		return err
	}
	if found {
		leaf, err := ReadLeaf(certFile)
		if err != nil {
			return err
		}
		if leaf.CheckSignatureFrom(a.Cert) != nil || current(leaf, hosts) {
			return nil
		}
	}
	ips, names := SplitHosts(hosts)
	certPEM, keyPEM, err := a.Issue(&x509.Certificate{
		Subject:     pkix.Name{CommonName: "larder"},
		KeyUsage:    x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
		IPAddresses: ips, DNSNames: names,
	})
	if err != nil {
		return err
	}
	// The CA's certificate follows, so that clients can also trust the file, as in upstream.
	return WritePair(certFile, slices.Concat(certPEM, a.Bundle), keyFile, keyPEM)
}

// SplitHosts splits hosts into IP addresses and DNS names.
func SplitHosts(hosts []string) (ips []net.IP, names []string) {
	for _, host := range hosts {
		if ip := net.ParseIP(host); ip != nil {
			ips = append(ips, ip)
		} else {
			names = append(names, host)
		}
	}
	return ips, names
}

// current reports whether leaf is valid for all hosts and not near its end.
func current(leaf *x509.Certificate, hosts []string) bool {
	return !NearEnd(leaf) && !slices.ContainsFunc(hosts, func(host string) bool { return leaf.VerifyHostname(host) != nil })
}

// NearEnd reports whether a certificate must be replaced.
func NearEnd(cert *x509.Certificate) bool { return time.Until(cert.NotAfter) < renewBefore }

// KeepRenewed calls all of renew twice a day until ctx ends. It calls report with each error, and retries
// the next time.
func KeepRenewed(ctx context.Context, renew []func() error, report func(error)) {
	wait.UntilWithContext(ctx, func(context.Context) {
		for _, fn := range renew {
			if err := fn(); err != nil {
				report(err)
			}
		}
	}, renewEvery)
}

// ReadLeaf reads the first certificate of a file.
func ReadLeaf(file string) (*x509.Certificate, error) {
	certs, err := certutil.CertsFromFile(file)
	if err != nil {
		return nil, fmt.Errorf("server: serving certificate: %w", err)
	}
	return certs[0], nil
}

// MakeSigningKey generates a private key unless file exists.
func MakeSigningKey(file string) error {
	if _, err := os.Stat(file); err == nil || !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	_, keyPEM := newKey()
	return writeFile(file, keyPEM, 0o600)
}

// newKey generates a key. It cannot fail, because the curve is known and crypto/rand never fails.
func newKey() (*ecdsa.PrivateKey, []byte) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		panic(err)
	}
	keyPEM, err := keyutil.MarshalPrivateKeyToPEM(key)
	if err != nil {
		panic(err)
	}
	return key, keyPEM
}

// pairExists reports whether both files exist; one without the other is an error.
func pairExists(certFile, keyFile string) (bool, error) {
	_, certErr := os.Stat(certFile)
	_, keyErr := os.Stat(keyFile)
	switch noCert, noKey := errors.Is(certErr, fs.ErrNotExist), errors.Is(keyErr, fs.ErrNotExist); {
	case noCert && noKey:
		return false, nil
	case noCert && keyErr == nil, noKey && certErr == nil:
		return false, fmt.Errorf("server: only one of %s and %s exists; both are needed", certFile, keyFile)
	case certErr != nil || keyErr != nil:
		return false, fmt.Errorf("server: %w", errors.Join(certErr, keyErr))
	}
	return true, nil
}

// WritePair replaces both files with two consecutive renames, so that readers rarely see files that do not match.
func WritePair(certFile string, certPEM []byte, keyFile string, keyPEM []byte) error {
	key, err := stage(keyFile, keyPEM, 0o600)
	if err != nil {
		return err
	}
	defer os.Remove(key) // fails once renamed
	cert, err := stage(certFile, certPEM, 0o644)
	if err != nil {
		return err
	}
	defer os.Remove(cert)
	if err := errors.Join(os.Rename(key, keyFile), os.Rename(cert, certFile)); err != nil {
		return fmt.Errorf("server: %w", err)
	}
	return nil
}

// writeFile replaces file atomically.
func writeFile(file string, data []byte, mode os.FileMode) error {
	temp, err := stage(file, data, mode)
	if err != nil {
		return err
	}
	defer os.Remove(temp) // fails once renamed
	if err := os.Rename(temp, file); err != nil {
		return fmt.Errorf("server: %w", err)
	}
	return nil
}

// stage writes data to a temporary file in the directory of file and returns its name.
func stage(file string, data []byte, mode os.FileMode) (string, error) {
	temp, err := os.CreateTemp(filepath.Dir(file), "."+filepath.Base(file)+"-*")
	if err != nil {
		return "", fmt.Errorf("server: %w", err)
	}
	_, err = temp.Write(data)
	if err = errors.Join(err, temp.Chmod(mode), temp.Sync(), temp.Close()); err != nil {
		os.Remove(temp.Name())
		return "", fmt.Errorf("server: %w", err)
	}
	return temp.Name(), nil
}
