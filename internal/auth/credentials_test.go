package auth_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/emicklei/go-restful/v3"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/client-go/kubernetes/fake"
	k8stesting "k8s.io/client-go/testing"
	"k8s.io/kubernetes/pkg/apis/core"
	"k8s.io/kubernetes/pkg/serviceaccount"
	"sigs.k8s.io/yaml"

	"github.com/larder-io/larder/internal/auth"
	"github.com/larder-io/larder/internal/proctest"
	"github.com/larder-io/larder/internal/proctest/testcert"
)

// eventually waits until try returns nil.
func eventually(t *testing.T, try func() error) {
	t.Helper()
	proctest.Eventually(t, "it succeeds", try)
}

// authenticate authenticates req and returns its user.
func authenticate(a *auth.Auth, req *http.Request) (user.Info, error) {
	resp, ok, err := a.Authenticator.AuthenticateRequest(req)
	if err != nil {
		return nil, err
	}
	if !ok {
		return nil, errors.New("no authenticator accepts the request")
	}
	return resp.User, nil
}

// checkUser returns an error unless u has that name and those groups.
func checkUser(u user.Info, name string, groups ...string) error {
	if u.GetName() != name {
		return fmt.Errorf("user %q, want %q", u.GetName(), name)
	}
	for _, group := range append(groups, user.AllAuthenticated) {
		if !slices.Contains(u.GetGroups(), group) {
			return fmt.Errorf("groups %q lack %q", u.GetGroups(), group)
		}
	}
	return nil
}

// serveTLS serves h and returns its URL and the file of its CA.
func serveTLS(t *testing.T, h http.Handler) (url, ca string) {
	t.Helper()
	s := httptest.NewTLSServer(h)
	t.Cleanup(s.Close)
	return s.URL, write(t, "webhook-ca.crt", certPEM(s.Certificate()))
}

// kubeconfig writes a kubeconfig for a webhook and returns its path.
func kubeconfig(t *testing.T, url, ca string) string {
	t.Helper()
	return write(t, "webhook.kubeconfig", fmt.Sprintf(`{"apiVersion":"v1","kind":"Config","current-context":"c",
"clusters":[{"name":"c","cluster":{"server":%q,"certificate-authority":%q}}],
"contexts":[{"name":"c","context":{"cluster":"c","user":"u"}}],"users":[{"name":"u","user":{}}]}`, url, ca))
}

// openIDIssuer is an OpenID provider: another server that issues service account tokens.
type openIDIssuer struct {
	url, ca string
	auth    *auth.Auth
}

func newOpenIDIssuer(t *testing.T) *openIDIssuer {
	t.Helper()
	served := restful.NewContainer()
	i := &openIDIssuer{}
	i.url, i.ca = serveTLS(t, served)
	c := config(t, newAuthority(t))
	c.Authentication.ServiceAccounts.Issuers = []string{i.url}
	c.Authentication.ServiceAccounts.JWKSURI = i.url + serviceaccount.JWKSPath
	c.Client = fake.NewClientset(robot())
	i.auth = load(t, c)
	i.auth.OpenID(served)
	return i
}

// token issues a token. Each value of life gives another token, which is in no cache.
func (i *openIDIssuer) token(t *testing.T, audience string, life int64) string {
	t.Helper()
	claims, _, err := serviceaccount.Claims(core.ServiceAccount{ObjectMeta: robot().ObjectMeta}, nil, nil, nil, life, 0, []string{audience})
	if err != nil {
		t.Fatal(err)
	}
	signed, err := i.auth.Issuer.Tokens.GenerateToken(t.Context(), claims, map[string]any{"teams": []string{"red"}, "site": "north"})
	if err != nil {
		t.Fatal(err)
	}
	return signed
}

const remoteRobot = "system:serviceaccount:default:robot"

// TestOpenIDConnectFlags checks that tokens of an OpenID provider are accepted according to the --oidc flags.
func TestOpenIDConnectFlags(t *testing.T) {
	issuer := newOpenIDIssuer(t)
	c := config(t, newAuthority(t))
	o := c.Authentication.OIDC
	o.IssuerURL, o.ClientID, o.CAFile, o.SigningAlgs = issuer.url, "here", issuer.ca, []string{"ES256"}
	o.UsernamePrefix, o.GroupsClaim, o.GroupsPrefix = "far:", "teams", "team:"
	o.RequiredClaims = map[string]string{"site": "north"}
	a := load(t, c)
	eventually(t, func() error {
		u, err := authenticate(a, request(t, issuer.token(t, "here", 600), nil))
		if err != nil {
			return err
		}
		return checkUser(u, "far:"+remoteRobot, "team:red")
	})
	for _, bad := range []string{issuer.token(t, "elsewhere", 600), issuer.token(t, "here", -600), issuer.token(t, "here", 600) + "x"} {
		if u, err := authenticate(a, request(t, bad, nil)); err == nil {
			t.Errorf("an invalid token was accepted as %v", u)
		}
	}
}

func jwtConfig(i *openIDIssuer, t *testing.T, prefix string) string {
	t.Helper()
	ca, err := os.ReadFile(i.ca)
	if err != nil {
		t.Fatal(err)
	}
	raw, err := yaml.Marshal(map[string]any{
		"apiVersion": "apiserver.config.k8s.io/v1", "kind": "AuthenticationConfiguration",
		"jwt": []any{map[string]any{
			"issuer":        map[string]any{"url": i.url, "audiences": []string{"here"}, "certificateAuthority": string(ca)},
			"claimMappings": map[string]any{"username": map[string]any{"claim": "sub", "prefix": prefix}},
		}},
	})
	if err != nil {
		t.Fatal(err)
	}
	return string(raw)
}

// TestAuthenticationConfigReload checks that a valid change of the file takes effect, and an invalid one does not.
func TestAuthenticationConfigReload(t *testing.T) {
	if testing.Short() {
		t.Skip("waits ten seconds for upstream to reload the file")
	}
	issuer := newOpenIDIssuer(t)
	c := config(t, newAuthority(t))
	file := write(t, "authentication.yaml", jwtConfig(issuer, t, "one:"))
	c.Authentication.AuthenticationConfigFile = file
	a := load(t, c)
	life := int64(600)
	expect := func(prefix string) {
		t.Helper()
		eventually(t, func() error {
			life++ // a token that is not cached
			u, err := authenticate(a, request(t, issuer.token(t, "here", life), nil))
			if err != nil {
				return err
			}
			return checkUser(u, prefix+remoteRobot)
		})
	}
	expect("one:")
	replace(t, file, "nonsense")
	replace(t, file, jwtConfig(issuer, t, "two:"))
	expect("two:")
	replace(t, file, strings.ReplaceAll(jwtConfig(issuer, t, "three:"), "jwt:", "anonymous: {enabled: true}\njwt:"))
	expect("two:") // a change of anonymous authentication is rejected
}

// TestTokenWebhooksAreCached checks that a webhook authenticates tokens, and that its responses are cached.
func TestTokenWebhooksAreCached(t *testing.T) {
	var calls atomic.Int32
	url, ca := serveTLS(t, http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		var review authenticationv1.TokenReview
		if err := json.NewDecoder(req.Body).Decode(&review); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		calls.Add(1)
		if review.Spec.Token == "remote" {
			review.Status = authenticationv1.TokenReviewStatus{Authenticated: true, User: authenticationv1.UserInfo{
				Username: "wendy", UID: "w1", Groups: []string{"web"}, Extra: map[string]authenticationv1.ExtraValue{"scope": {"a"}},
			}}
		}
		_ = json.NewEncoder(w).Encode(&review)
	}))
	c := config(t, newAuthority(t))
	c.Authentication.WebHook.ConfigFile, c.Authentication.WebHook.Version = kubeconfig(t, url, ca), "v1"
	a := load(t, c)
	for range 3 {
		u, err := authenticate(a, request(t, "remote", nil))
		if err != nil {
			t.Fatal(err)
		}
		if err := checkUser(u, "wendy", "web"); err != nil || u.GetUID() != "w1" || u.GetExtra()["scope"][0] != "a" {
			t.Errorf("user %+v: %v", u, err)
		}
	}
	if n := calls.Load(); n != 1 {
		t.Errorf("%d calls of the webhook, want 1", n)
	}
	if u, err := authenticate(a, request(t, "unknown", nil)); err == nil {
		t.Errorf("an unknown token was accepted as %v", u)
	}
	// The webhook is not called for tokens that this process can verify.
	if u, err := authenticate(a, request(t, "s3cret", nil)); err != nil || u.GetName() != "alice" || calls.Load() != 2 {
		t.Errorf("user %v, error %v, %d calls; want alice and 2 calls", u, err, calls.Load())
	}
}

// TestBootstrapTokens checks that a bootstrap token is accepted if its flag is set and its secret has not expired.
func TestBootstrapTokens(t *testing.T) {
	secret := &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceSystem, Name: "bootstrap-token-abcdef"},
		Type:       corev1.SecretTypeBootstrapToken,
		Data: map[string][]byte{
			"token-id": []byte("abcdef"), "token-secret": []byte("0123456789abcdef"), "usage-bootstrap-authentication": []byte("true"),
			"auth-extra-groups": []byte("system:bootstrappers:workers"),
		},
	}
	expired := secret.DeepCopy()
	expired.Name, expired.Data["token-id"] = "bootstrap-token-fedcba", []byte("fedcba")
	expired.Data["expiration"] = []byte(time.Now().Add(-time.Hour).Format(time.RFC3339))
	c := config(t, newAuthority(t))
	c.Client = fake.NewClientset(secret, expired)
	if _, err := authenticate(load(t, c), request(t, "abcdef.0123456789abcdef", nil)); err == nil {
		t.Error("accepted without the flag")
	}
	c.Authentication.BootstrapToken.Enable = true
	a := load(t, c)
	u, err := authenticate(a, request(t, "abcdef.0123456789abcdef", nil))
	if err != nil {
		t.Fatal(err)
	}
	if err := checkUser(u, "system:bootstrap:abcdef", "system:bootstrappers", "system:bootstrappers:workers"); err != nil {
		t.Error(err)
	}
	for _, token := range []string{"abcdef.0123456789abcdee", "fedcba.0123456789abcdef", "aaaaaa.0123456789abcdef"} {
		if u, err := authenticate(a, request(t, token, nil)); err == nil {
			t.Errorf("token %s was accepted as %v", token, u)
		}
	}
}

// TestOnlyFrontProxiesNameUsers checks that only a client with a certificate of the proxies' CA may name the user in
// headers.
func TestOnlyFrontProxiesNameUsers(t *testing.T) {
	users, proxies := newAuthority(t), newAuthority(t)
	c := config(t, users)
	o := c.Authentication.RequestHeader
	o.ClientCAFile, o.AllowedNames = write(t, "proxy-ca.crt", proxies.PEM()), []string{"proxy"}
	o.UsernameHeaders, o.UIDHeaders, o.GroupHeaders, o.ExtraHeaderPrefixes = []string{"X-Remote-User", "X-Who"}, []string{"X-Remote-Uid"}, []string{"X-Remote-Group"}, []string{"X-Remote-Extra-"}
	a := load(t, c)
	if a.RequestHeader == nil || a.ClientCA == nil {
		t.Fatal("Auth has no configuration of front proxies")
	}
	headers := map[string]string{"X-Remote-User": "fred", "X-Remote-Uid": "f1", "X-Remote-Group": "fans", "X-Remote-Extra-Scope": "all"}
	authenticateAs := func(cert string, headers map[string]string) (user.Info, error) {
		req := request(t, "", clientCert(t, map[string]*testcert.Authority{"proxy": proxies, "impostor": proxies, "user": users}[cert], cert))
		for name, value := range headers {
			req.Header.Set(name, value)
		}
		return authenticate(a, req)
	}
	u, err := authenticateAs("proxy", headers)
	if err != nil {
		t.Fatal(err)
	}
	if err := checkUser(u, "fred", "fans"); err != nil || u.GetUID() != "f1" || u.GetExtra()["scope"][0] != "all" {
		t.Errorf("user %+v: %v", u, err)
	}
	if u, err := authenticateAs("proxy", map[string]string{"X-Who": "wanda"}); err != nil || u.GetName() != "wanda" {
		t.Errorf("with the second user header: user %v, error %v", u, err)
	}
	if u, err := authenticateAs("impostor", headers); err == nil {
		t.Errorf("a proxy with another name was accepted as %v", u)
	}
	if u, err := authenticateAs("user", headers); err != nil || u.GetName() != "user" {
		t.Errorf("a user with the headers was accepted as %v, error %v", u, err)
	}
}

// TestAnonymousByPath checks that a configuration may allow anonymous requests for some paths only.
func TestAnonymousByPath(t *testing.T) {
	c := config(t, newAuthority(t))
	c.Authentication.AuthenticationConfigFile = write(t, "authentication.yaml", `apiVersion: apiserver.config.k8s.io/v1
kind: AuthenticationConfiguration
anonymous:
  enabled: true
  conditions:
  - path: /livez
`)
	a := load(t, c)
	for path, want := range map[string]bool{"/livez": true, "/api": false} {
		req := request(t, "", nil)
		req.URL.Path = path
		if u, err := authenticate(a, req); (err == nil) != want {
			t.Errorf("%s: user %v, error %v", path, u, err)
		}
	}
	if !a.AnonymousByPath {
		t.Error("the result may be cached per connection")
	}
}

// TestChangedCAsChangeTheGeneration checks that Generation changes with a CA file, so that cached authentications are
// discarded.
func TestChangedCAsChangeTheGeneration(t *testing.T) {
	c := config(t, newAuthority(t))
	a := load(t, c)
	before := a.Generation()
	replace(t, c.Authentication.ClientCert.ClientCA, newAuthority(t).PEM())
	eventually(t, func() error {
		if a.Generation() == before {
			return fmt.Errorf("generation is still %d", before)
		}
		return nil
	})
}

// signerKeys are the keys of an external signer.
type signerKeys struct {
	serviceaccount.PublicKeysGetter
	listeners []serviceaccount.Listener
}

func (k *signerKeys) AddListener(l serviceaccount.Listener) { k.listeners = append(k.listeners, l) }

// TestChangedKeysChangeTheGeneration checks that Generation changes with the keys of an external signer, so that watches
// by its tokens are authenticated again.
func TestChangedKeysChangeTheGeneration(t *testing.T) {
	c := config(t, newAuthority(t))
	keys, err := serviceaccount.StaticPublicKeysGetter([]any{newKey(t).Public()})
	if err != nil {
		t.Fatal(err)
	}
	signer := &signerKeys{PublicKeysGetter: keys}
	c.Signing = auth.Signing{}
	c.Authentication.ServiceAccounts.KeyFiles, c.Authentication.ServiceAccounts.ExternalPublicKeysGetter = nil, signer
	a := load(t, c)
	before := a.Generation()
	for _, l := range signer.listeners {
		l.Enqueue()
	}
	if a.Generation() == before {
		t.Error("the generation did not change")
	}
}

// TestInvalidAuthenticationConfigs checks that Load returns upstream's error for options that upstream rejects.
func TestInvalidAuthenticationConfigs(t *testing.T) {
	ca := newAuthority(t)
	for _, test := range []struct {
		name   string
		change func(*auth.Config)
		want   string
	}{
		{"OIDC flags incomplete", func(c *auth.Config) { c.Authentication.OIDC.FlagsSet = true }, "oidc-issuer-url and oidc-client-id must be specified together"},
		{"OIDC twice", func(c *auth.Config) {
			c.Authentication.OIDC.FlagsSet, c.Authentication.AuthenticationConfigFile = true, "x"
		}, "mutually exclusive"},
		{"OIDC without TLS", func(c *auth.Config) {
			c.Authentication.OIDC.IssuerURL, c.Authentication.OIDC.ClientID = "http://x", "y"
		}, "URL scheme must be https"},
		{"config missing", func(c *auth.Config) { c.Authentication.AuthenticationConfigFile = "missing" }, "failed to load authentication configuration"},
		{"config unknown", func(c *auth.Config) {
			c.Authentication.AuthenticationConfigFile = write(t, "c", `{"kind":"AuthenticationConfiguration","apiVersion":"apiserver.config.k8s.io/v1","nosuch":1}`)
		}, `unknown field "nosuch"`},
		{"webhook missing", func(c *auth.Config) { c.Authentication.WebHook.ConfigFile = "missing" }, "no such file"},
		{"proxies with any name", func(c *auth.Config) {
			c.Authentication.RequestHeader.ClientCAFile = c.Authentication.ClientCert.ClientCA
		}, "--requestheader-allowed-names must be specified"},
		{"JWKS without TLS", func(c *auth.Config) { c.Authentication.ServiceAccounts.JWKSURI = "http://x" }, "service-account-jwks-uri requires https scheme"},
		{"two signers", func(c *auth.Config) { c.Signing.Endpoint = "/x" }, "mutually exclusive"},
	} {
		t.Run(test.name, func(t *testing.T) {
			c := config(t, ca)
			test.change(&c)
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			if _, err := auth.Load(ctx, c); err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("got error %v, want %q in it", err, test.want)
			}
		})
	}
}

// TestTokensOutliveOutages checks that a token is rejected if an object that it is bound to is gone. It is not rejected
// if the object cannot be read at the moment, although upstream's authenticator rejects it then.
func TestTokensOutliveOutages(t *testing.T) {
	c := config(t, newAuthority(t))
	c.Authentication.BootstrapToken.Enable = true
	var failing atomic.Pointer[error]
	client := fake.NewClientset(robot(), pod())
	client.PrependReactor("get", "*", func(k8stesting.Action) (bool, runtime.Object, error) {
		if err := failing.Load(); err != nil {
			return true, nil, *err
		}
		return false, nil, nil
	})
	c.Client = client
	a := load(t, c)
	again := a.Revocation().Authenticator
	busy := error(apierrors.NewTooManyRequests("the cache is loading", 1))
	gone := error(apierrors.NewNotFound(corev1.Resource("pods"), "arm"))
	for name, token := range map[string]string{
		"service account": token(t, a, "", issuer, 600), "pod": token(t, a, "p1", issuer, 600), "bootstrap token": "abcdef.0123456789abcdef",
	} {
		for _, test := range []struct {
			why   *error
			known bool
		}{{&busy, false}, {&gone, true}} {
			failing.Store(test.why)
			if resp, ok, err := again.AuthenticateRequest(request(t, token, nil)); ok || (err == nil) != test.known {
				t.Errorf("reauthentication of %s while lookups fail with %v: %v, error %v", name, *test.why, resp, err)
			}
			if _, ok, err := a.Authenticator.AuthenticateRequest(request(t, token, nil)); ok || errors.Is(err, auth.ErrLookup) == test.known {
				t.Errorf("request with %s while lookups fail with %v: error %v", name, *test.why, err)
			}
		}
	}
	failing.Store(nil)
	if _, ok, err := again.AuthenticateRequest(request(t, token(t, a, "p1", issuer, 600), nil)); !ok || err != nil {
		t.Errorf("after the outage: accepted %v, error %v", ok, err)
	}
}

// TestLocalAuthenticatorsCallNoWebhook checks that the local authenticator and authorizer call no webhook, and return
// ErrRemote where one is needed.
func TestLocalAuthenticatorsCallNoWebhook(t *testing.T) {
	var calls atomic.Int32
	url, ca := serveTLS(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		calls.Add(1)
		http.Error(w, "down", http.StatusInternalServerError)
	}))
	authority := newAuthority(t)
	c := rbacConfig(t, []string{"RBAC", "Webhook"})
	full := config(t, authority)
	c.Authentication, c.Signing, c.Client = full.Authentication, full.Signing, full.Client
	c.Authentication.WebHook.ConfigFile, c.Authentication.WebHook.Version = kubeconfig(t, url, ca), "v1"
	c.Authorization.WebhookConfigFile, c.Authorization.WebhookVersion = kubeconfig(t, url, ca), "v1"
	a := load(t, c)
	r := a.Revocation()
	for name, req := range map[string]*http.Request{
		"service account": request(t, token(t, a, "", issuer, 600), nil),
		"token file":      request(t, "s3cret", nil),
		"certificate":     request(t, "", clientCert(t, authority, "bob")),
	} {
		if _, ok, err := r.LocalAuthenticator.AuthenticateRequest(req); !ok || err != nil {
			t.Errorf("%s: accepted %v, error %v", name, ok, err)
		}
	}
	if _, ok, err := r.LocalAuthenticator.AuthenticateRequest(request(t, "opaque", nil)); ok || !errors.Is(err, auth.ErrRemote) {
		t.Errorf("an unknown token: accepted %v, error %v, want ErrRemote", ok, err)
	}
	if decision, _, err := r.LocalAuthorizer.Authorize(t.Context(), pods("reader")); decision != authorizer.DecisionAllow || err != nil {
		t.Errorf("a request that RBAC allows: %v, error %v", decision, err)
	}
	if decision, _, err := r.LocalAuthorizer.Authorize(t.Context(), pods("wendy")); decision == authorizer.DecisionAllow || !errors.Is(err, auth.ErrRemote) {
		t.Errorf("a request without a role: %v, error %v, want ErrRemote", decision, err)
	}
	if n := calls.Load(); n != 0 {
		t.Errorf("%d calls of webhooks, want none", n)
	}
}

// TestReviewsThatCannotBeDecoded checks that if a token webhook responds with something else than a TokenReview, such as
// an error page of a proxy, the token is not rejected. So watches continue.
func TestReviewsThatCannotBeDecoded(t *testing.T) {
	type response struct {
		code              int
		contentType, body string
	}
	var says atomic.Pointer[response]
	url, ca := serveTLS(t, http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		a := says.Load()
		w.Header().Set("Content-Type", a.contentType)
		if a.contentType == "cut" {
			w.Header().Set("Content-Type", "application/json")
			w.Header().Set("Content-Length", strconv.Itoa(len(a.body)+1))
		}
		w.WriteHeader(a.code)
		_, _ = io.WriteString(w, a.body)
	}))
	c := config(t, newAuthority(t))
	c.Authentication.WebHook.ConfigFile, c.Authentication.WebHook.Version = kubeconfig(t, url, ca), "v1"
	a := load(t, c)
	const review = `{"apiVersion":"authentication.k8s.io/v1","kind":"TokenReview","status":{"authenticated":false,"error":"0-length response"}}`
	for text, undecided := range map[response]bool{
		{200, "application/json", review}:                                     false,
		{200, "application/json", `{"kind":"TokenReview"}`}:                   false,
		{200, "application/json", "{junk"}:                                    true,
		{200, "text/html", "<html>maintenance</html>"}:                        true,
		{200, "application/json", `{"apiVersion":"v1","kind":"Pod"}`}:         true,
		{200, "application/json", `{"apiVersion":"v2","kind":"TokenReview"}`}: true,
		{200, "application/json", `[]`}:                                       true,
		{200, "application/json", strings.Replace(review, "false", "1", 1)}:   true,
		{200, "application/vnd.kubernetes.protobuf", "k8s"}:                   true,
		{200, "application/vnd.kubernetes.protobuf", "k8s\x00junk"}:           true,
		{200, "cut", review}:                                                  true,
		{200, "", ""}:                                                         true,
		{204, "", ""}:                                                         true,
		{200, "application/json", strings.Replace(review, "0-length response", "no kind of access", 1)}: false,
		{503, "", ""}: true,
	} {
		says.Store(&text)
		_, ok, err := a.Revocation().Authenticator.AuthenticateRequest(request(t, fmt.Sprintf("token-%p", &text), nil))
		if ok || (err != nil) != undecided {
			t.Errorf("%+v: accepted %v, error %v; want an error: %v", text, ok, err, undecided)
		}
	}
}
