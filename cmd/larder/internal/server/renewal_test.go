package server

import (
	"context"
	"crypto/x509"
	"errors"
	"os"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/client-go/tools/clientcmd"
	certutil "k8s.io/client-go/util/cert"

	"github.com/larder-io/larder/cmd/larder/internal/server/pki"
)

// adminCertificate returns the client certificate of a kubeconfig.
func adminCertificate(t *testing.T, kubeconfig string) *x509.Certificate {
	t.Helper()
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		t.Fatal(err)
	}
	certs, err := certutil.ParseCertsPEM(config.CertData)
	if err != nil {
		t.Fatal(err)
	}
	return certs[0]
}

// TestCertificatesAreRenewedWhileRunning runs for five years: at every time the serving and
// the administrator's certificate are good for four weeks more, and they are left alone before.
// A renewal that fails is tried again.
func TestCertificatesAreRenewedWhileRunning(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := testConfig(t)
		id, err := establish(&c, open(t, c.DataDir))
		if err != nil {
			t.Fatal(err)
		}
		roots, err := certutil.NewPool(id.clientCAFile)
		if err != nil {
			t.Fatal(err)
		}
		ctx, stop := context.WithCancel(t.Context())
		done, failed := make(chan struct{}), 0
		go func() {
			defer close(done)
			pki.KeepRenewed(ctx, id.renewals, func(error) { failed++ })
		}()
		const day = 24 * time.Hour
		time.Sleep(time.Hour)         // so that nothing below happens at the time of a renewal
		made := make(map[string]bool) // serial numbers
		for elapsed := time.Duration(0); elapsed < 5*365*day; elapsed += 7 * day {
			serving, err := pki.ReadLeaf(id.certFile)
			if err != nil {
				t.Fatal(err)
			}
			for use, cert := range map[x509.ExtKeyUsage]*x509.Certificate{
				x509.ExtKeyUsageServerAuth: serving, x509.ExtKeyUsageClientAuth: adminCertificate(t, id.kubeconfig),
			} {
				made[cert.SerialNumber.String()] = true
				if _, err := cert.Verify(x509.VerifyOptions{Roots: roots, KeyUsages: []x509.ExtKeyUsage{use}, CurrentTime: time.Now().Add(28 * day)}); err != nil {
					t.Fatalf("after %v: %v", elapsed, err)
				}
			}
			time.Sleep(7 * day)
		}
		if len(made) != 2*6 {
			t.Errorf("%d certificates were made in five years, want 12", len(made))
		}
		if err := os.Remove(id.keyFile); err != nil { // its certificate alone cannot be judged
			t.Fatal(err)
		}
		time.Sleep(day)
		synctest.Wait()
		if failed != 2 {
			t.Errorf("%d failures were reported in a day, want 2", failed)
		}
		if err := os.Remove(id.certFile); err != nil {
			t.Fatal(err)
		}
		time.Sleep(day)
		if _, err := pki.ReadLeaf(id.certFile); errors.Is(err, os.ErrNotExist) {
			t.Error("the serving certificate was not made again")
		}
		stop()
		<-done
	})
}

// TestOwnersCertificatesAreNotRenewed checks that certificates that flags name are not renewed.
func TestOwnersCertificatesAreNotRenewed(t *testing.T) {
	first := testConfig(t)
	made, err := establish(&first, open(t, first.DataDir))
	if err != nil {
		t.Fatal(err)
	}
	c := testConfig(t)
	c.SecureServing.ServerCert.CertKey.CertFile, c.SecureServing.ServerCert.CertKey.KeyFile, c.Authentication.ClientCert.ClientCA = made.certFile, made.keyFile, made.clientCAFile
	id, err := establish(&c, open(t, c.DataDir))
	if err != nil || len(id.renewals) != 0 {
		t.Errorf("%d renewals, %v, want none", len(id.renewals), err)
	}
}
