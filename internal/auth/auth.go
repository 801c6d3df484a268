package auth

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/emicklei/go-restful/v3"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/authenticatorfactory"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/server/dynamiccertificates"
	"k8s.io/apiserver/pkg/server/egressselector"
	"k8s.io/apiserver/plugin/pkg/authorizer/webhook"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/kubernetes/pkg/controlplane/controller/clusterauthenticationtrust"
	"k8s.io/kubernetes/pkg/kubeapiserver/authorizer/modes"
	"k8s.io/kubernetes/pkg/kubeapiserver/options"
	"k8s.io/kubernetes/pkg/serviceaccount"
)

// The values of --authorization-mode that this package treats specially.
const (
	ModeAlwaysAllow = modes.ModeAlwaysAllow
	ModeNode        = modes.ModeNode
	ModeRBAC        = modes.ModeRBAC
)

// Config is the configuration of authentication and authorization.
type Config struct {
	// Authentication and Authorization are kube-apiserver's own options, which Load does not change.
	Authentication *options.BuiltInAuthenticationOptions
	Authorization  *options.BuiltInAuthorizationOptions
	Signing        Signing
	// TokenReviews, if not nil, replaces the token webhook and the providers that Authentication configures.
	// AccessReviews, if not nil, replaces the webhooks that Authorization, or its file, configures.
	TokenReviews  authenticator.Token
	AccessReviews *webhook.WebhookAuthorizer

	// ExternalAddress is the host and port at which this server publishes its
	// service-account keys.
	ExternalAddress string
	// Egress selects the connections to issuers and webhooks; nil connects directly.
	Egress *egressselector.EgressSelector
	// ServerID names this server in metrics.
	ServerID string

	// Client connects to this server in process. Load sends no request with it.
	Client kubernetes.Interface
	// Informers feed the RBAC authorizer; their owner starts them after Load.
	Informers informers.SharedInformerFactory
	// Ended is closed when the server begins to shut down. If it is not nil, requests wait, instead of being denied,
	// until RBAC and the Node authorizer have loaded their objects or Ended is closed. If it is nil, these authorizers
	// decide by the objects loaded so far.
	Ended <-chan struct{}
}

// Auth has the authenticators and authorizers of a server. Build it with [Load]; Run must be called.
type Auth struct {
	// Authenticator returns the user of a request. Its responses are shared and must not be
	// changed.
	Authenticator authenticator.Request
	// Authorizer caches RBAC's decisions. If several rules allow a request, its reason may name any of them.
	Authorizer   authorizer.Authorizer
	RuleResolver authorizer.RuleResolver
	// Issuer issues the tokens of TokenRequest; its Tokens are nil if nothing signs them.
	Issuer Issuer
	// OpenID adds services for OpenIDPaths: the issuer of the tokens and the keys that verify them. It is
	// nil if the issuer is not an https URL.
	OpenID func(*restful.Container)
	// Audiences are the audiences of this server's tokens.
	Audiences authenticator.Audiences
	// ClientCA has the CAs of client certificates, including front proxies'. It is nil if no client certificates are
	// accepted.
	ClientCA dynamiccertificates.CAContentProvider
	// RequestHeader names the headers of a front proxy; nil if no front proxy is accepted.
	RequestHeader *authenticatorfactory.RequestHeaderConfig
	// RBAC says that RBAC is among the authorizers.
	RBAC bool
	// AnonymousByPath says that anonymous requests are accepted for some paths only.
	AnonymousByPath bool

	followed        []*dynamiccertificates.DynamicFileCAContent
	keys            serviceaccount.PublicKeysGetter       // that verify tokens; nil if none do
	userCA          dynamiccertificates.CAContentProvider // of certificates that name users
	generation      atomic.Uint64                         // see Generation
	reauthenticator *reauthenticator                      // Revocation.Authenticator
	reload          func(context.Context)                 // follows the authentication configuration
	chain           *chain
	graph           *graph // nil without the Node authorizer
}

// Generation counts the changes after which a cached authentication may be wrong: changes of the CAs
// of client certificates, of an external signer's keys, and of the authentication configuration.
func (a *Auth) Generation() uint64 { return a.generation.Load() }

// TrustedCAs returns the CAs whose certificates this server accepts, for publication to other API servers.
func (a *Auth) TrustedCAs() clusterauthenticationtrust.ClusterAuthenticationInfo {
	info := clusterauthenticationtrust.ClusterAuthenticationInfo{ClientCA: a.userCA}
	if proxies := a.RequestHeader; proxies != nil {
		info.RequestHeaderCA, info.RequestHeaderAllowedNames = proxies.CAContentProvider, proxies.AllowedClientNames
		info.RequestHeaderUsernameHeaders, info.RequestHeaderUIDHeaders = proxies.UsernameHeaders, proxies.UIDHeaders
		info.RequestHeaderGroupHeaders, info.RequestHeaderExtraHeaderPrefixes = proxies.GroupHeaders, proxies.ExtraHeaderPrefixes
	}
	return info
}

// complete returns a copy of c with the defaults that depend on other options, as in kube-apiserver.
func (c Config) complete() Config {
	authorization := *c.Authorization
	authorization.Complete()
	c.Authorization = &authorization
	authentication := *c.Authentication
	if authentication.Anonymous != nil {
		anonymous := *authentication.Anonymous
		authentication.Anonymous = &anonymous
	}
	if authentication.ServiceAccounts != nil {
		accounts := *authentication.ServiceAccounts
		authentication.ServiceAccounts = &accounts
	}
	// Under AlwaysAllow an anonymous client could do everything. So anonymous requests are rejected unless the options
	// allow them explicitly; then upstream's options log a warning.
	if anonymous := authentication.Anonymous; anonymous != nil && !anonymous.FlagsSet && slices.Contains(authorization.Modes, ModeAlwaysAllow) {
		anonymous.Allow = false
	}
	authentication.ApplyAuthorization(c.Authorization)
	c.Authentication = &authentication
	return c
}

// Load reads the files that c names and builds the authenticators and authorizers. Until ctx ends, it
// follows the keys of an external signer and of the issuers of tokens.
func Load(ctx context.Context, c Config) (*Auth, error) {
	c, a := c.complete(), &Auth{}
	if err := a.load(ctx, c); err != nil {
		a.release()
		return nil, fmt.Errorf("auth: %w", err)
	}
	return a, nil
}

func (a *Auth) load(ctx context.Context, c Config) error {
	if c.Authentication.ServiceAccounts != nil {
		if err := a.completeServiceAccounts(ctx, &c); err != nil {
			return err
		}
	}
	if err := errors.Join(append(c.Authentication.Validate(), c.Authorization.Validate()...)...); err != nil {
		return err
	}
	if err := a.loadAuthenticator(ctx, c); err != nil {
		return err
	}
	if err := a.loadAuthorizer(ctx, c); err != nil {
		return err
	}
	return a.loadOpenID(c)
}

// release ends the goroutines that the constructors of upstream's reloaders started.
func (a *Auth) release() {
	ended, cancel := context.WithCancel(context.Background())
	cancel()
	_ = a.Run(ended) // it never fails
}

// Run reloads changed files until ctx ends. It must be called once, even if only with an ended context.
func (a *Auth) Run(ctx context.Context) error {
	var running sync.WaitGroup
	for _, ca := range a.followed {
		running.Go(func() { ca.Run(ctx, 1) })
	}
	if a.reload != nil {
		running.Go(func() { a.reload(ctx) })
	}
	if a.chain != nil {
		running.Go(func() { a.chain.run(ctx) })
	}
	<-ctx.Done()
	running.Wait()
	return nil
}

// Enqueue implements dynamiccertificates.Listener and serviceaccount.Listener. It counts a change of a CA file or of
// the keys.
func (a *Auth) Enqueue() { a.generation.Add(1) }
