package e2e_test

import (
	"bytes"
	"context"
	"crypto/aes"
	"crypto/cipher"
	"crypto/rand"
	"crypto/sha256"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	kmsapi "k8s.io/kms/apis/v2"
	kms "k8s.io/kms/pkg/service"

	"github.com/larder-io/larder/internal/proctest"
)

// kmsPlugin is a KMS plugin: Kubernetes' gRPC service on a socket, with keys derived from their names.
type kmsPlugin struct {
	socket  string
	timeout time.Duration // timeout for configuration files that are written later

	serve *grpc.Server // nil while the plugin is stopped
	ended chan error   // receives serve's error

	hangs atomic.Bool // while set, decryption hangs

	mu  sync.Mutex
	key string // the name of the current key
}

// keysDir returns a directory for sockets and configuration files, which is removed at the end of the test. The paths
// of sockets must be short, unlike those of t.TempDir.
func keysDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "kms") // names of sockets must be short
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}

// startKeys starts a plugin, which is stopped at the end of the test.
func startKeys(t *testing.T, dir, name string) *kmsPlugin {
	t.Helper()
	s := &kmsPlugin{socket: filepath.Join(dir, name), timeout: 10 * time.Second, key: name + "-1"}
	s.start(t)
	t.Cleanup(s.stop)
	return s
}

func (s *kmsPlugin) start(t *testing.T) {
	t.Helper()
	l, err := net.Listen("unix", s.socket)
	if err != nil {
		t.Fatal(err)
	}
	s.serve, s.ended = grpc.NewServer(), make(chan error, 1)
	kmsapi.RegisterKeyManagementServiceServer(s.serve, kms.NewGRPCService(s.socket, 10*time.Second, s))
	go func() { s.ended <- s.serve.Serve(l) }()
}

// stop stops the plugin as if it had crashed. It may be called again.
func (s *kmsPlugin) stop() {
	if s.serve != nil {
		s.serve.Stop()
		<-s.ended
		s.serve = nil
	}
}

func (s *kmsPlugin) rotate(key string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.key = key
}

func (s *kmsPlugin) current() string {
	s.mu.Lock()
	defer s.mu.Unlock()

	return s.key
}

func sealing(key string) (cipher.AEAD, error) {
	secret := sha256.Sum256([]byte(key))
	block, err := aes.NewCipher(secret[:])
	if err != nil {
		return nil, err
	}
	return cipher.NewGCM(block)
}

// Status implements service.Service.
func (s *kmsPlugin) Status(context.Context) (*kms.StatusResponse, error) {
	return &kms.StatusResponse{Version: "v2", Healthz: "ok", KeyID: s.current()}, nil
}

// Encrypt implements service.Service.
func (s *kmsPlugin) Encrypt(_ context.Context, _ string, data []byte) (*kms.EncryptResponse, error) {
	key := s.current()
	gcm, err := sealing(key)
	if err != nil {
		return nil, err
	}
	nonce := make([]byte, gcm.NonceSize())
	rand.Read(nonce) // never fails
	return &kms.EncryptResponse{Ciphertext: gcm.Seal(nonce, nonce, data, nil), KeyID: key}, nil
}

// Decrypt implements service.Service.
func (s *kmsPlugin) Decrypt(ctx context.Context, _ string, req *kms.DecryptRequest) ([]byte, error) {
	for s.hangs.Load() {
		select {
		case <-time.After(10 * time.Millisecond):
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	gcm, err := sealing(req.KeyID)
	if err != nil {
		return nil, err
	}
	if len(req.Ciphertext) < gcm.NonceSize() {
		return nil, errors.New("too short")
	}
	return gcm.Open(nil, req.Ciphertext[:gcm.NonceSize()], req.Ciphertext[gcm.NonceSize():], nil)
}

// encryptBy writes a configuration with which Secrets are encrypted by the first of the plugins and decrypted by any.
func encryptBy(t *testing.T, file string, plugins ...*kmsPlugin) {
	t.Helper()
	encryptResources(t, file, "secrets", plugins...)
}

// encryptResources is encryptBy for other resources, separated by commas.
func encryptResources(t *testing.T, file, resources string, plugins ...*kmsPlugin) {
	t.Helper()
	config := "apiVersion: apiserver.config.k8s.io/v1\nkind: EncryptionConfiguration\nresources:\n- resources: [" + resources + "]\n  providers:\n"
	for _, s := range plugins {
		config += fmt.Sprintf("  - kms: {apiVersion: v2, name: %s, endpoint: \"unix://%s\", timeout: %v}\n", filepath.Base(s.socket), s.socket, s.timeout)
	}
	next := file + ".next" // so that a reader sees a complete file
	if err := os.WriteFile(next, []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(next, file); err != nil {
		t.Fatal(err)
	}
}

// TestKMSPluginRotatesKeys checks encryption with KMS v2: after the plugin has a new key; while the plugin is down and
// afterwards; after a restart of the server; and with another plugin after a change of the file, without a restart.
func TestKMSPluginRotatesKeys(t *testing.T) {
	t.Parallel() // waits a minute for the file to be reloaded
	dir := keysDir(t)
	file := filepath.Join(dir, "encryption.yaml")
	first := startKeys(t, dir, "first")
	encryptBy(t, file, first)
	p := serve(t, "--unsafe-no-fsync", "--encryption-provider-config", file, "--encryption-provider-config-automatic-reload")
	secrets := p.client().CoreV1().Secrets("default")
	if _, err := secrets.Create(t.Context(), &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "s"}, StringData: map[string]string{"password": "hunter2"}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	p.expectKey(t, "first", "first-1")
	p.expectKeysHealthy(t, true)

	first.rotate("first-2")
	p.awaitKey(t, "first", "first-2")

	first.stop()
	p.expectKeysHealthy(t, false)
	p.expectKey(t, "first", "first-2") // read and written with the cached key
	first.start(t)
	p.expectKeysHealthy(t, true)

	if err := p.Terminate(t); err != nil {
		t.Fatal(err)
	}
	p.start()
	p.awaitReady()
	p.expectKey(t, "first", "first-2")

	second := startKeys(t, dir, "second")
	encryptBy(t, file, second, first)
	p.awaitKey(t, "second", "second-1")
	p.expectKeysHealthy(t, true)
	proctest.Eventually(t, "the reload is counted", func() error { // the metric follows the use of the new keys
		if _, metrics := p.fetch("GET", "/metrics", nil, nil); !strings.Contains(metrics, `apiserver_encryption_config_controller_automatic_reloads_total{`) {
			return errors.New("the metrics do not count the reload")
		}
		return nil
	})
}

// rewrite reads the secret and writes it unchanged, which encrypts it again if its encryption is outdated. It returns
// the stored value.
func (p *process) rewrite(t *testing.T) ([]byte, error) {
	t.Helper()
	secrets := p.client().CoreV1().Secrets("default")
	secret, err := secrets.Get(t.Context(), "s", metav1.GetOptions{})
	if err != nil {
		return nil, err
	}
	if string(secret.Data["password"]) != "hunter2" {
		return nil, fmt.Errorf("read %+v", secret)
	}
	if _, err := secrets.Update(t.Context(), secret, metav1.UpdateOptions{}); err != nil {
		return nil, err
	}
	return stored(t, p, "secrets"), nil
}

// encrypted returns an error unless a value is encrypted by the plugin with the key.
func encrypted(value []byte, plugin, key string) error {
	if !bytes.HasPrefix(value, []byte("k8s:enc:kms:v2:"+plugin+":")) || !bytes.Contains(value, []byte(key)) || bytes.Contains(value, []byte("hunter2")) || bytes.Contains(value, []byte("password")) {
		return fmt.Errorf("stored %.200q, want it encrypted by %s with %s", value, plugin, key)
	}
	return nil
}

func (p *process) expectKey(t *testing.T, plugin, key string) {
	t.Helper()
	value, err := p.rewrite(t)
	if err == nil {
		err = encrypted(value, plugin, key)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// awaitKey waits until writes use the key. Meanwhile it requests the health checks, as probes do, because the server
// asks the plugin for its key during health checks.
func (p *process) awaitKey(t *testing.T, plugin, key string) {
	t.Helper()
	proctest.Eventually(t, "secrets are encrypted with "+key, func() error {
		p.fetch("GET", "/readyz/kms-providers", nil, nil)
		value, err := p.rewrite(t)
		if err != nil {
			return err
		}
		return encrypted(value, plugin, key)
	})
}

// expectKeysHealthy waits until the health checks report the state of the KMS plugin.
func (p *process) expectKeysHealthy(t *testing.T, healthy bool) {
	t.Helper()
	want := http.StatusOK
	if !healthy {
		want = http.StatusInternalServerError
	}
	proctest.Eventually(t, fmt.Sprintf("the KMS plugin is healthy: %t", healthy), func() error {
		for _, path := range []string{"/healthz/kms-providers", "/readyz/kms-providers", "/readyz"} {
			if resp, body := p.fetch("GET", path, nil, nil); resp.StatusCode != want {
				return fmt.Errorf("%s: %d %s", path, resp.StatusCode, body)
			}
		}
		return nil
	})
}
