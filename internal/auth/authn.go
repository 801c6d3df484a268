package auth

import (
	"cmp"
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"time"
	"weak"

	"k8s.io/apimachinery/pkg/util/cache"
	utilerrors "k8s.io/apimachinery/pkg/util/errors"
	"k8s.io/apiserver/pkg/apis/apiserver"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/group"
	"k8s.io/apiserver/pkg/authentication/request/anonymous"
	"k8s.io/apiserver/pkg/authentication/request/bearertoken"
	"k8s.io/apiserver/pkg/authentication/request/union"
	"k8s.io/apiserver/pkg/authentication/request/websocket"
	x509request "k8s.io/apiserver/pkg/authentication/request/x509"
	tokencache "k8s.io/apiserver/pkg/authentication/token/cache"
	"k8s.io/apiserver/pkg/server/dynamiccertificates"
	"k8s.io/apiserver/pkg/server/egressselector"
	certutil "k8s.io/client-go/util/cert"
	kubeauthenticator "k8s.io/kubernetes/pkg/kubeapiserver/authenticator"
	"k8s.io/kubernetes/pkg/kubeapiserver/options"
	"k8s.io/kubernetes/plugin/pkg/auth/authenticator/token/bootstrap"
)

// tokenSuccessTTL is how long an accepted token is cached. Package httpapi uses a response
// for another second, ten in all: kubernetes pkg/kubeapiserver/options/authentication.go.
const tokenSuccessTTL = 9 * time.Second

func (a *Auth) loadAuthenticator(ctx context.Context, c Config) error {
	config, err := a.authentication(c.Authentication)
	if err != nil {
		return err
	}
	a.Audiences, a.keys, a.RequestHeader = config.APIAudiences, config.ServiceAccountPublicKeysGetter, config.RequestHeaderConfig
	if a.keys != nil {
		a.keys.AddListener(a) // an external signer may withdraw keys
	}
	config.TokenSuccessCacheTTL = tokenSuccessTTL
	config.APIServerID = c.ServerID
	if c.Egress != nil {
		if config.CustomDial, err = c.Egress.Lookup(egressselector.ControlPlane.AsNetworkContext()); err != nil {
			return err
		}
		config.EgressLookup = c.Egress.Lookup
	}
	if c.Client != nil {
		config.ServiceAccountTokenGetter = getter{core: c.Client.CoreV1()}
		config.SecretsWriter = c.Client.CoreV1()
		config.BootstrapTokenAuthenticator = bootstrap.NewTokenAuthenticator(bootstrapSecrets{c.Client.CoreV1()})
	}
	update, err := a.compose(ctx, config, c.TokenReviews)
	if err != nil {
		return err
	}
	if file := c.Authentication.AuthenticationConfigFile; file != "" && update != nil {
		update := func(ctx context.Context, config *apiserver.AuthenticationConfiguration) error {
			err := update(ctx, config)
			if err == nil {
				a.generation.Add(1)
			}
			return err
		}
		a.reload = newReloader(file, config, update).run
	}
	return nil
}

// authentication reads the files that o names. It makes the providers of CA files itself, so that release
// can end them if a later step fails.
func (a *Auth) authentication(o *options.BuiltInAuthenticationOptions) (config kubeauthenticator.Config, err error) {
	if err := checkCAs(o); err != nil {
		return config, err
	}
	rest := *o
	rest.RequestHeader = nil
	if o.ClientCert != nil {
		certificates := *o.ClientCert
		if certificates.CAContentProvider, err = o.ClientCert.GetClientCAContentProvider(); err != nil {
			return config, fmt.Errorf("client CA: %w", err)
		}
		a.userCA = certificates.CAContentProvider
		a.follow(a.userCA)
		rest.ClientCert = &certificates
	}
	if config, err = rest.ToAuthenticationConfig(); err != nil || o.RequestHeader == nil {
		return config, err
	}
	if config.RequestHeaderConfig, err = o.RequestHeader.ToAuthenticationRequestHeaderConfig(); err == nil && config.RequestHeaderConfig != nil {
		a.follow(config.RequestHeaderConfig.CAContentProvider)
	}
	return config, err
}

// checkCAs reads the CA files: upstream's constructor leaves goroutines behind when it fails.
func checkCAs(o *options.BuiltInAuthenticationOptions) error {
	if o.ClientCert != nil && o.ClientCert.ClientCA != "" {
		if _, err := certutil.CertsFromFile(o.ClientCert.ClientCA); err != nil {
			return fmt.Errorf("client CA: %w", err)
		}
	}
	if o.RequestHeader != nil && o.RequestHeader.ClientCAFile != "" {
		if _, err := certutil.CertsFromFile(o.RequestHeader.ClientCAFile); err != nil {
			return fmt.Errorf("requestheader client CA: %w", err)
		}
	}
	return nil
}

// follow adds ca to ClientCA, counts its changes in generation, and lets Run reload its file.
func (a *Auth) follow(ca dynamiccertificates.CAContentProvider) {
	if ca == nil {
		return
	}
	if file, ok := ca.(*dynamiccertificates.DynamicFileCAContent); ok {
		a.followed = append(a.followed, file)
	}
	ca.AddListener(a)
	if a.ClientCA == nil {
		a.ClientCA = ca
		return
	}
	a.ClientCA = dynamiccertificates.NewUnionCAContentProvider(a.ClientCA, ca)
}

// compose builds the authenticators of config in upstream's order (kubernetes
// pkg/kubeapiserver/authenticator/config.go): front proxies, certificates, tokens, anonymous. Upstream's constructors
// build all of them except the one for certificates, which has a cache. A client with an invalid certificate may still
// authenticate with a token. Without a valid token it is rejected, and does not become anonymous.
func (a *Auth) compose(ctx context.Context, config kubeauthenticator.Config, reviews authenticator.Token) (func(context.Context, *apiserver.AuthenticationConfiguration) error, error) {
	proxies := kubeauthenticator.Config{RequestHeaderConfig: config.RequestHeaderConfig, APIAudiences: config.APIAudiences}
	proxy, _, _, _, err := proxies.New(ctx)
	if err != nil {
		return nil, err
	}
	localConfig, remoteConfig := splitTokens(config)
	local, _, _, _, err := localConfig.New(ctx)
	if err != nil {
		return nil, err
	}
	remote, update, _, _, err := remoteConfig.New(ctx)
	if err != nil {
		return nil, err
	}
	if reviews != nil {
		remote = group.NewAuthenticatedGroupAdder(union.New(bearertoken.New(reviews), websocket.NewProtocolAuthenticator(reviews)))
	}
	token := cachedTokens(successive(local, remote), config.TokenSuccessCacheTTL, config.TokenFailureCacheTTL)
	var certificate authenticator.Request
	if config.ClientCAContentProvider != nil {
		certificate = newCertificates(config.ClientCAContentProvider)
	}
	trusted := slices.DeleteFunc([]authenticator.Request{proxy, certificate}, func(a authenticator.Request) bool { return a == nil })
	all := slices.Clone(trusted)
	if token != nil {
		all = append(all, token)
	}
	a.Authenticator = union.New(all...) // a union of none accepts no credential
	a.reauthenticator = &reauthenticator{
		trusted: trusted, local: local, remote: remote, issuers: config.ServiceAccountIssuers,
	}
	jwt := config.AuthenticationConfig
	providers := config.AuthenticationConfigData != "" || jwt != nil && len(jwt.JWT) > 0
	if config.WebhookTokenAuthnConfigFile == "" && reviews == nil && !providers {
		a.reauthenticator.remote = nil
	}
	if config.Anonymous.Enabled {
		a.reauthenticator.anonymous = anonymous.NewAuthenticator(config.Anonymous.Conditions)
		a.Authenticator = union.NewFailOnError(a.Authenticator, anonymous.NewAuthenticator(config.Anonymous.Conditions))
		a.AnonymousByPath = len(config.Anonymous.Conditions) > 0
	}
	return update, nil
}

// splitTokens splits the authenticators of tokens: local ones decide in this process, remote ones call a provider or
// a webhook and follow in upstream's order. Neither has a cache: compose adds one, and revocation must not use it.
func splitTokens(config kubeauthenticator.Config) (local, remote kubeauthenticator.Config) {
	config.RequestHeaderConfig, config.ClientCAContentProvider = nil, nil
	config.Anonymous = apiserver.AnonymousAuthConfig{}
	config.TokenSuccessCacheTTL, config.TokenFailureCacheTTL = 0, 0
	local, remote = config, config
	local.AuthenticationConfig, local.WebhookTokenAuthnConfigFile = nil, ""
	remote.TokenAuthFile, remote.ServiceAccountPublicKeysGetter, remote.BootstrapToken = "", nil, false
	return local, remote
}

// successive tries local and then remote, and returns the same errors as upstream's single list of authenticators. Each
// may be nil.
func successive(local, remote authenticator.Request) authenticator.Request {
	if local == nil || remote == nil {
		return cmp.Or(local, remote)
	}
	return authenticator.RequestFunc(func(req *http.Request) (*authenticator.Response, bool, error) {
		resp, ok, err := local.AuthenticateRequest(req)
		if err == nil && ok {
			return resp, true, nil
		}
		resp, ok, other := remote.AuthenticateRequest(req)
		switch {
		case other == nil && ok:
			return resp, true, nil
		case other == nil || other.Error() == refusedToken:
			return nil, false, err
		case err == nil || err.Error() == refusedToken:
			return nil, false, other
		}
		return nil, false, utilerrors.NewAggregate([]error{err, other})
	})
}

// cachedTokens caches the results of next, which authenticates bearer tokens. next may be nil.
func cachedTokens(next authenticator.Request, success, failure time.Duration) authenticator.Request {
	if next == nil {
		return nil
	}
	uncached := authenticator.TokenFunc(func(ctx context.Context, token string) (*authenticator.Response, bool, error) {
		req := &http.Request{Header: http.Header{"Authorization": {"Bearer " + token}}}
		resp, ok, err := next.AuthenticateRequest(req.WithContext(ctx))
		if err != nil && err.Error() == refusedToken {
			return nil, false, nil // the caller makes the same error, and the metric of the cache counts none, as in upstream
		}
		if err != nil { // upstream first asks the authenticator of its own client, which also refuses
			err = utilerrors.NewAggregate([]error{errors.New(refusedToken), err})
		}
		return resp, ok, err
	})
	cached := tokencache.New(uncached, true, success, failure)
	return union.New(bearertoken.New(cached), websocket.NewProtocolAuthenticator(cached))
}

const (
	// certSuccessTTL is how long an accepted client certificate is cached: longer than the interval at which kubelets
	// renew their Leases.
	certSuccessTTL = time.Minute
	// certsRemembered limits the entries of the cache. A connection uses one.
	certsRemembered = 16 << 10
)

// certificates authenticates by client certificate and caches accepted users, because verifying a chain costs more than
// the rest of a GET. The pointer to a connection's parsed certificate is the key. It is weak, because a client may send
// 256 KiB of certificates on each connection.
//
// No entry outlives the certificate, its intermediates, or a change of the CAs. Rejections are not cached.
type certificates struct {
	verify   authenticator.Request
	ca       dynamiccertificates.CAContentProvider
	accepted *cache.LRUExpireCache
}

// certificateKey is an accepted certificate and the CA bundle, which its provider replaces as a whole.
type certificateKey struct {
	leaf   weak.Pointer[x509.Certificate]
	bundle *byte
}

func newCertificates(ca dynamiccertificates.CAContentProvider) authenticator.Request {
	return &certificates{
		verify:   group.NewAuthenticatedGroupAdder(x509request.NewDynamic(ca.VerifyOptions, x509request.CommonNameUserConversion)),
		ca:       ca,
		accepted: cache.NewLRUExpireCache(certsRemembered),
	}
}

// AuthenticateRequest implements authenticator.Request. The response is shared and
// must not be changed.
func (c *certificates) AuthenticateRequest(req *http.Request) (*authenticator.Response, bool, error) {
	bundle := c.ca.CurrentCABundleContent()
	if req.TLS == nil || len(req.TLS.PeerCertificates) == 0 || len(bundle) == 0 {
		return c.verify.AuthenticateRequest(req)
	}
	key := certificateKey{weak.Make(req.TLS.PeerCertificates[0]), &bundle[0]}
	if resp, ok := c.accepted.Get(key); ok {
		return resp.(*authenticator.Response), true, nil
	}
	resp, ok, err := c.verify.AuthenticateRequest(req)
	if err == nil && ok {
		c.accepted.Add(key, resp, min(certSuccessTTL, time.Until(earliestExpiry(req.TLS.PeerCertificates))))
	}
	return resp, ok, err
}

// earliestExpiry returns when the first of the certificates expires.
func earliestExpiry(chain []*x509.Certificate) time.Time {
	return slices.MinFunc(chain, func(a, b *x509.Certificate) int { return a.NotAfter.Compare(b.NotAfter) }).NotAfter
}
