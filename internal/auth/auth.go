package auth

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"time"

	dto "github.com/prometheus/client_model/go"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/server/dynamiccertificates"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	certutil "k8s.io/client-go/util/cert"
	"k8s.io/kubernetes/pkg/serviceaccount"
)

// Authorization modes, as --authorization-mode names them.
const (
	ModeAlwaysAllow = "AlwaysAllow"
	ModeRBAC        = "RBAC"
)

// Modes returns the authorization modes there are.
func Modes() []string { return []string{ModeAlwaysAllow, ModeRBAC} }

// Config says how requests are authenticated and authorized. Empty file names
// switch their mechanism off.
type Config struct {
	// TokenFile is a CSV of token, user name, user uid and optionally groups.
	TokenFile string
	// ClientCAFile holds the authorities whose client certificates are accepted.
	ClientCAFile string
	// Anonymous accepts requests that carry no credential. It has no effect
	// beside ModeAlwaysAllow, as upstream.
	Anonymous bool
	// Audiences are the identifiers a token must be meant for; by default the
	// service-account issuers.
	Audiences []string

	ServiceAccounts ServiceAccounts

	// Modes are the authorizers asked, in order.
	Modes []string

	// ExternalAddress is the host and port at which others find this server's
	// service-account keys.
	ExternalAddress string

	// Client reaches this very server, in process. It is used when requests
	// arrive, not before.
	Client kubernetes.Interface
	// Informers feed the RBAC authorizer; their owner starts them after Load.
	Informers informers.SharedInformerFactory
}

// ServiceAccounts says which service-account tokens are issued and accepted.
type ServiceAccounts struct {
	// KeyFiles hold the public (or private) keys that verify tokens.
	KeyFiles []string
	// SigningKeyFile holds the private key that signs tokens; "" issues none.
	SigningKeyFile string
	// Issuers: the first one is written into tokens, all are accepted.
	Issuers []string
	// Lookup refuses legacy tokens whose secret is gone.
	Lookup bool
	// MaxExpiration caps a token's life; 0 leaves it uncapped.
	MaxExpiration time.Duration
	// ExtendExpiration lengthens the tokens that admission injects into pods.
	ExtendExpiration bool
}

// Auth holds what Load built. It is immutable.
type Auth struct {
	Authenticator authenticator.Request
	Authorizer    authorizer.Authorizer
	// Gate decides as Authorizer does and remembers what RBAC decided. Of several
	// rules that allow the same, its reason may name another one.
	Gate         authorizer.Authorizer
	RuleResolver authorizer.RuleResolver
	// Tokens is nil when no signing key was given.
	Tokens serviceaccount.TokenGenerator
	// OpenID answers OpenIDPaths: who issues the tokens, and the keys that verify
	// them. It is nil when the issuer's name cannot be told so.
	OpenID http.Handler
	// Audiences that this server's tokens are meant for.
	Audiences authenticator.Audiences
	// ClientCA is nil when client certificates are not accepted.
	ClientCA dynamiccertificates.CAContentProvider

	clientCA  *dynamiccertificates.DynamicFileCAContent
	decisions *decisions // behind Gate; nil if it remembers nothing
}

// AddTo adds to upstream's metrics what Gate decided without asking.
func (a *Auth) AddTo(families []*dto.MetricFamily) {
	if a.decisions != nil {
		a.decisions.addTo(families)
	}
}

// Validate checks what can be checked without reading a file.
func (c *Config) Validate() error {
	if len(c.Modes) == 0 {
		return errors.New("auth: at least one authorization mode is needed")
	}
	for i, mode := range c.Modes {
		if !slices.Contains(Modes(), mode) {
			return fmt.Errorf("auth: unknown authorization mode %q, have %q", mode, Modes())
		}
		if slices.Contains(c.Modes[:i], mode) {
			return fmt.Errorf("auth: authorization mode %q is given twice", mode)
		}
	}
	return c.ServiceAccounts.validate()
}

// Load reads the files that c names and builds the authenticators and authorizers.
func Load(ctx context.Context, c Config) (*Auth, error) {
	if err := c.Validate(); err != nil {
		return nil, err
	}
	a := &Auth{Audiences: c.audiences()}
	if err := a.load(ctx, c); err != nil {
		a.release()
		return nil, err
	}
	return a, nil
}

func (a *Auth) load(ctx context.Context, c Config) error {
	if err := a.loadClientCA(c.ClientCAFile); err != nil {
		return err
	}
	if err := a.loadAuthenticator(ctx, c); err != nil {
		return err
	}
	if err := a.loadAuthorizer(ctx, c); err != nil {
		return err
	}
	if err := a.loadOpenID(c); err != nil {
		return err
	}
	if c.ServiceAccounts.SigningKeyFile == "" {
		return nil
	}
	tokens, err := c.ServiceAccounts.generator()
	a.Tokens = tokens
	return err
}

// release ends what the constructor of upstream's reloader started.
func (a *Auth) release() {
	ended, cancel := context.WithCancel(context.Background())
	cancel()
	if err := a.Run(ended); err != nil {
		utilruntime.HandleError(err)
	}
}

// Run reloads the client CA's file when it changes, until ctx ends. It must be
// called once, if only with an ended context.
func (a *Auth) Run(ctx context.Context) error {
	if a.clientCA == nil {
		<-ctx.Done()
		return nil
	}
	a.clientCA.Run(ctx, 1)
	return nil
}

func (a *Auth) loadClientCA(file string) error {
	if file == "" {
		return nil
	}
	// Checked first: upstream's constructor leaves goroutines behind when it fails.
	if _, err := certutil.CertsFromFile(file); err != nil {
		return fmt.Errorf("auth: client CA: %w", err)
	}
	ca, err := dynamiccertificates.NewDynamicCAContentFromFile("client-ca-bundle", file)
	if err != nil {
		return fmt.Errorf("auth: client CA: %w", err)
	}
	a.clientCA, a.ClientCA = ca, ca
	return nil
}

func (c *Config) audiences() authenticator.Audiences {
	if len(c.Audiences) > 0 {
		return c.Audiences
	}
	return c.ServiceAccounts.Issuers
}

// anonymous reports whether anonymous requests are accepted. Everybody could do
// everything if they were under AlwaysAllow, so they are not:
// kubernetes pkg/kubeapiserver/options/authentication.go.
func (c *Config) anonymous() bool {
	return c.Anonymous && !slices.Contains(c.Modes, ModeAlwaysAllow)
}
