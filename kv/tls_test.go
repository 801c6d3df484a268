package kv_test

import (
	"context"
	"crypto/x509"
	"errors"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"go.etcd.io/etcd/client/pkg/v3/transport"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/larder-io/larder/internal/proctest"
	"github.com/larder-io/larder/internal/proctest/testcert"
	"github.com/larder-io/larder/kv"
	"github.com/larder-io/larder/kv/kvtest"
)

func TestTLSToEtcdIsVerifiedByBothSides(t *testing.T) {
	ca, stranger := testcert.New(t, "ca"), testcert.New(t, "stranger")
	caFile, strangerFile := writeCA(t, ca), writeCA(t, stranger)
	clientCert, clientKey := testcert.Write(t, t.TempDir(), "client", ca.Sign(t, "client", nil, nil))
	strangerCert, strangerKey := testcert.Write(t, t.TempDir(), "client", stranger.Sign(t, "client", nil, nil))
	members := startTLS(t, ca, caFile)
	t.Run("trusted", func(t *testing.T) {
		store := openExternal(t, kv.ExternalConfig{Endpoints: kvtest.URLs(members), CAFile: caFile, CertFile: clientCert, KeyFile: clientKey})
		kvtest.Put(t, store, "/registry/a", "1")
		awaitOwnRead(t, store)
		awaitOwnWrite(t, store)
	})
	// How the server's refusal reaches the client depends on which side is faster.
	refusal := regexp.MustCompile("connection error|latest balancer error") // the second may contain only "broken pipe"
	distrust := regexp.MustCompile("certificate signed by unknown authority")
	want := map[string]*regexp.Regexp{
		"server not trusted": distrust, "client not trusted": refusal, "client without a name": refusal, "not encrypted": distrust,
	}
	for name, cfg := range map[string]kv.ExternalConfig{
		"server not trusted":    {CAFile: strangerFile, CertFile: clientCert, KeyFile: clientKey},
		"client not trusted":    {CAFile: caFile, CertFile: strangerCert, KeyFile: strangerKey},
		"client without a name": {CAFile: caFile},
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
			timeout, last := time.After(proctest.Patience), ""
			for !want[name].MatchString(last) { // on a busy machine the first attempts may fail earlier
				select {
				case <-store.Ready():
					t.Fatal("the store opened")
				case last = <-refused:
				case <-timeout:
					t.Fatalf("the last log message is %q, want one that matches %q", last, want[name])
				}
			}
		})
	}
	t.Run("missing file", func(t *testing.T) {
		store, err := kv.NewExternal(kv.ExternalConfig{Endpoints: kvtest.URLs(members), CAFile: filepath.Join(t.TempDir(), "none")})
		if err != nil {
			t.Fatal(err)
		}
		if err := store.Run(t.Context()); err == nil || !strings.Contains(err.Error(), "none") {
			t.Errorf("Run: got error %v, want one with the file name", err)
		}
		if err := store.Health(t.Context()); err == nil {
			t.Error("Health of a store that did not open returns no error")
		}
	})
}

// startTLS starts a cluster of one member, which trusts the clients of ca.
func startTLS(t *testing.T, ca *testcert.Authority, caFile string) []*kvtest.Member {
	t.Helper()
	cert, key := testcert.Write(t, t.TempDir(), "server", ca.Sign(t, "server", nil, func(c *x509.Certificate) {
		c.IPAddresses = []net.IP{net.IPv4(127, 0, 0, 1)}
		c.ExtKeyUsage = append(c.ExtKeyUsage, x509.ExtKeyUsageServerAuth)
	}))
	return startCluster(t, 1, func(configs []kvtest.MemberConfig) {
		cfg := &configs[0]
		cfg.CA, cfg.Cert, cfg.Key = caFile, cert, key
		cfg.Client = strings.Replace(cfg.Client, "http:", "https:", 1)
	})
}

// TestEtcdUserNeedsOnlyThePrefix checks that an etcd user with rights only below the prefix, such as a tenant of a shared
// etcd, can read, write, watch and replay.
func TestEtcdUserNeedsOnlyThePrefix(t *testing.T) {
	ca := testcert.New(t, "ca")
	caFile := writeCA(t, ca)
	members := startTLS(t, ca, caFile)
	pair := func(name string) transport.TLSInfo {
		cert, key := testcert.Write(t, t.TempDir(), name, ca.Sign(t, name, nil, nil))
		return transport.TLSInfo{TrustedCAFile: caFile, CertFile: cert, KeyFile: key}
	}
	limitUser(t, kvtest.URLs(members), pair("root"), "tenant", "/registry/")
	tenant := pair("tenant")
	config := kv.ExternalConfig{Endpoints: kvtest.URLs(members), CAFile: caFile, CertFile: tenant.CertFile, KeyFile: tenant.KeyFile}
	config.Prefix = "/registry"
	store := openExternal(t, config)
	kvtest.Put(t, store, "/registry/a/1", "1")
	last := kvtest.Put(t, store, "/registry/a/2", "2")
	awaitOwnRead(t, store)
	if revision, err := store.Revision(t.Context()); err != nil || revision != last {
		t.Errorf("got revision %d and error %v, want %d", revision, err, last)
	}
	if _, err := store.Range(t.Context(), kv.RangeOptions{Prefix: "/other/"}); !errors.Is(err, rpctypes.ErrPermissionDenied) {
		t.Errorf("Range of another prefix: got error %v, want ErrPermissionDenied", err)
	}
	tail := kv.NewTail(kv.TailConfig{Store: store, Prefix: "/registry", Replay: 100})
	subscription := tail.Subscribe("/registry/a/")
	kvtest.RunUntilEnd(t, tail.Run)
	if past, until := begin(t, subscription, 0); past == 0 || until != last {
		t.Errorf("the replay is from %d to %d, want one that ends at %d", past, until, last)
	}
}

// limitUser creates a user with rights below a prefix, and enables authentication.
func limitUser(t *testing.T, endpoints []string, root transport.TLSInfo, name, prefix string) {
	t.Helper()
	config, err := root.ClientConfig()
	if err != nil {
		t.Fatal(err)
	}
	client, err := clientv3.New(clientv3.Config{Endpoints: endpoints, TLS: config})
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	ctx := t.Context()
	for _, user := range []string{"root", name} {
		_, err1 := client.UserAddWithOptions(ctx, user, "", &clientv3.UserAddOptions{NoPassword: true})
		_, err2 := client.RoleAdd(ctx, user)
		_, err3 := client.UserGrantRole(ctx, user, user)
		if err := errors.Join(err1, err2, err3); err != nil {
			t.Fatal(err)
		}
	}
	_, err1 := client.RoleGrantPermission(ctx, name, prefix, clientv3.GetPrefixRangeEnd(prefix), clientv3.PermissionType(clientv3.PermReadWrite))
	_, err2 := client.AuthEnable(ctx)
	if err := errors.Join(err1, err2); err != nil {
		t.Fatal(err)
	}
}

// writeCA writes a CA's certificate and returns the file name.
func writeCA(t *testing.T, ca *testcert.Authority) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "ca.crt")
	if err := os.WriteFile(file, []byte(ca.PEM()), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

// chanHandler sends the log messages that etcd's own logger did not write to a channel.
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
