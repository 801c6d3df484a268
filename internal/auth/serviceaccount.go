package auth

import (
	"context"
	"errors"
	"net"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/klog/v2"
	controlplane "k8s.io/kubernetes/pkg/controlplane/apiserver/options"
	"k8s.io/kubernetes/pkg/routes"
	"k8s.io/kubernetes/pkg/serviceaccount"
)

// Signing names the signer of service-account tokens: the private key in KeyFile or the external
// signer at the socket Endpoint. Without either, no tokens are issued.
type Signing struct{ KeyFile, Endpoint string }

// Issuer issues service-account tokens.
type Issuer struct {
	Tokens                               serviceaccount.TokenGenerator
	MaxExpiration, MaxExtendedExpiration time.Duration
}

// completeServiceAccounts reads the signing key by upstream's options, or connects to the external
// signer, whose keys also verify tokens. It follows these keys until ctx ends.
func (a *Auth) completeServiceAccounts(ctx context.Context, c *Config) error {
	o := controlplane.NewOptions()
	// Only the options of service accounts matter. These values keep Complete from looking up addresses
	// and creating certificates.
	o.GenericServerRunOptions.AdvertiseAddress, o.GenericServerRunOptions.ExternalHost = net.IPv4(127, 0, 0, 1), "localhost"
	o.SecureServing.BindPort = 0
	o.Authentication, o.Authorization = c.Authentication, c.Authorization
	o.ServiceAccountSigningKeyFile, o.ServiceAccountSigningEndpoint = c.Signing.KeyFile, c.Signing.Endpoint
	completed, err := o.Complete(ctx, nil, nil)
	if err != nil {
		return err
	}
	serviceaccount.RegisterMetrics()
	accounts := c.Authentication.ServiceAccounts
	a.Issuer = Issuer{completed.ServiceAccountIssuer, accounts.MaxExpiration, accounts.MaxExtendedExpiration}
	return nil
}

// getter looks up the objects that a token is bound to. Informers would hold a second copy of every pod
// and secret.
//
// A token's objects are usually older than the token. So getter first reads from the cache, and does a consistent read
// only if the cache lacks the object. Kubernetes does the same with its listers
// (pkg/controller/serviceaccount/tokengetter.go).
type getter struct{ core typedcorev1.CoreV1Interface }

func (g getter) GetServiceAccount(ctx context.Context, namespace, name string) (*corev1.ServiceAccount, error) {
	return lookup(ctx, name, g.core.ServiceAccounts(namespace).Get)
}

func (g getter) GetPod(ctx context.Context, namespace, name string) (*corev1.Pod, error) {
	return lookup(ctx, name, g.core.Pods(namespace).Get)
}

func (g getter) GetSecret(ctx context.Context, namespace, name string) (*corev1.Secret, error) {
	return lookup(ctx, name, g.core.Secrets(namespace).Get)
}

func (g getter) GetNode(ctx context.Context, name string) (*corev1.Node, error) {
	return lookup(ctx, name, g.core.Nodes().Get)
}

func lookup[T any](ctx context.Context, name string, get func(context.Context, string, metav1.GetOptions) (T, error)) (T, error) {
	object, err := get(ctx, name, metav1.GetOptions{ResourceVersion: "0"})
	if apierrors.IsNotFound(err) {
		object, err = get(ctx, name, metav1.GetOptions{})
	}
	return lookedUp(ctx, object, err)
}

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

// OpenIDPaths lists the paths of the services that Auth.OpenID adds. A path that ends in "/" includes all paths below
// it, which upstream's router rejects.
func OpenIDPaths() []string {
	config, keys := serviceaccount.OpenIDConfigPath, serviceaccount.JWKSPath
	return []string{config, config + "/", keys, keys + "/"}
}

// loadOpenID prepares the OpenID provider's metadata. If the issuer is not an https URL, there is none
// (kubernetes pkg/controlplane/apiserver/server.go).
func (a *Auth) loadOpenID(c Config) error {
	if c.Authentication.ServiceAccounts == nil || a.keys == nil {
		return nil
	}
	accounts := c.Authentication.ServiceAccounts
	metadata, err := serviceaccount.NewOpenIDMetadataProvider(accounts.Issuers[0], accounts.JWKSURI, c.ExternalAddress, a.keys)
	if err != nil {
		klog.InfoS("Not serving OpenID metadata of service-account tokens", "reason", err)
		return nil
	}
	a.OpenID = routes.NewOpenIDMetadataServer(metadata).Install
	return nil
}
