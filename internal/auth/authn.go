package auth

import (
	"context"
	"fmt"
	"net/http"
	"time"

	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/request/anonymous"
	"k8s.io/apiserver/pkg/authentication/request/union"
	"k8s.io/apiserver/pkg/server/dynamiccertificates"
	kubeauthenticator "k8s.io/kubernetes/pkg/kubeapiserver/authenticator"
)

// tokenSuccessTTL is how long an accepted token is remembered. The front door takes
// an answer for a second more, ten in all: kubernetes
// pkg/kubeapiserver/options/authentication.go.
const tokenSuccessTTL = 9 * time.Second

func (a *Auth) loadAuthenticator(ctx context.Context, c Config) error {
	config := kubeauthenticator.Config{
		TokenAuthFile:         c.TokenFile,
		APIAudiences:          a.Audiences,
		TokenSuccessCacheTTL:  tokenSuccessTTL,
		ServiceAccountLookup:  c.ServiceAccounts.Lookup,
		ServiceAccountIssuers: c.ServiceAccounts.Issuers,
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
	a.Authenticator = c.compose(request, a.clientCA)
	return nil
}

// compose puts certificates before tokens and anonymous last, as upstream does: a
// bad certificate may be made good by a token, but not by being nobody.
func (c *Config) compose(tokens authenticator.Request, ca *dynamiccertificates.DynamicFileCAContent) authenticator.Request {
	var credentials []authenticator.Request
	if ca != nil {
		credentials = append(credentials, newCertificates(ca))
	}
	if tokens != nil {
		credentials = append(credentials, tokens)
	}
	all := authenticator.Request(authenticator.RequestFunc(nobody))
	if len(credentials) > 0 {
		all = union.New(credentials...)
	}
	if c.anonymous() {
		all = union.NewFailOnError(all, anonymous.NewAuthenticator(nil))
	}
	return all
}

// nobody is the authenticator of a server that accepts no credential.
func nobody(*http.Request) (*authenticator.Response, bool, error) { return nil, false, nil }
