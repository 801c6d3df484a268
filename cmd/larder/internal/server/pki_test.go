package server

import (
	"crypto/x509"
	"errors"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/client-go/tools/clientcmd"
	certutil "k8s.io/client-go/util/cert"

	"github.com/larder-io/larder/cmd/larder/internal/server/datadir"
	"github.com/larder-io/larder/cmd/larder/internal/server/pki"
)

func open(t *testing.T, path string) *datadir.Dir {
	t.Helper()
	dir, err := datadir.Open(path, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { dir.Close() })
	return dir
}

func testConfig(t *testing.T) Config {
	t.Helper()
	c := Default()
	c.DataDir = filepath.Join(t.TempDir(), "data")
	c.GenericServerRunOptions.AdvertiseAddress = net.IPv4(192, 0, 2, 1)
	if err := c.validate(); err != nil {
		t.Fatal(err)
	}
	return c
}

func TestEstablishMakesWhatIsMissing(t *testing.T) {
	c := testConfig(t)
	dir := open(t, c.DataDir)
	id, err := establish(&c, dir)
	if err != nil {
		t.Fatal(err)
	}
	roots, err := certutil.NewPool(id.clientCAFile)
	if err != nil {
		t.Fatal(err)
	}
	leaf, err := pki.ReadLeaf(id.certFile)
	if err != nil {
		t.Fatal(err)
	}
	for _, host := range []string{"localhost", "127.0.0.1", "::1", "192.0.2.1", "10.0.0.1", "kubernetes.default.svc"} {
		if _, err := leaf.Verify(x509.VerifyOptions{Roots: roots, DNSName: host}); err != nil {
			t.Errorf("serving certificate for %s: %v", host, err)
		}
	}
	client, err := clientcmd.BuildConfigFromFlags("", id.kubeconfig)
	if err != nil {
		t.Fatal(err)
	}
	if client.Host != "https://127.0.0.1:6443" {
		t.Errorf("kubeconfig leads to %s", client.Host)
	}
	certs, err := certutil.ParseCertsPEM(client.CertData)
	if err != nil {
		t.Fatal(err)
	}
	if !slices.Contains(certs[0].Subject.Organization, user.SystemPrivilegedGroup) {
		t.Errorf("administrator is %v", certs[0].Subject)
	}
	if _, err := certs[0].Verify(x509.VerifyOptions{Roots: roots, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}}); err != nil {
		t.Error(err)
	}
	modes(t, c.DataDir)
}

// modes checks that only the owner can read files with secrets.
func modes(t *testing.T, dir string) {
	t.Helper()
	for name, want := range map[string]os.FileMode{
		"": 0o700, "admin.kubeconfig": 0o600, "lock": 0o600, "pki": 0o700,
		"pki/ca.key": 0o600, "pki/apiserver.key": 0o600, "pki/sa.key": 0o600, "pki/ca.crt": 0o644,
	} {
		info, err := os.Stat(filepath.Join(dir, name))
		if err != nil {
			t.Error(err)
			continue
		}
		if got := info.Mode().Perm(); got != want {
			t.Errorf("%q has mode %v, want %v", name, got, want)
		}
	}
	left, err := filepath.Glob(filepath.Join(dir, "*", ".*-*"))
	if err != nil || len(left) > 0 {
		t.Errorf("left behind: %v %v", left, err)
	}
}

// TestEstablishKeepsWhatWasMade checks that later starts keep generated files, so that clients with copies continue
// to work.
func TestEstablishKeepsWhatWasMade(t *testing.T) {
	c := testConfig(t)
	dir := open(t, c.DataDir)
	if _, err := establish(&c, dir); err != nil {
		t.Fatal(err)
	}
	names := []string{"pki/ca.crt", "pki/ca.key", "pki/apiserver.crt", "pki/apiserver.key", "pki/sa.key", "admin.kubeconfig"}
	before := read(t, c.DataDir, names)
	if _, err := establish(&c, dir); err != nil {
		t.Fatal(err)
	}
	for i, after := range read(t, c.DataDir, names) {
		if after != before[i] {
			t.Errorf("%s changed", names[i])
		}
	}
	c.GenericServerRunOptions.AdvertiseAddress = net.IPv4(192, 0, 2, 9)
	if _, err := establish(&c, dir); err != nil {
		t.Fatal(err)
	}
	after := read(t, c.DataDir, names)
	if after[0] != before[0] {
		t.Error("a new address replaced the authority")
	}
	if after[2] == before[2] {
		t.Error("a new address left the serving certificate as it was")
	}
}

func read(t *testing.T, dir string, names []string) []string {
	t.Helper()
	var texts []string
	for _, name := range names {
		text, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		texts = append(texts, string(text))
	}
	return texts
}

// TestEstablishMakesNothingThatWasGiven checks that no file is generated for a flag that names one.
func TestEstablishMakesNothingThatWasGiven(t *testing.T) {
	given := testConfig(t)
	theirs, err := establish(&given, open(t, given.DataDir))
	if err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		name   string
		change func(*Config)
		absent []string
		kube   bool
	}{
		{"everything", func(c *Config) {
			c.SecureServing.ServerCert.CertKey.CertFile, c.SecureServing.ServerCert.CertKey.KeyFile = theirs.certFile, theirs.keyFile
			c.Authentication.ClientCert.ClientCA = theirs.clientCAFile
			c.ServiceAccountSigningKeyFile = filepath.Join(given.DataDir, "pki", saKeyName)
		}, []string{"pki/ca.crt", "pki/apiserver.crt", "pki/sa.key", "admin.kubeconfig"}, false},
		{"client CA", func(c *Config) {
			c.Authentication.ClientCert.ClientCA = theirs.clientCAFile
		}, []string{"admin.kubeconfig"}, false},
		{"serving pair", func(c *Config) {
			c.SecureServing.ServerCert.CertKey.CertFile, c.SecureServing.ServerCert.CertKey.KeyFile = theirs.certFile, theirs.keyFile
		}, []string{"pki/apiserver.crt"}, true},
		{"serving pair by directory", func(c *Config) {
			c.SecureServing.ServerCert.CertDirectory = filepath.Dir(theirs.certFile)
		}, []string{"pki/apiserver.crt"}, true},
	} {
		t.Run(test.name, func(t *testing.T) {
			c := testConfig(t)
			test.change(&c)
			before := read(t, given.DataDir, []string{"pki/apiserver.crt"})
			id, err := establish(&c, open(t, c.DataDir))
			if err != nil {
				t.Fatal(err)
			}
			for _, name := range test.absent {
				if _, err := os.Stat(filepath.Join(c.DataDir, name)); !errors.Is(err, fs.ErrNotExist) {
					t.Errorf("%s was made, or: %v", name, err)
				}
			}
			if before[0] != read(t, given.DataDir, []string{"pki/apiserver.crt"})[0] {
				t.Error("the given pair was replaced")
			}
			if got := id.kubeconfig != ""; got != test.kube {
				t.Errorf("kubeconfig %q", id.kubeconfig)
			}
			if test.kube {
				trusts(t, id)
			}
		})
	}
}

// trusts checks that the kubeconfig accepts the serving certificate.
func trusts(t *testing.T, id *identity) {
	t.Helper()
	config, err := clientcmd.BuildConfigFromFlags("", id.kubeconfig)
	if err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(config.CAData)
	leaf, err := pki.ReadLeaf(id.certFile)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := leaf.Verify(x509.VerifyOptions{Roots: roots, DNSName: "127.0.0.1"}); err != nil {
		t.Error(err)
	}
}

func TestBrokenFiles(t *testing.T) {
	for _, test := range []struct {
		name, file, text string
		want             string
	}{
		{"authority", "pki/ca.crt", "not PEM", "ca.crt"},
		{"authority's key", "pki/ca.key", "not PEM", "certificate authority"},
		{"authority without its key", "pki/ca.key", "", "both are needed"},
		{"serving certificate", "pki/apiserver.crt", "not PEM", "serving certificate"},
	} {
		t.Run(test.name, func(t *testing.T) {
			c := testConfig(t)
			dir := open(t, c.DataDir)
			if _, err := establish(&c, dir); err != nil {
				t.Fatal(err)
			}
			file := filepath.Join(c.DataDir, test.file)
			if err := os.WriteFile(file, []byte(test.text), 0o600); err != nil {
				t.Fatal(err)
			}
			if test.text == "" {
				os.Remove(file)
			}
			if _, err := establish(&c, dir); err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("error %v, want %q in it", err, test.want)
			}
		})
	}
}
