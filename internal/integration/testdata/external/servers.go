package external

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/spf13/pflag"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/apiserver/pkg/util/compatibility"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/util/cert"
	"k8s.io/client-go/util/keyutil"
	"k8s.io/component-base/featuregate"
	"k8s.io/kubernetes/cmd/kube-apiserver/app/options"
	"k8s.io/kubernetes/pkg/api/legacyscheme"
	"k8s.io/kubernetes/pkg/controlplane"
	"k8s.io/kubernetes/pkg/serviceaccount"

	"github.com/larder-io/larder/internal/proctest"
)

// startFlags are the flags that start and flagsOf set themselves.
var startFlags = []string{"feature-gates", "token-auth-file", "secure-port", "cert-dir", "bind-address", "advertise-address"}

// flagsOf returns given, and the flags of fs whose values are not their defaults.
func flagsOf(fs *pflag.FlagSet, given []string, gates featuregate.MutableVersionedFeatureGate) []string {
	args := slices.Clone(given)
	fs.VisitAll(func(f *pflag.Flag) {
		v := f.Value.String()
		if f.Changed || slices.Contains(startFlags, f.Name) || v == f.DefValue {
			return
		}
		if s, ok := f.Value.(pflag.SliceValue); ok {
			v = strings.Join(s.GetSlice(), ",")
		} else if strings.HasPrefix(f.Value.Type(), "stringTo") {
			v = strings.Trim(v, "[]")
		}
		each := []string{v}
		if f.Value.Type() == "namedCertKey" {
			each = strings.Split(strings.Trim(v, "[]"), ";")
		}
		for _, v := range each {
			args = append(args, "--"+f.Name+"="+v)
		}
	})
	var list []string
	for name, spec := range gates.GetAll() {
		if on := gates.Enabled(name); on != spec.Default && !spec.LockToDefault && !strings.HasPrefix(string(name), "AllAlpha") && !strings.HasPrefix(string(name), "AllBeta") {
			list = append(list, fmt.Sprintf("%s=%t", name, on))
		}
	}
	if len(list) > 0 {
		slices.Sort(list)
		args = slices.DeleteFunc(args, func(a string) bool { return strings.HasPrefix(a, "--feature-gates") })
		args = append(args, "--feature-gates="+strings.Join(list, ","))
	}
	if v := gates.EmulationVersion(); flagOf(args, "emulated-version") == "" && !v.EqualTo(compatibility.DefaultKubeEffectiveVersionForTest().EmulationVersion()) {
		args = append(args, fmt.Sprintf("--emulated-version=kube=%d.%d", v.Major(), v.Minor()))
	}
	return args
}

// setSigningKey writes a key for service account tokens to dir, where it stays while the server runs: a copy of the
// test's key, or a new one. It makes the options of s name the copy.
func setSigningKey(s *options.ServerRunOptions, dir string) error {
	file := filepath.Join(dir, "sa.key")
	key, err := keyutil.MakeEllipticPrivateKeyPEM()
	if s.ServiceAccountSigningKeyFile != "" {
		key, err = os.ReadFile(s.ServiceAccountSigningKeyFile)
	}
	if err != nil {
		return err
	}
	for i, f := range s.Authentication.ServiceAccounts.KeyFiles {
		if f == s.ServiceAccountSigningKeyFile {
			s.Authentication.ServiceAccounts.KeyFiles[i] = file
		}
	}
	if s.ServiceAccountSigningKeyFile != "" {
		s.ServiceAccountSigningKeyFile = file
	}
	return os.WriteFile(file, key, 0o600)
}

// StartOptions starts a server for cmd/kube-apiserver/app/testing, with the options s and the flags in given and fs.
func StartOptions(t TB, s *options.ServerRunOptions, dir string, fs *pflag.FlagSet, given []string, gates featuregate.MutableVersionedFeatureGate, certs, healthy bool) (*rest.Config, func(), error) {
	s.Authentication.ServiceAccounts.KeyFiles = []string{s.ServiceAccountSigningKeyFile}
	if err := setSigningKey(s, dir); err != nil {
		return nil, nil, err
	}
	// All servers of a test have the same certificate, so that they trust each other.
	fixtures := filepath.Join(os.TempDir(), "integration-fixtures")
	if err := os.MkdirAll(fixtures, 0o700); err != nil {
		return nil, nil, err
	}
	certPEM, keyPEM, err := cert.GenerateSelfSignedCertKeyWithFixtures("127.0.0.1", []net.IP{net.IPv4(10, 0, 0, 1)},
		[]string{"kubernetes.default.svc", "kubernetes.default", "kubernetes", "localhost"}, fixtures)
	if err != nil {
		return nil, nil, err
	}
	certFile := filepath.Join(dir, "apiserver.crt")
	if err := os.WriteFile(certFile, certPEM, 0o600); err != nil {
		return nil, nil, err
	}
	if err := os.WriteFile(filepath.Join(dir, "apiserver.key"), keyPEM, 0o600); err != nil {
		return nil, nil, err
	}
	s.SecureServing.Listener.Close()
	args := flagsOf(fs, given, gates)
	s.SecureServing.ServerCert.CertKey.CertFile = certFile
	if flagOf(args, "emulated-version") != "" && flagOf(given, "emulated-version") == "" && flagOf(args, "runtime-config-emulation-forward-compatible") == "" {
		args = append(args, "--runtime-config-emulation-forward-compatible=true")
	}
	if rh := s.Authentication.RequestHeader; certs {
		args = append(args, "--requestheader-client-ca-file="+rh.ClientCAFile)
		for name, list := range map[string][]string{"allowed-names": rh.AllowedNames, "username-headers": rh.UsernameHeaders,
			"group-headers": rh.GroupHeaders, "extra-headers-prefix": rh.ExtraHeaderPrefixes, "uid-headers": rh.UIDHeaders} {
			if len(list) > 0 {
				args = append(args, "--requestheader-"+name+"="+strings.Join(list, ","))
			}
		}
	}
	cfg, stop, err := start(t, dir, s.SecureServing.BindPort, args, "", healthy)
	if err != nil {
		return nil, nil, err
	}
	if at := &s.GenericServerRunOptions.AdvertiseAddress; *at == nil || at.IsUnspecified() {
		*at = net.IPv4(127, 0, 0, 1)
	}
	if err := awaitNamespaces(context.Background(), cfg, "default"); err != nil {
		stop()
		return nil, nil, err
	}
	return cfg, stop, nil
}

func awaitNamespaces(ctx context.Context, cfg *rest.Config, names ...string) error {
	client, err := kubernetes.NewForConfig(cfg)
	if err != nil {
		return err
	}
	return wait.PollUntilContextTimeout(ctx, 100*time.Millisecond, proctest.Patience, true, func(ctx context.Context) (bool, error) {
		for _, name := range names {
			if _, err := client.CoreV1().Namespaces().Get(ctx, name, metav1.GetOptions{}); err != nil {
				return false, nil
			}
		}
		return true, nil
	})
}

// Start starts a server for test/integration/framework. It turns the settings of modify into flags, and authenticators
// and authorizers into webhooks. It skips tests with other settings.
func Start(ctx context.Context, t testing.TB, modify func(*controlplane.Config), opts *options.ServerRunOptions, dir string, listener net.Listener, gates featuregate.MutableVersionedFeatureGate, tearDown func()) (kubernetes.Interface, *rest.Config, func()) {
	check := func(err error) {
		if err != nil {
			tearDown()
			t.Fatal(err)
		}
	}
	defaults := pflag.NewFlagSet("defaults", pflag.ContinueOnError)
	fresh := options.NewServerRunOptions()
	fresh.GenericServerRunOptions.ComponentGlobalsRegistry = opts.GenericServerRunOptions.ComponentGlobalsRegistry
	for _, f := range fresh.Flags().FlagSets {
		defaults.AddFlagSet(f)
	}
	port := listener.Addr().(*net.TCPAddr).Port
	listener.Close()
	check(setSigningKey(opts, dir))
	m := modified{t: t, dir: dir, stop: tearDown}
	if modify != nil {
		m.apply(ctx, modify, opts)
	}
	flags := pflag.NewFlagSet("test", pflag.ContinueOnError)
	for _, f := range opts.Flags().FlagSets {
		flags.AddFlagSet(f)
	}
	flags.VisitAll(func(f *pflag.Flag) {
		if d := defaults.Lookup(f.Name); d != nil {
			f.DefValue = d.Value.String()
		}
	})
	tokenFile := ""
	if opts.Authentication.TokenFile != nil {
		tokenFile = opts.Authentication.TokenFile.TokenFile
	}
	cfg, stop, err := start(t, dir, port, append(flagsOf(flags, nil, gates), m.args...), tokenFile, true)
	tearDown = m.stop
	check(err)
	check(awaitNamespaces(ctx, cfg, "default", "kube-system"))
	if m.token != "" {
		cfg.BearerToken = m.token
	}
	client, err := kubernetes.NewForConfig(cfg)
	check(err)
	return client, cfg, func() { stop(); m.stop() }
}

// modified is the settings that a ModifyServerConfig changed, as flags.
type modified struct {
	t     testing.TB
	dir   string
	args  []string
	token string // the client's, "" for the one of start
	stop  func()
}

func (m *modified) apply(ctx context.Context, modify func(*controlplane.Config), opts *options.ServerRunOptions) {
	cfg := &controlplane.Config{}
	gen := genericapiserver.NewConfig(legacyscheme.Codecs)
	cfg.ControlPlane.Generic = gen
	gen.LoopbackClientConfig = &rest.Config{BearerToken: "loopback"}
	own := &noAuthz{}
	gen.Authentication.Authenticator, gen.Authorization.Authorizer = noAuthn{}, own
	if key, err := keyutil.PrivateKeyFromFile(filepath.Join(m.dir, "sa.key")); err == nil && len(opts.Authentication.ServiceAccounts.Issuers) > 0 {
		cfg.ControlPlane.Extra.ServiceAccountIssuer, _ = serviceaccount.JWTTokenGenerator(opts.Authentication.ServiceAccounts.Issuers[0], key)
	}
	before := gen.RequestInfoResolver
	modify(cfg)
	if gen.AdmissionControl != nil || gen.AuditBackend != nil || gen.OpenAPIConfig != nil || cfg.Extra.RepairServicesInterval != 0 || gen.RequestInfoResolver != before {
		m.stop()
		Skip(m.t)
	}
	if r := cfg.Extra.EndpointReconcilerType; r != "" {
		m.args = append(m.args, "--endpoint-reconciler-type="+string(r))
	}
	if d := cfg.ControlPlane.Extra.ServiceAccountMaxExpiration; d != 0 {
		m.args = append(m.args, "--service-account-max-token-expiration="+d.String())
	}
	if cfg.ControlPlane.Extra.ExtendExpiration {
		m.args = append(m.args, "--service-account-extend-token-expiration=true")
	}
	if a := gen.Authentication.Authenticator; a != (noAuthn{}) {
		m.authenticate(a)
	}
	if a := gen.Authorization.Authorizer; a != authorizer.Authorizer(own) {
		own.called = 0
		a.Authorize(ctx, &authorizer.AttributesRecord{User: &user.DefaultInfo{Name: "probe"}, Verb: "probe", Resource: "probes", ResourceRequest: true})
		modes := opts.Authorization.Modes
		union := reflect.ValueOf(a)
		switch {
		case own.called == 0: // a does not call the server's own authorizer
			modes = []string{"Webhook"}
		case union.Kind() == reflect.Slice && union.Len() > 0 && union.Index(0).Interface() == any(own):
			modes = append(slices.Clone(modes), "Webhook")
		default:
			modes = append([]string{"Webhook"}, modes...)
		}
		opts.Authorization.Modes = modes
		m.authorize(a)
	}
}
