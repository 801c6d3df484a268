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
		return nil, fmt.Errorf("nobody")
	}
	return resp.User, nil
}

// checkUser returns an error unless u has that name and those groups.
func checkUser(u user.Info, name string, groups ...string) error {
	if u.GetName() != name {
		return fmt.Errorf("is %q, want %q", u.GetName(), name)
	}
	for _, group := range append(groups, user.AllAuthenticated) {
		if !slices.Contains(u.GetGroups(), group) {
			return fmt.Errorf("groups %q lack %q", u.GetGroups(), group)
		}
	}
	return nil
}

// serveTLS serves h and returns its URL and a file with its CA.
func serveTLS(t *testing.T, h http.Handler) (url, ca string) {
	t.Helper()
	s := httptest.NewTLSServer(h)
	t.Cleanup(s.Close)
	return s.URL, write(t, "webhook-ca.crt", certPEM(s.Certificate()))
}

// kubeconfig names a webhook.
func kubeconfig(t *testing.T, url, ca string) string {
	t.Helper()
	return write(t, "webhook.kubeconfig", fmt.Sprintf(`{"apiVersion":"v1","kind":"Config","current-context":"c",
"clusters":[{"name":"c","cluster":{"server":%q,"certificate-authority":%q}}],
"contexts":[{"name":"c","context":{"cluster":"c","user":"u"}}],"users":[{"name":"u","user":{}}]}`, url, ca))
}

// openIDIssuer is an OpenID provider: another server's service accounts.
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

// token issues a token. A new value of life gives a token that no cache has seen.
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
			t.Errorf("a bad token is %v", u)
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

// TestAuthenticationConfigReload checks that a valid change of the file is applied, an invalid one is not.
func TestAuthenticationConfigReload(t *testing.T) {
	if testing.Short() {
		t.Skip("waits ten seconds while upstream reads the file again")
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
			life++ // or it would be remembered
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
	expect("two:") // the decision about anonymous requests stays
}

// TestTokenWebhooksAreAskedOnceInAWhile checks that a webhook authenticates tokens, and its responses are cached.
func TestTokenWebhooksAreAskedOnceInAWhile(t *testing.T) {
	var asked atomic.Int32
	url, ca := serveTLS(t, http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		var review authenticationv1.TokenReview
		if err := json.NewDecoder(req.Body).Decode(&review); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		asked.Add(1)
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
			t.Errorf("%+v: %v", u, err)
		}
	}
	if n := asked.Load(); n != 1 {
		t.Errorf("the webhook was asked %d times", n)
	}
	if u, err := authenticate(a, request(t, "unknown", nil)); err == nil {
		t.Errorf("an unknown token is %v", u)
	}
	// The webhook is not called for tokens that this process can verify.
	if u, err := authenticate(a, request(t, "s3cret", nil)); err != nil || u.GetName() != "alice" || asked.Load() != 2 {
		t.Errorf("%v, %v, asked %d times", u, err, asked.Load())
	}
}

// TestBootstrapTokensLetNodesIn checks that a bootstrap token is accepted if its flag is set and its secret has not
// expired.
func TestBootstrapTokensLetNodesIn(t *testing.T) {
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
			t.Errorf("%s is %v", token, u)
		}
	}
}

// TestOnlyFrontProxiesNameUsers checks that only a client with a certificate of the proxies' CA may set the user in
// headers.
func TestOnlyFrontProxiesNameUsers(t *testing.T) {
	users, proxies := newAuthority(t), newAuthority(t)
	c := config(t, users)
	o := c.Authentication.RequestHeader
	o.ClientCAFile, o.AllowedNames = write(t, "proxy-ca.crt", proxies.PEM()), []string{"proxy"}
	o.UsernameHeaders, o.UIDHeaders, o.GroupHeaders, o.ExtraHeaderPrefixes = []string{"X-Remote-User", "X-Who"}, []string{"X-Remote-Uid"}, []string{"X-Remote-Group"}, []string{"X-Remote-Extra-"}
	a := load(t, c)
	if a.RequestHeader == nil || a.ClientCA == nil {
		t.Fatal("nothing is said of front proxies")
	}
	headers := map[string]string{"X-Remote-User": "fred", "X-Remote-Uid": "f1", "X-Remote-Group": "fans", "X-Remote-Extra-Scope": "all"}
	ask := func(cert string, headers map[string]string) (user.Info, error) {
		req := request(t, "", clientCert(t, map[string]*testcert.Authority{"proxy": proxies, "impostor": proxies, "user": users}[cert], cert))
		for name, value := range headers {
			req.Header.Set(name, value)
		}
		return authenticate(a, req)
	}
	u, err := ask("proxy", headers)
	if err != nil {
		t.Fatal(err)
	}
	if err := checkUser(u, "fred", "fans"); err != nil || u.GetUID() != "f1" || u.GetExtra()["scope"][0] != "all" {
		t.Errorf("%+v: %v", u, err)
	}
	if u, err := ask("proxy", map[string]string{"X-Who": "wanda"}); err != nil || u.GetName() != "wanda" {
		t.Errorf("another header: %v, %v", u, err)
	}
	if u, err := ask("impostor", headers); err == nil {
		t.Errorf("a proxy of another name may ask for %v", u)
	}
	if u, err := ask("user", headers); err != nil || u.GetName() != "user" {
		t.Errorf("a user with the headers is %v, %v", u, err)
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
			t.Errorf("%s: %v, %v", path, u, err)
		}
	}
	if !a.AnonymousByPath {
		t.Error("the front door may remember it")
	}
}

// TestChangedAuthoritiesChangeTheGeneration checks that when a CA file changes, Generation changes, so that cached
// authentications are discarded.
func TestChangedAuthoritiesChangeTheGeneration(t *testing.T) {
	c := config(t, newAuthority(t))
	a := load(t, c)
	before := a.Generation()
	replace(t, c.Authentication.ClientCert.ClientCA, newAuthority(t).PEM())
	eventually(t, func() error {
		if a.Generation() == before {
			return fmt.Errorf("still generation %d", before)
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

// TestChangedKeysChangeTheGeneration checks that when an external signer changes its keys, Generation changes, so
// that watches by its tokens are authenticated again.
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
		t.Error("the generation is the same")
	}
}

// TestBadAuthenticationConfigsAreRefused checks that Load refuses options that upstream refuses, with the same error.
func TestBadAuthenticationConfigsAreRefused(t *testing.T) {
	ca := newAuthority(t)
	for _, test := range []struct {
		name   string
		change func(*auth.Config)
		want   string
	}{
		{"OIDC by half", func(c *auth.Config) { c.Authentication.OIDC.FlagsSet = true }, "oidc-issuer-url and oidc-client-id must be specified together"},
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
		{"proxies of all users", func(c *auth.Config) {
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
				t.Errorf("error %v, want %q in it", err, test.want)
			}
		})
	}
}

// TestTokensOutliveOutages checks that a token is refused if an object that it is bound to is gone. It is not refused
// if the object cannot be read at the moment, although upstream's authenticator refuses it then.
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
	busy := error(apierrors.NewTooManyRequests("the cache loads", 1))
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
				t.Errorf("%s while %v: %v, %v", name, *test.why, resp, err)
			}
			if _, ok, err := a.Authenticator.AuthenticateRequest(request(t, token, nil)); ok || errors.Is(err, auth.ErrLookup) == test.known {
				t.Errorf("%s of a request while %v: %v", name, *test.why, err)
			}
		}
	}
	failing.Store(nil)
	if _, ok, err := again.AuthenticateRequest(request(t, token(t, a, "p1", issuer, 600), nil)); !ok || err != nil {
		t.Errorf("at last: %v, %v", ok, err)
	}
}

// TestLocalAuthenticatorsCallNoWebhook checks that the local authenticator and authorizer call no webhook. They
// return ErrRemote where one is needed.
func TestLocalAuthenticatorsCallNoWebhook(t *testing.T) {
	var asked atomic.Int32
	url, ca := serveTLS(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		asked.Add(1)
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
			t.Errorf("%s: %v, %v", name, ok, err)
		}
	}
	if _, ok, err := r.LocalAuthenticator.AuthenticateRequest(request(t, "opaque", nil)); ok || !errors.Is(err, auth.ErrRemote) {
		t.Errorf("a token that is not known here: %v, %v", ok, err)
	}
	if decision, _, err := r.LocalAuthorizer.Authorize(t.Context(), pods("reader")); decision != authorizer.DecisionAllow || err != nil {
		t.Errorf("what RBAC allows: %v, %v", decision, err)
	}
	if decision, _, err := r.LocalAuthorizer.Authorize(t.Context(), pods("wendy")); decision == authorizer.DecisionAllow || !errors.Is(err, auth.ErrRemote) {
		t.Errorf("what RBAC says nothing of: %v, %v", decision, err)
	}
	if n := asked.Load(); n != 0 {
		t.Errorf("webhooks were asked %d times", n)
	}
}

// TestReviewsThatCannotBeDecoded checks that a response of a token webhook that is no TokenReview is no refusal:
// watches continue. Such a response may be a page of a proxy.
func TestReviewsThatCannotBeDecoded(t *testing.T) {
	type answer struct {
		code              int
		contentType, body string
	}
	var says atomic.Pointer[answer]
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
	for text, undecided := range map[answer]bool{
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
			t.Errorf("%+v: %v, %v", text, ok, err)
		}
	}
}
