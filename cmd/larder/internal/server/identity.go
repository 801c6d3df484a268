package server

import (
	"cmp"
	"crypto/x509"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"

	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/apiserver/pkg/authentication/user"
	certutil "k8s.io/client-go/util/cert"

	"github.com/larder-io/larder/cmd/larder/internal/server/datadir"
	"github.com/larder-io/larder/cmd/larder/internal/server/pki"
	"github.com/larder-io/larder/internal/auth"
)

// identity holds the server's addresses and the files of its certificates and keys, including generated ones.
type identity struct {
	// advertise is the address at which other machines reach this server.
	advertise net.IP
	// publish is advertise if it may be published in the kubernetes Service's endpoints, nil otherwise.
	publish net.IP
	// url is the URL at which a client on this machine reaches the server.
	url string
	// serviceIP is the cluster IP of the kubernetes service.
	serviceIP net.IP

	certFile, keyFile string
	clientCAFile      string
	// kubeconfig is "" if the server cannot issue a client certificate.
	kubeconfig string
	// renewals replace generated certificates before they expire. After establish, only
	// pki.KeepRenewed calls them.
	renewals []func() error
}

// establish creates the missing certificates and keys in dir. If dir is nil, it creates at most the serving
// certificate.
func establish(c *Config, dir *datadir.Dir) (*identity, error) {
	id := &identity{
		certFile: c.SecureServing.ServerCert.CertKey.CertFile, keyFile: c.SecureServing.ServerCert.CertKey.KeyFile,
		clientCAFile: c.Authentication.ClientCert.ClientCA,
	}
	if err := id.resolve(c); err != nil {
		return nil, err
	}
	if dir == nil {
		return id, id.createServingPair(c)
	}
	keys := c.pkiDir()
	if err := os.MkdirAll(keys, 0o700); err != nil {
		return nil, fmt.Errorf("server: data directory: %w", err)
	}
	if c.signing() == (auth.Signing{}) {
		if err := pki.MakeSigningKey(filepath.Join(keys, saKeyName)); err != nil {
			return nil, err
		}
	}
	if id.certFile != "" && id.clientCAFile != "" {
		return id, nil
	}
	ca, err := pki.Load(keys)
	if err != nil {
		return nil, err
	}
	if id.certFile == "" {
		if err := id.namePair(c); err != nil {
			return nil, err
		}
		hosts := id.hosts(c.SecureServing.BindAddress)
		renew := func() error { return ca.Serve(id.certFile, id.keyFile, hosts) }
		if err := renew(); err != nil {
			return nil, err
		}
		id.renewals = append(id.renewals, renew)
	}
	if id.clientCAFile != "" {
		return id, nil
	}
	id.clientCAFile = filepath.Join(keys, "ca.crt")
	id.kubeconfig = filepath.Join(dir.Path, "admin.kubeconfig")
	admin, err := id.writeKubeconfig(ca)
	if err != nil {
		return nil, err
	}
	id.renewals = append(id.renewals, func() error {
		if !pki.NearEnd(admin) {
			return nil
		}
		next, err := id.writeKubeconfig(ca)
		if err == nil {
			admin = next
		}
		return err
	})
	return id, nil
}

// createServingPair creates a serving pair if Config names none, as kube-apiserver does. The pair has an RSA key, because
// --tls-cipher-suites may allow no other.
func (id *identity) createServingPair(c *Config) error {
	if id.certFile != "" {
		return nil
	}
	if err := id.namePair(c); err != nil {
		return err
	}
	if there, err := certutil.CanReadCertAndKey(id.certFile, id.keyFile); there || err != nil {
		return err
	}
	ips, names := pki.SplitHosts(id.hosts(c.SecureServing.BindAddress))
	certPEM, keyPEM, err := certutil.GenerateSelfSignedCertKey(id.advertise.String(), ips, names)
	if err != nil {
		return fmt.Errorf("server: serving certificate: %w", err)
	}
	return pki.WritePair(id.certFile, certPEM, id.keyFile, keyPEM)
}

// resolve finds the addresses.
func (id *identity) resolve(c *Config) error {
	given, bind := c.GenericServerRunOptions.AdvertiseAddress, c.SecureServing.BindAddress
	id.advertise, id.serviceIP = resolveAdvertise(given, bind), c.APIServerServiceIP
	if len(given) > 0 && !given.IsUnspecified() || !bind.IsLoopback() && !id.advertise.IsLoopback() {
		id.publish = id.advertise
	}
	if err := c.checkAdvertised(id.publish); err != nil {
		return err
	}
	host := "127.0.0.1"
	if !c.SecureServing.BindAddress.IsUnspecified() {
		host = c.SecureServing.BindAddress.String()
	}
	id.url = "https://" + net.JoinHostPort(host, strconv.Itoa(c.SecureServing.BindPort))
	return nil
}

// resolveAdvertise applies apiserver pkg/server/options/server_run_options.go,
// DefaultAdvertiseAddress. A machine without a network advertises its bind address.
func resolveAdvertise(given, bind net.IP) net.IP {
	if len(given) > 0 && !given.IsUnspecified() {
		return given
	}
	if ip, err := utilnet.ResolveBindAddress(bind); err == nil {
		return ip
	}
	if bind.IsUnspecified() {
		return net.IPv4(127, 0, 0, 1)
	}
	return bind
}

// namePair names the serving pair in the certificate directory.
func (id *identity) namePair(c *Config) error {
	dir := cmp.Or(c.SecureServing.ServerCert.CertDirectory, c.pkiDir())
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return fmt.Errorf("server: --cert-dir: %w", err)
	}
	id.certFile, id.keyFile = filepath.Join(dir, "apiserver.crt"), filepath.Join(dir, "apiserver.key")
	return nil
}

// hosts lists the names and addresses for which the serving certificate must be valid.
func (id *identity) hosts(bind net.IP) []string {
	hosts := []string{
		"localhost", "127.0.0.1", "::1",
		"kubernetes", "kubernetes.default", "kubernetes.default.svc", "kubernetes.default.svc.cluster.local",
		id.serviceIP.String(), id.advertise.String(),
	}
	if !bind.IsUnspecified() {
		hosts = append(hosts, bind.String())
	}
	return append(hosts, pki.MachineNames()...)
}

// writeKubeconfig writes the administrator's kubeconfig and returns the certificate in it. It keeps a file that is
// current, so that a server can start on a full disk.
func (id *identity) writeKubeconfig(ca *pki.Authority) (*x509.Certificate, error) {
	const admin = "larder-admin"
	trust := ca.Bundle
	if leaf, err := pki.ReadLeaf(id.certFile); err != nil {
		return nil, err
	} else if leaf.CheckSignatureFrom(ca.Cert) != nil {
		// Another CA signed the pair, so clients can only trust the file itself.
		if trust, err = os.ReadFile(id.certFile); err != nil {
			return nil, fmt.Errorf("server: serving certificate: %w", err)
		}
	}
	if cert := ca.CurrentKubeconfig(id.kubeconfig, id.url, trust, admin, user.SystemPrivilegedGroup); cert != nil {
		return cert, nil
	}
	certPEM, keyPEM, err := ca.IssueClient(admin, user.SystemPrivilegedGroup)
	if err != nil {
		return nil, err
	}
	certs, err := certutil.ParseCertsPEM(certPEM)
	if err != nil {
		return nil, fmt.Errorf("server: administrator's certificate: %w", err)
	}
	return certs[0], pki.WriteKubeconfig(id.kubeconfig, id.url, trust, certPEM, keyPEM)
}
