package registry_test

import (
	"bytes"
	"errors"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/server/options/encryptionconfig"
	"k8s.io/apiserver/pkg/storage/value"
	"k8s.io/apiserver/pkg/storage/value/encrypt/identity"

	"github.com/larder-io/larder/internal/registry"
	"github.com/larder-io/larder/internal/registry/registrytest"
)

// TestEncryptionAtRest encrypts the resources that it is told to, and never the
// records that are no API objects; another server reads what the first wrote.
func TestEncryptionAtRest(t *testing.T) {
	const prefix = "k8s:enc:test:v1:key:"
	encrypted := func(c *registry.Config) {
		transformer := value.NewPrefixTransformers(errors.New("no key"),
			value.PrefixTransformer{Prefix: []byte(prefix), Transformer: identity.NewEncryptCheckTransformer()})
		c.Transformers = encryptionconfig.StaticTransformers{
			schema.GroupResource{Resource: "secrets"}:  transformer,
			schema.GroupResource{Resource: "services"}: transformer,
		}
	}
	s := startServer(t, encrypted)
	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "s"}, Data: map[string][]byte{"k": []byte("v")}}
	if _, err := s.Client.CoreV1().Secrets("default").Create(t.Context(), secret, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	for key, start := range map[string]string{
		"/registry/secrets/default/s":                 prefix,
		"/registry/services/specs/default/kubernetes": prefix,
		"/registry/ranges/servicenodeports":           "k8s\x00",
		"/registry/namespaces/default":                "k8s\x00",
	} {
		item, found, _, err := s.Store.Get(t.Context(), key)
		if err != nil || !found || !bytes.HasPrefix(item.Value, []byte(start)) {
			t.Errorf("%s: found %v, %v, starts with %q, want %q", key, found, err, item.Value[:min(len(item.Value), len(prefix))], start)
		}
	}
	other := registrytest.New(t, s.Store, encrypted)
	other.Start(t)
	got, err := other.Client.CoreV1().Secrets("default").Get(t.Context(), "s", metav1.GetOptions{})
	if err != nil || string(got.Data["k"]) != "v" {
		t.Errorf("read by another server: %v, %v", got, err)
	}
}
