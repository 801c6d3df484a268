package e2e_test

import (
	"bytes"
	"context"
	"encoding/base64"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/larder-io/larder/kv"
)

// TestEncryptionAtRest checks that secrets are written with the first key and read with any. After a new first key, an
// unchanged PUT writes a secret with it. Then the old key can be removed.
func TestEncryptionAtRest(t *testing.T) {
	file := filepath.Join(t.TempDir(), "encryption.yaml")
	configure := func(keys ...string) {
		config := "apiVersion: apiserver.config.k8s.io/v1\nkind: EncryptionConfiguration\nresources:\n- resources: [secrets]\n  providers:\n  - secretbox:\n      keys:\n"
		for _, key := range keys {
			text := base64.StdEncoding.EncodeToString([]byte(strings.Repeat(key, 32)[:32]))
			config += fmt.Sprintf("      - {name: %s, secret: %s}\n", key, text)
		}
		if err := os.WriteFile(file, []byte(config), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	configure("old")
	p := serve(t, "--unsafe-no-fsync", "--encryption-provider-config", file)
	restart := func() {
		t.Helper()
		if err := p.Terminate(t); err != nil {
			t.Fatalf("%v\n%s", err, p.Output())
		}
		p.start()
		p.awaitReady()
	}
	read := func() *corev1.Secret {
		t.Helper()
		secret, err := p.client().CoreV1().Secrets("default").Get(t.Context(), "s", metav1.GetOptions{})
		if err != nil || string(secret.Data["password"]) != "hunter2" {
			t.Fatalf("secret %+v, error %v", secret, err)
		}
		return secret
	}
	meta := metav1.ObjectMeta{Name: "s"}
	if _, err := p.client().CoreV1().Secrets("default").Create(t.Context(), &corev1.Secret{ObjectMeta: meta, StringData: map[string]string{"password": "hunter2"}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := p.client().CoreV1().ConfigMaps("default").Create(t.Context(), &corev1.ConfigMap{ObjectMeta: meta}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	read()
	expectStored(t, p, "secrets", "k8s:enc:secretbox:v1:old:")
	expectStored(t, p, "configmaps", "k8s\x00")

	configure("new", "old")
	restart()
	secret := read()
	expectStored(t, p, "secrets", "k8s:enc:secretbox:v1:old:")
	if _, err := p.client().CoreV1().Secrets("default").Update(t.Context(), secret, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	expectStored(t, p, "secrets", "k8s:enc:secretbox:v1:new:")

	configure("new")
	p.args = append(p.args, "--encryption-provider-config-automatic-reload")
	restart()
	read()
	p.want(200, "/readyz/kms-providers")
	p.want(200, "/livez/poststarthook/start-encryption-provider-config-automatic-reload")
}

// expectStored checks that the value of default/s in the embedded etcd begins with prefix and does not contain the
// plain text.
func expectStored(t *testing.T, p *process, resource, prefix string) {
	t.Helper()
	if value := stored(t, p, resource); !bytes.HasPrefix(value, []byte(prefix)) || bytes.Contains(value, []byte("hunter2")) {
		t.Errorf("stored %.60q, want it to begin with %q", value, prefix)
	}
}

// stored returns the value of default/s in the embedded etcd.
func stored(t *testing.T, p *process, resource string) []byte {
	t.Helper()
	store, err := kv.NewExternal(kv.ExternalConfig{Endpoints: []string{"unix://" + filepath.Join(p.dir, "etcd", "sock", "etcd")}})
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	running, stop := context.WithCancel(t.Context())
	go func() { done <- store.Run(running) }()
	item, found, _, err := store.Get(t.Context(), "/registry/"+resource+"/default/s")
	stop()
	if ended := <-done; err != nil || ended != nil || !found {
		t.Fatalf("found %v, error %v, %v", found, err, ended)
	}
	return item.Value
}
