package auth_test

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/emicklei/go-restful/v3"
	"go.uber.org/goleak"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/util/keyutil"
	"k8s.io/kubernetes/pkg/apis/core"
	"k8s.io/kubernetes/pkg/kubeapiserver/options"
	"k8s.io/kubernetes/pkg/serviceaccount"

	"github.com/larder-io/larder/internal/auth"
	"github.com/larder-io/larder/internal/proctest"
	"github.com/larder-io/larder/internal/proctest/testcert"
)

// A goroutine of upstream's updater closes replaced issuers after half a minute. Nothing can end it earlier.
func TestMain(m *testing.M) {
	proctest.Main(m, goleak.IgnoreAnyFunction("k8s.io/kubernetes/pkg/kubeapiserver/authenticator.(*authenticationConfigUpdater).updateAuthenticationConfig.func2"))
}

const issuer = "https://issuer.test"

// newAuthority makes a CA that signs client certificates.
func newAuthority(t *testing.T) *testcert.Authority {
	t.Helper()
	return testcert.New(t, "ca")
}

// clientCert returns a client certificate signed by ca.
func clientCert(t *testing.T, ca *testcert.Authority, name string, groups ...string) *x509.Certificate {
	t.Helper()
	return testcert.Of(t, ca.Sign(t, name, groups, nil)).Cert
}

func newKey(t *testing.T) *ecdsa.PrivateKey {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return key
}

func certPEM(cert *x509.Certificate) string {
	return string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: cert.Raw}))
}

func write(t *testing.T, name, text string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

// config returns a configuration that accepts every kind of credential. The cluster has the service account
// default/robot.
func config(t *testing.T, ca *testcert.Authority) auth.Config {
	t.Helper()
	keyPEM, err := keyutil.MarshalPrivateKeyToPEM(newKey(t))
	if err != nil {
		t.Fatal(err)
	}
	key := write(t, "sa.key", string(keyPEM))
	client := fake.NewClientset(robot(), pod())
	authentication := options.NewBuiltInAuthenticationOptions().WithAll()
	authentication.TokenFile.TokenFile = write(t, "tokens.csv", "s3cret,alice,u1,\"dev,ops\"\n")
	authentication.ClientCert.ClientCA = write(t, "ca.crt", ca.PEM())
	authentication.ServiceAccounts.KeyFiles = []string{key}
	authentication.ServiceAccounts.Issuers = []string{issuer}
	return auth.Config{
		Authentication: authentication, Authorization: authorization(auth.ModeRBAC),
		Signing: auth.Signing{KeyFile: key},
		Client:  client, Informers: informers.NewSharedInformerFactory(client, 0),
	}
}

func authorization(modes ...string) *options.BuiltInAuthorizationOptions {
	o := options.NewBuiltInAuthorizationOptions()
	o.Modes = modes
	return o
}

func robot() *corev1.ServiceAccount {
	return &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "robot", UID: "r1"}}
}

func pod() *corev1.Pod {
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "arm", UID: "p1"}}
}

func load(t *testing.T, c auth.Config) *auth.Auth {
	t.Helper()
	a, err := auth.Load(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- a.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return a
}

// token issues a token for the robot, bound to a pod if podUID is set.
func token(t *testing.T, a *auth.Auth, podUID string, audience string, life int64) string {
	t.Helper()
	var bound *core.Pod
	if podUID != "" {
		bound = &core.Pod{ObjectMeta: pod().ObjectMeta}
		bound.UID = "p1"
		if podUID != "p1" {
			bound.UID = "gone"
		}
	}
	claims, private, err := serviceaccount.Claims(core.ServiceAccount{ObjectMeta: robot().ObjectMeta}, bound, nil, nil, life, 0, []string{audience})
	if err != nil {
		t.Fatal(err)
	}
	signed, err := a.Issuer.Tokens.GenerateToken(t.Context(), claims, private)
	if err != nil {
		t.Fatal(err)
	}
	return signed
}

// TestAuthenticate checks the user and groups of each kind of credential, and which credentials are rejected.
func TestAuthenticate(t *testing.T) {
	ca, stranger := newAuthority(t), newAuthority(t)
	a := load(t, config(t, ca))
	for _, test := range []struct {
		name  string
		token string
		cert  *x509.Certificate
		want  string // user name, "" if the credentials are rejected
		group string
	}{
		{"no credentials are anonymous", "", nil, user.Anonymous, user.AllUnauthenticated},
		{"token file", "s3cret", nil, "alice", "ops"},
		{"token file users are authenticated", "s3cret", nil, "alice", user.AllAuthenticated},
		{"unknown token", "guess", nil, "", ""},
		{"unknown token and a valid certificate", "guess", clientCert(t, ca, "carol"), "carol", user.AllAuthenticated},
		{"client certificate", "", clientCert(t, ca, "bob", "crew"), "bob", "crew"},
		{"client certificate of an unknown CA", "", clientCert(t, stranger, "mallory", user.SystemPrivilegedGroup), "", ""},
		{"service account", token(t, a, "", issuer, 600), nil, "system:serviceaccount:default:robot", "system:serviceaccounts:default"},
		{"service account of an existing pod", token(t, a, "p1", issuer, 600), nil, "system:serviceaccount:default:robot", ""},
		{"service account of a replaced pod", token(t, a, "p0", issuer, 600), nil, "", ""},
		{"service account for another audience", token(t, a, "", "https://other.test", 600), nil, "", ""},
		{"expired service account", token(t, a, "", issuer, -600), nil, "", ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			req := request(t, test.token, test.cert)
			response, ok, err := a.Authenticator.AuthenticateRequest(req)
			if test.want == "" {
				if ok || err == nil {
					t.Fatalf("accepted as %v, error %v", response, err)
				}
				return
			}
			if !ok || err != nil {
				t.Fatalf("rejected: %v", err)
			}
			if got := response.User.GetName(); got != test.want {
				t.Errorf("user %q, want %q", got, test.want)
			}
			if test.group != "" && !slices.Contains(response.User.GetGroups(), test.group) {
				t.Errorf("groups %q lack %q", response.User.GetGroups(), test.group)
			}
		})
	}
}

func request(t *testing.T, token string, cert *x509.Certificate) *http.Request {
	t.Helper()
	req := httptest.NewRequest(http.MethodGet, "https://host/api", nil)
	if token != "" {
		req.Header.Set("Authorization", "Bearer "+token)
	}
	req.TLS = &tls.ConnectionState{}
	if cert != nil {
		req.TLS.PeerCertificates = []*x509.Certificate{cert}
	}
	return req
}

// TestNoAnonymousUnderAlwaysAllow checks that anonymous requests are rejected under AlwaysAllow, which would allow them
// everything.
func TestNoAnonymousUnderAlwaysAllow(t *testing.T) {
	c := config(t, newAuthority(t))
	c.Authorization.Modes = []string{auth.ModeAlwaysAllow}
	a := load(t, c)
	if response, ok, _ := a.Authenticator.AuthenticateRequest(request(t, "", nil)); ok {
		t.Errorf("a request without credentials was accepted as %v", response.User)
	}
	if _, ok, err := a.Authenticator.AuthenticateRequest(request(t, "s3cret", nil)); !ok {
		t.Errorf("a valid token was rejected: %v", err)
	}
}

// TestServersWithoutAuthenticatorsRejectAll checks that a server that accepts no credential rejects every request.
func TestServersWithoutAuthenticatorsRejectAll(t *testing.T) {
	a := load(t, auth.Config{Authentication: new(options.BuiltInAuthenticationOptions), Authorization: authorization(auth.ModeAlwaysAllow)})
	for _, token := range []string{"", "x"} {
		if _, ok, _ := a.Authenticator.AuthenticateRequest(request(t, token, nil)); ok {
			t.Errorf("token %q was accepted", token)
		}
	}
	if a.Issuer.Tokens != nil {
		t.Error("a server without a signing key issues tokens")
	}
}

// TestAuthorize checks the decisions of the authorization modes.
func TestAuthorize(t *testing.T) {
	resource := func(name string, groups ...string) authorizer.AttributesRecord {
		return authorizer.AttributesRecord{
			User: &user.DefaultInfo{Name: name, Groups: groups}, Verb: "get",
			Namespace: "default", APIVersion: "v1", Resource: "pods", ResourceRequest: true,
		}
	}
	path := func(p string) authorizer.AttributesRecord {
		return authorizer.AttributesRecord{User: &user.DefaultInfo{Name: user.Anonymous}, Verb: "get", Path: p}
	}
	for _, test := range []struct {
		name  string
		modes []string
		attrs authorizer.AttributesRecord
		allow bool
	}{
		{"AlwaysAllow", []string{auth.ModeAlwaysAllow}, resource("anyone"), true},
		{"RBAC denies users without a role", []string{auth.ModeRBAC}, resource("anyone"), false},
		{"RBAC allows users with a role", []string{auth.ModeRBAC}, resource("reader"), true},
		{"system:masters need no role", []string{auth.ModeRBAC}, resource("root", user.SystemPrivilegedGroup), true},
		{"health needs a role", []string{auth.ModeRBAC}, path("/readyz"), false},
		{"metrics needs a role", []string{auth.ModeRBAC}, path("/metrics"), false},
		{"the second mode is called", []string{auth.ModeRBAC, auth.ModeAlwaysAllow}, resource("anyone"), true},
	} {
		t.Run(test.name, func(t *testing.T) {
			a := load(t, rbacConfig(t, test.modes))
			decision, reason, err := a.Authorizer.Authorize(t.Context(), test.attrs)
			if err != nil && test.allow {
				t.Fatal(err)
			}
			if got := decision == authorizer.DecisionAllow; got != test.allow {
				t.Errorf("allowed %v, want %v (reason: %s)", got, test.allow, reason)
			}
		})
	}
}

// rbacConfig has a cluster in which the user reader may read pods in the namespace default. Its informers have synced.
func rbacConfig(t *testing.T, modes []string) auth.Config {
	t.Helper()
	client := fake.NewClientset(
		&rbacv1.Role{
			ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "read"},
			Rules:      []rbacv1.PolicyRule{{APIGroups: []string{""}, Resources: []string{"pods"}, Verbs: []string{"get"}}},
		},
		&rbacv1.RoleBinding{
			ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "read"},
			RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: "read"},
			Subjects:   []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: "User", Name: "reader"}},
		},
	)
	factory := informers.NewSharedInformerFactory(client, 0)
	rbac := factory.Rbac().V1()
	rbac.Roles().Informer()
	rbac.RoleBindings().Informer()
	rbac.ClusterRoles().Informer()
	rbac.ClusterRoleBindings().Informer()
	ctx, cancel := context.WithCancel(t.Context())
	factory.Start(ctx.Done())
	t.Cleanup(func() { cancel(); factory.Shutdown() })
	factory.WaitForCacheSync(ctx.Done())
	return auth.Config{Authentication: new(options.BuiltInAuthenticationOptions), Authorization: authorization(modes...), Client: client, Informers: factory}
}

// TestInvalidConfigs checks that Load returns upstream's error for invalid options and files.
func TestInvalidConfigs(t *testing.T) {
	ca := newAuthority(t)
	for _, test := range []struct {
		name   string
		change func(*auth.Config)
		want   string
	}{
		{"unknown mode", func(c *auth.Config) { c.Authorization.Modes = []string{"ABBA"} }, `authorization-mode "ABBA" is not a valid mode`},
		{"mode twice", func(c *auth.Config) { c.Authorization.Modes = []string{auth.ModeRBAC, auth.ModeRBAC} }, "specified more than once"},
		{"token file missing", func(c *auth.Config) { c.Authentication.TokenFile.TokenFile += "x" }, "no such file"},
		{"token file malformed", func(c *auth.Config) { c.Authentication.TokenFile.TokenFile = write(t, "t", "one,two\n") }, "at least 3 columns"},
		{"client CA missing", func(c *auth.Config) { c.Authentication.ClientCert.ClientCA += "x" }, "client CA"},
		{"client CA empty", func(c *auth.Config) { c.Authentication.ClientCert.ClientCA = write(t, "ca", "") }, "client CA"},
		{"key file empty", func(c *auth.Config) { c.Authentication.ServiceAccounts.KeyFiles = []string{write(t, "k", "")} }, "error reading public key file"},
		{"signing key missing", func(c *auth.Config) { c.Signing.KeyFile += "x" }, "failed to parse service-account-issuer-key-file"},
		{"no issuer", func(c *auth.Config) { c.Authentication.ServiceAccounts.Issuers = nil }, "service-account-issuer is a required flag"},
		{"issuer twice", func(c *auth.Config) { c.Authentication.ServiceAccounts.Issuers = []string{"a", "a"} }, "already specified"},
		{"issuer is no URL", func(c *auth.Config) { c.Authentication.ServiceAccounts.Issuers = []string{"a:\x00"} }, "not a valid URL"},
		{"tokens too short", func(c *auth.Config) { c.Authentication.ServiceAccounts.MaxExpiration = time.Minute }, "between 1 hour"},
	} {
		t.Run(test.name, func(t *testing.T) {
			c := config(t, ca)
			test.change(&c)
			_, err := auth.Load(t.Context(), c)
			if err == nil || !strings.Contains(err.Error(), test.want) {
				t.Fatalf("got error %v, want %q in it", err, test.want)
			}
			if !strings.HasPrefix(err.Error(), "auth: ") {
				t.Errorf("error %q does not name the package", err)
			}
		})
	}
}

// TestOpenID checks that the published metadata and keys let other programs verify the tokens of this server.
func TestOpenID(t *testing.T) {
	c := config(t, newAuthority(t))
	c.ExternalAddress = "192.0.2.1:6443"
	served := restful.NewContainer()
	load(t, c).OpenID(served)
	for path, want := range map[string]string{
		"/.well-known/openid-configuration": `"jwks_uri":"https://192.0.2.1:6443/openid/v1/jwks"`,
		"/openid/v1/jwks":                   `"kty":"EC"`,
	} {
		if !slices.Contains(auth.OpenIDPaths(), path) || !slices.Contains(auth.OpenIDPaths(), path+"/") {
			t.Errorf("%s is not among the paths, or a path below it is not", path)
		}
		w := httptest.NewRecorder()
		served.ServeHTTP(w, httptest.NewRequest(http.MethodGet, path, nil))
		if w.Code != http.StatusOK || !strings.Contains(w.Body.String(), want) {
			t.Errorf("%s: got %d %s, want 200 and %q", path, w.Code, w.Body, want)
		}
	}
	c.Authentication.ServiceAccounts.Issuers = []string{"plain-name"}
	if a := load(t, c); a.OpenID != nil {
		t.Error("an issuer that is no URL has OpenID metadata")
	}
}

// TestClientCAReload checks that when the CA file is replaced, certificates of the new CA are accepted and those of the
// old one are rejected.
func TestClientCAReload(t *testing.T) {
	before, after := newAuthority(t), newAuthority(t)
	c := config(t, before)
	a := load(t, c)
	accepts := func(ca *testcert.Authority) bool {
		_, ok, _ := a.Authenticator.AuthenticateRequest(request(t, "", clientCert(t, ca, "bob")))
		return ok
	}
	if !accepts(before) || accepts(after) {
		t.Fatal("before the change, the new CA is accepted or the old one is not")
	}
	replace(t, c.Authentication.ClientCert.ClientCA, after.PEM())
	eventually(t, func() error {
		if !accepts(after) {
			return errors.New("the new CA is not accepted")
		}
		return nil
	})
	if accepts(before) {
		t.Error("the old CA is still accepted")
	}
}

func replace(t *testing.T, file, text string) {
	t.Helper()
	if err := os.WriteFile(file+".new", []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(file+".new", file); err != nil {
		t.Fatal(err)
	}
}
