package pki

import (
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/larder-io/larder/internal/proctest"
)

func TestMain(m *testing.M) { proctest.Main(m) }

// TestCertificatesNearTheirEndAreReplaced checks that a start replaces a certificate near its end.
func TestCertificatesNearTheirEndAreReplaced(t *testing.T) {
	dir := t.TempDir()
	ca, err := Load(dir)
	if err != nil {
		t.Fatal(err)
	}
	certFile, keyFile := filepath.Join(dir, "a.crt"), filepath.Join(dir, "a.key")
	for _, test := range []struct {
		name    string
		life    time.Duration
		renewed bool
	}{
		{"fresh", leafLife, false},
		{"ending", renewBefore - time.Minute, true},
		{"ended", -time.Minute, true},
	} {
		t.Run(test.name, func(t *testing.T) {
			certPEM, keyPEM, err := ca.Issue(&x509.Certificate{DNSNames: []string{"host"}, NotAfter: time.Now().Add(test.life)})
			if err != nil {
				t.Fatal(err)
			}
			if err := WritePair(certFile, certPEM, keyFile, keyPEM); err != nil {
				t.Fatal(err)
			}
			if err := ca.Serve(certFile, keyFile, []string{"host"}); err != nil {
				t.Fatal(err)
			}
			kept, err := os.ReadFile(certFile)
			if err != nil {
				t.Fatal(err)
			}
			if got := string(kept) != string(certPEM); got != test.renewed {
				t.Errorf("renewed %v, want %v", got, test.renewed)
			}
		})
	}
}

// TestOnlyCurrentKubeconfigsAreKept checks which kubeconfigs a start keeps: with the same server, CA and user, and a certificate
// of this CA that is not near its end.
func TestOnlyCurrentKubeconfigsAreKept(t *testing.T) {
	const url, name, group = "https://127.0.0.1:6443", "admin", "admins"
	ca, err := Load(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	other, err := Load(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		name, user, group, url string
		signer                 *Authority
		trust                  []byte
		life                   time.Duration
		mode                   os.FileMode
		kept                   bool
	}{
		{"current", name, group, url, ca, ca.Bundle, leafLife, 0o600, true},
		{"ending", name, group, url, ca, ca.Bundle, renewBefore - time.Minute, 0o600, false},
		{"another user", "user", group, url, ca, ca.Bundle, leafLife, 0o600, false},
		{"another group", name, "users", url, ca, ca.Bundle, leafLife, 0o600, false},
		{"another server", name, group, url + "1", ca, ca.Bundle, leafLife, 0o600, false},
		{"another trusted CA", name, group, url, ca, other.Bundle, leafLife, 0o600, false},
		{"another signer", name, group, url, other, ca.Bundle, leafLife, 0o600, false},
		{"readable by others", name, group, url, ca, ca.Bundle, leafLife, 0o644, false},
	} {
		t.Run(test.name, func(t *testing.T) {
			file := filepath.Join(t.TempDir(), "kubeconfig")
			subject := pkix.Name{CommonName: test.user, Organization: []string{test.group}}
			certPEM, keyPEM, err := test.signer.Issue(&x509.Certificate{Subject: subject, NotAfter: time.Now().Add(test.life)})
			if err == nil {
				err = errors.Join(WriteKubeconfig(file, test.url, test.trust, certPEM, keyPEM), os.Chmod(file, test.mode))
			}
			if err != nil {
				t.Fatal(err)
			}
			if cert := ca.CurrentKubeconfig(file, url, ca.Bundle, name, group); (cert != nil) != test.kept {
				t.Errorf("certificate %v", cert)
			}
		})
	}
	if cert := ca.CurrentKubeconfig(filepath.Join(t.TempDir(), "none"), url, ca.Bundle, name, group); cert != nil {
		t.Error("a file that does not exist has a certificate")
	}
}
