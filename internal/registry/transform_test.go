package registry_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/server/options/encryptionconfig"
	"k8s.io/apiserver/pkg/storage/value"
	"k8s.io/apiserver/pkg/storage/value/encrypt/identity"

	"github.com/larder-io/larder/internal/proctest"
	"github.com/larder-io/larder/internal/registry"
	"github.com/larder-io/larder/internal/registry/registrytest"
	"github.com/larder-io/larder/internal/registry/storage"
	"github.com/larder-io/larder/kv/kvtest"
)

// TestEncryptionAtRest checks that configured resources are encrypted, that records that are not API objects never
// are, and that another server can read them.
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

// deaf is a transformer that hangs, even after its context ends, until it is released.
type deaf struct {
	value.Transformer
	released chan struct{}
}

// TransformFromStorage implements value.Transformer.
func (d deaf) TransformFromStorage(ctx context.Context, data []byte, dataCtx value.Context) ([]byte, bool, error) {
	<-d.released
	return d.Transformer.TransformFromStorage(ctx, data, dataCtx)
}

// TestOneCacheDoesNotHoldUpTheOthers checks that the registry is ready while the cache of Secrets hangs. Other
// resources and access rules can be read and written, and requests for Secrets get 429. Secrets are served as soon as
// they are loaded.
func TestOneCacheDoesNotHoldUpTheOthers(t *testing.T) {
	const prefix = "k8s:enc:test:v1:key:"
	released := make(chan struct{})
	release := sync.OnceFunc(func() { close(released) })
	secrets := schema.GroupResource{Resource: "secrets"}
	plain := identity.NewEncryptCheckTransformer()
	inner := value.NewPrefixTransformers(errors.New("no key"), value.PrefixTransformer{Prefix: []byte(prefix), Transformer: plain})
	store := kvtest.NewMemory()
	store.PutAll(map[string][]byte{"/registry/secrets/default/s": []byte(prefix + `{"apiVersion":"v1","kind":"Secret","metadata":{"name":"s","namespace":"default"}}`)})
	s := registrytest.New(t, store, func(c *registry.Config) {
		c.LoadTimeout = time.Second
		c.Transformers = encryptionconfig.StaticTransformers{secrets: deaf{inner, released}}
	})
	ctx, cancel := context.WithCancel(t.Context())
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return store.Run(ctx) })
	group.Go(func() error { return s.Registry.Run(ctx) })
	defer func() { cancel(); _ = group.Wait() }()
	defer release()
	if err := s.Registry.WaitReady(t.Context()); err != nil {
		t.Fatal(err)
	}
	proctest.Eventually(t, "only the secrets are late", func() error {
		if late := s.Registry.Unready(); len(late) != 1 || late[0] != secrets {
			return fmt.Errorf("late: %v", late)
		}
		return nil
	})
	list := func(gvr schema.GroupVersionResource) error {
		_, err := s.Registry.Endpoint(gvr, "").View.Resource.List(t.Context(), storage.ListRequest{}, nil)
		return err
	}
	for _, gvr := range []schema.GroupVersionResource{
		corev1.SchemeGroupVersion.WithResource("pods"), rbacv1.SchemeGroupVersion.WithResource("clusterroles"), rbacv1.SchemeGroupVersion.WithResource("rolebindings"),
	} {
		if err := list(gvr); err != nil {
			t.Errorf("%v: %v", gvr, err)
		}
	}
	if err := list(corev1.SchemeGroupVersion.WithResource("secrets")); !apierrors.IsTooManyRequests(err) {
		t.Errorf("secrets: %v", err)
	}
	release()
	proctest.Eventually(t, "secrets are listed", func() error { return list(corev1.SchemeGroupVersion.WithResource("secrets")) })
	if late := s.Registry.Unready(); len(late) != 0 {
		t.Errorf("still late: %v", late)
	}
}
