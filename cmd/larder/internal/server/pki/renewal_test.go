package pki

import (
	"crypto/x509"
	"os"
	"path/filepath"
	"testing"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

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
			certPEM, keyPEM, err := ca.issue(&x509.Certificate{DNSNames: []string{"host"}}, test.life)
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
