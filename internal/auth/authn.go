package auth

import (
	"context"
	"fmt"
	"net/http"
	"time"

	"k8s.io/apiserver/pkg/apis/apiserver"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	kubeauthenticator "k8s.io/kubernetes/pkg/kubeapiserver/authenticator"
)

// tokenSuccessTTL is how long an accepted token is remembered: kubernetes
// pkg/kubeapiserver/options/authentication.go.
const tokenSuccessTTL = 10 * time.Second

func (a *Auth) loadAuthenticator(ctx context.Context, c Config) error {
	config := kubeauthenticator.Config{
		Anonymous:             apiserver.AnonymousAuthConfig{Enabled: c.anonymous()},
		TokenAuthFile:         c.TokenFile,
		APIAudiences:          a.Audiences,
		TokenSuccessCacheTTL:  tokenSuccessTTL,
		ServiceAccountLookup:  c.ServiceAccounts.Lookup,
		ServiceAccountIssuers: c.ServiceAccounts.Issuers,
	}
	// A nil *DynamicFileCAContent must not become a non-nil interface.
	if a.clientCA != nil {
		config.ClientCAContentProvider = a.clientCA
	}
	if len(c.ServiceAccounts.KeyFiles) > 0 {
		keys, err := c.ServiceAccounts.publicKeys()
		if err != nil {
			return err
		}
		config.ServiceAccountPublicKeysGetter = keys
		config.ServiceAccountTokenGetter = getter{core: c.Client.CoreV1()}
		config.SecretsWriter = c.Client.CoreV1()
	}
	request, _, _, _, err := config.New(ctx)
	if err != nil {
		return fmt.Errorf("auth: authentication: %w", err)
	}
	a.Authenticator = request
	if request == nil {
		a.Authenticator = authenticator.RequestFunc(nobody)
	}
	return nil
}

// nobody is the authenticator of a server that accepts no credential.
func nobody(*http.Request) (*authenticator.Response, bool, error) { return nil, false, nil }
