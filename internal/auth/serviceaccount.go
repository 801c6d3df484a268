package auth

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/util/keyutil"
	"k8s.io/klog/v2"
	"k8s.io/kubernetes/pkg/apis/authentication/validation"
	"k8s.io/kubernetes/pkg/features"
	"k8s.io/kubernetes/pkg/kubeapiserver/options"
	"k8s.io/kubernetes/pkg/serviceaccount"
	"k8s.io/kubernetes/pkg/serviceaccount/externaljwt/plugin"
)

// Signing says what signs service-account tokens: the private key in KeyFile or the external
// signer at the socket Endpoint. Without either none are issued.
type Signing struct{ KeyFile, Endpoint string }

// Issuer issues service-account tokens.
type Issuer struct {
	Tokens                               serviceaccount.TokenGenerator
	MaxExpiration, MaxExtendedExpiration time.Duration
}

// How long an external signer may take to return its keys, and its metadata.
const (
	keysTimeout     = time.Minute
	metadataTimeout = 10 * time.Second
)

// validate applies kubernetes pkg/controlplane/apiserver/options/validation.go.
func (s *Signing) validate(authentication *options.BuiltInAuthenticationOptions) []error {
	var errs []error
	if authentication != nil && authentication.ServiceAccounts != nil {
		const low, high = time.Hour, time.Duration(1<<32) * time.Second
		if most := authentication.ServiceAccounts.MaxExpiration; most != 0 && (most < low || most > high) {
			errs = append(errs, errors.New("the service-account-max-token-expiration must be between 1 hour and 2^32 seconds"))
		}
	}
	if s.Endpoint == "" {
		return errs
	}
	if s.KeyFile != "" || authentication != nil && authentication.ServiceAccounts != nil && len(authentication.ServiceAccounts.KeyFiles) > 0 {
		errs = append(errs, errors.New("can't set `--service-account-signing-key-file` and/or `--service-account-key-file` with `--service-account-signing-endpoint` (They are mutually exclusive)"))
	}
	if !utilfeature.DefaultFeatureGate.Enabled(features.ExternalServiceAccountTokenSigner) {
		errs = append(errs, errors.New("setting `--service-account-signing-endpoint` requires enabling ExternalServiceAccountTokenSigner feature gate"))
	}
	abstract := regexp.MustCompile(`^@([a-zA-Z0-9_-]+\.)*[a-zA-Z0-9_-]+$`)
	if strings.HasPrefix(s.Endpoint, "@") && !abstract.MatchString(s.Endpoint) {
		errs = append(errs, fmt.Errorf("invalid value %q passed for `--service-account-signing-endpoint`, when prefixed with @ must be a valid abstract socket name", s.Endpoint))
	}
	return errs
}

// expected is authentication with the keys that an external signer will tell once it is
// asked: whether there will be any is all that upstream's validation looks at.
func (s *Signing) expected(authentication *options.BuiltInAuthenticationOptions) *options.BuiltInAuthenticationOptions {
	if s.Endpoint == "" || authentication == nil || authentication.ServiceAccounts == nil {
		return authentication
	}
	whole, accounts := *authentication, *authentication.ServiceAccounts
	if keys, err := serviceaccount.StaticPublicKeysGetter(nil); err == nil {
		accounts.ExternalPublicKeysGetter = keys
	}
	whole.ServiceAccounts = &accounts
	return &whole
}

// loadIssuer prepares the issuer of tokens, as kubernetes
// pkg/controlplane/apiserver/options/options.go does. An external signer's keys verify
// tokens, too.
func (a *Auth) loadIssuer(ctx context.Context, c Config) error {
	if c.Authentication == nil || c.Authentication.ServiceAccounts == nil {
		return nil
	}
	serviceaccount.RegisterMetrics()
	accounts := c.Authentication.ServiceAccounts
	if len(accounts.Issuers) > 0 && accounts.Issuers[0] != "" {
		var err error
		switch {
		case c.Signing.KeyFile != "":
			a.Issuer.Tokens, err = signer(accounts.Issuers[0], c.Signing.KeyFile)
		case c.Signing.Endpoint != "":
			a.Issuer.Tokens, err = externalSigner(ctx, accounts, c.Signing.Endpoint)
		}
		if err != nil {
			return err
		}
	}
	a.Issuer.MaxExpiration, a.Issuer.MaxExtendedExpiration = accounts.MaxExpiration, accounts.MaxExtendedExpiration
	if most := accounts.MaxExpiration; accounts.ExtendExpiration && most != 0 && most < serviceaccount.ExpirationExtensionSeconds*time.Second {
		klog.Warningf("service-account-extend-token-expiration is true, enabling tokens valid up to %d seconds, which is longer than the maximum of %s", serviceaccount.ExpirationExtensionSeconds, most)
	}
	return nil
}

func signer(issuer, file string) (serviceaccount.TokenGenerator, error) {
	key, err := keyutil.PrivateKeyFromFile(file)
	if err != nil {
		return nil, fmt.Errorf("failed to parse service-account-issuer-key-file: %w", err)
	}
	tokens, err := serviceaccount.JWTTokenGenerator(issuer, key)
	if err != nil {
		return nil, fmt.Errorf("failed to build token generator: %w", err)
	}
	return tokens, nil
}

// externalSigner connects to the service that signs tokens, which also bounds their life.
func externalSigner(ctx context.Context, accounts *options.ServiceAccountAuthenticationOptions, endpoint string) (serviceaccount.TokenGenerator, error) {
	signer, keys, err := plugin.New(ctx, accounts.Issuers[0], endpoint, keysTimeout, false)
	if err != nil {
		return nil, fmt.Errorf("while setting up external-jwt-signer: %w", err)
	}
	ctx, cancel := context.WithTimeout(ctx, metadataTimeout)
	defer cancel()
	metadata, err := signer.GetServiceMetadata(ctx)
	if err != nil {
		return nil, fmt.Errorf("while setting up external-jwt-signer: %w", err)
	}
	if metadata.MaxTokenExpirationSeconds < validation.MinTokenAgeSec {
		return nil, fmt.Errorf("max token life supported by external-jwt-signer (%ds) is less than acceptable (min %ds)", metadata.MaxTokenExpirationSeconds, validation.MinTokenAgeSec)
	}
	most := time.Duration(metadata.MaxTokenExpirationSeconds) * time.Second
	if accounts.MaxExpiration > most {
		return nil, fmt.Errorf("service-account-max-token-expiration cannot be set longer than the token expiration supported by service-account-signing-endpoint: %s > %s", accounts.MaxExpiration, most)
	}
	if accounts.MaxExpiration == 0 {
		accounts.MaxExpiration = most
	}
	accounts.ExternalPublicKeysGetter = keys
	accounts.MaxExtendedExpiration = min(most, accounts.MaxExtendedExpiration)
	return signer, nil
}

// getter looks up the objects a token is bound to. It holds none of them: a copy
// of every pod and secret in informers would be a second cache.
//
// A token's objects are usually older than the token, so the cache is read first, as it is
// at the moment, and a consistent read made only if the object is not there: kubernetes
// pkg/controller/serviceaccount/tokengetter.go does so with its listers.
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
