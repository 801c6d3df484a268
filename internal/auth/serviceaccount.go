package auth

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/util/keyutil"
	"k8s.io/kubernetes/pkg/serviceaccount"
)

// validate applies kubernetes pkg/kubeapiserver/options/authentication.go and
// pkg/controlplane/apiserver/options/options.go.
func (s *ServiceAccounts) validate() error {
	for i, issuer := range s.Issuers {
		if issuer == "" {
			return errors.New("auth: a service-account issuer is empty")
		}
		if strings.Contains(issuer, ":") {
			if _, err := url.Parse(issuer); err != nil {
				return fmt.Errorf("auth: service-account issuer %q holds a ':' and is not a URL: %w", issuer, err)
			}
		}
		for _, other := range s.Issuers[:i] {
			if other == issuer {
				return fmt.Errorf("auth: service-account issuer %q is given twice", issuer)
			}
		}
	}
	if s.SigningKeyFile != "" && len(s.Issuers) == 0 {
		return errors.New("auth: a service-account signing key needs an issuer")
	}
	const low, high = time.Hour, time.Duration(1<<32) * time.Second
	if s.MaxExpiration != 0 && (s.MaxExpiration < low || s.MaxExpiration > high) {
		return errors.New("auth: the service-account-max-token-expiration must be between 1 hour and 2^32 seconds")
	}
	return nil
}

func (s *ServiceAccounts) publicKeys() (serviceaccount.PublicKeysGetter, error) {
	var all []any
	for _, file := range s.KeyFiles {
		keys, err := keyutil.PublicKeysFromFile(file)
		if err != nil {
			return nil, fmt.Errorf("auth: service-account key file: %w", err)
		}
		all = append(all, keys...)
	}
	keys, err := serviceaccount.StaticPublicKeysGetter(all)
	if err != nil {
		return nil, fmt.Errorf("auth: service-account keys: %w", err)
	}
	return keys, nil
}

func (s *ServiceAccounts) generator() (serviceaccount.TokenGenerator, error) {
	key, err := keyutil.PrivateKeyFromFile(s.SigningKeyFile)
	if err != nil {
		return nil, fmt.Errorf("auth: service-account signing key: %w", err)
	}
	tokens, err := serviceaccount.JWTTokenGenerator(s.Issuers[0], key)
	if err != nil {
		return nil, fmt.Errorf("auth: service-account tokens: %w", err)
	}
	return tokens, nil
}

// getter looks up the objects a token is bound to. It holds none of them: a copy
// of every pod and secret in informers would be a second cache.
//
// A token's objects are older than the token in all but rare cases, so the cache
// is asked as it stands first and a consistent read made only where it says no:
// kubernetes pkg/controller/serviceaccount/tokengetter.go asks its listers so.
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
		return get(ctx, name, metav1.GetOptions{})
	}
	return object, err
}
