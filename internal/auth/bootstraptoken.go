package auth

import (
	"context"
	"errors"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
)

// bootstrapSecrets looks up the secrets of bootstrap tokens in the registry's cache. Upstream's
// informer would hold a copy.
type bootstrapSecrets struct{ client typedcorev1.SecretsGetter }

// bootstrapTimeout limits a lookup, which is in memory.
const bootstrapTimeout = 10 * time.Second

// Get implements listers.SecretNamespaceLister.
func (b bootstrapSecrets) Get(name string) (*corev1.Secret, error) {
	ctx, cancel := context.WithTimeout(context.Background(), bootstrapTimeout)
	defer cancel()
	secret, err := b.client.Secrets(metav1.NamespaceSystem).Get(ctx, name, metav1.GetOptions{ResourceVersion: "0"})
	return lookedUp(ctx, secret, err)
}

// List implements listers.SecretNamespaceLister. Upstream's authenticator does not call it.
func (bootstrapSecrets) List(labels.Selector) ([]*corev1.Secret, error) {
	return nil, errors.New("auth: bootstrap tokens are not listed")
}
