package kv_test

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"log/slog"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/larder-io/larder/internal/proctest"
	"github.com/larder-io/larder/kv"
	"github.com/larder-io/larder/kv/kvtest"
)

// authority issues certificates into a directory.
type authority struct {
	dir, file string
	cert      *x509.Certificate
	key       *ecdsa.PrivateKey
}

func newAuthority(t *testing.T, name string) *authority {
	a := &authority{dir: t.TempDir()}
	template := &x509.Certificate{IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign}
	a.file, _ = a.issue(t, name, template)
	return a
}

// issue writes a certificate and its key and returns their files.
func (a *authority) issue(t *testing.T, name string, template *x509.Certificate) (certFile, keyFile string) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template.SerialNumber = big.NewInt(time.Now().UnixNano())
	template.Subject = pkix.Name{CommonName: name}
	template.NotBefore, template.NotAfter = time.Now().Add(-time.Hour), time.Now().Add(time.Hour)
	parent, signer := a.cert, a.key
	if parent == nil {
		parent, signer = template, key
	}
	der, err := x509.CreateCertificate(rand.Reader, template, parent, &key.PublicKey, signer)
	if err != nil {
		t.Fatal(err)
	}
	if a.cert == nil {
		if a.cert, err = x509.ParseCertificate(der); err != nil {
			t.Fatal(err)
		}
		a.key = key
	}
	raw, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	write := func(file, kind string, der []byte) string {
		path := filepath.Join(a.dir, name+file)
		if err := os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	return write(".crt", "CERTIFICATE", der), write(".key", "EC PRIVATE KEY", raw)
}

func TestExternalTLS(t *testing.T) {
	ca, stranger := newAuthority(t, "ca"), newAuthority(t, "stranger")
	serverCert, serverKey := ca.issue(t, "server", &x509.Certificate{
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	})
	client := &x509.Certificate{ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}}
	clientCert, clientKey := ca.issue(t, "client", client)
	strangerCert, strangerKey := stranger.issue(t, "client", client)
	members := startCluster(t, 1, func(configs []kvtest.MemberConfig) {
		cfg := &configs[0]
		cfg.CA, cfg.Cert, cfg.Key = ca.file, serverCert, serverKey
		cfg.Client = strings.Replace(cfg.Client, "http:", "https:", 1)
	})
	t.Run("trusted", func(t *testing.T) {
		store := openExternal(t, kv.ExternalConfig{Endpoints: kvtest.URLs(members), CAFile: ca.file, CertFile: clientCert, KeyFile: clientKey})
		kvtest.Put(t, store, "/registry/a", "1")
		awaitDirect(t, store)
	})
	// How the server's refusal reaches the client depends on which side was faster.
	want := map[string]string{
		"server not trusted":    "certificate signed by unknown authority",
		"client not trusted":    "latest balancer error",
		"client without a name": "latest balancer error",
		"not encrypted":         "certificate signed by unknown authority",
	}
	for name, cfg := range map[string]kv.ExternalConfig{
		"server not trusted":    {CAFile: stranger.file, CertFile: clientCert, KeyFile: clientKey},
		"client not trusted":    {CAFile: ca.file, CertFile: strangerCert, KeyFile: strangerKey},
		"client without a name": {CAFile: ca.file},
		"not encrypted":         {},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cfg.Endpoints = kvtest.URLs(members)
			refused := make(chan string, 100)
			cfg.Logger = slog.New(chanHandler{refused})
			store, err := kv.NewExternal(cfg)
			if err != nil {
				t.Fatal(err)
			}
			kvtest.RunUntilEnd(t, store.Run)
			select {
			case <-store.Ready():
				t.Error("the store opened")
			case message := <-refused:
				if !strings.Contains(message, want[name]) {
					t.Errorf("logged %q, want %q", message, want[name])
				}
			case <-time.After(proctest.Patience):
				t.Error("the store does not say why it does not open")
			}
		})
	}
	t.Run("missing file", func(t *testing.T) {
		store, err := kv.NewExternal(kv.ExternalConfig{Endpoints: kvtest.URLs(members), CAFile: filepath.Join(t.TempDir(), "none")})
		if err != nil {
			t.Fatal(err)
		}
		if err := store.Run(t.Context()); err == nil || !strings.Contains(err.Error(), "none") {
			t.Errorf("Run: %v", err)
		}
		if err := store.Health(t.Context()); err == nil {
			t.Error("a store that did not open is healthy")
		}
	})
}

// chanHandler sends the messages that etcd's own logger did not write.
type chanHandler struct{ messages chan<- string }

func (chanHandler) Enabled(context.Context, slog.Level) bool { return true }

func (h chanHandler) Handle(_ context.Context, record slog.Record) error {
	if !strings.HasPrefix(record.Message, "etcd: ") {
		record.Attrs(func(attr slog.Attr) bool {
			record.Message += " " + attr.String()
			return true
		})
		h.messages <- record.Message
	}
	return nil
}

func (h chanHandler) WithAttrs([]slog.Attr) slog.Handler { return h }
func (h chanHandler) WithGroup(string) slog.Handler      { return h }
