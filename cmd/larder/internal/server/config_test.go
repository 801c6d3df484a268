package server

import (
	"reflect"
	"strings"
	"testing"

	"github.com/larder-io/larder/internal/auth"
)

// kubeAPIServer sets the minimum that kube-apiserver requires.
func kubeAPIServer(c *Config) {
	*c = DefaultKubeAPIServer()
	c.Etcd.StorageConfig.Transport.ServerList, c.ServiceAccountSigningKeyFile = []string{"x"}, "x"
	c.Authentication.ServiceAccounts.Issuers = []string{"https://x"}
}

func TestMistakesInOptionsAreNamed(t *testing.T) {
	for _, test := range []struct {
		name   string
		change func(*Config)
		want   string // "" when valid
	}{
		{"defaults", func(*Config) {}, ""},
		{"no data directory", func(c *Config) { c.DataDir = "" }, "--data-dir"},
		{"port 0", func(c *Config) { c.SecureServing.BindPort = 0 }, "--secure-port"},
		{"port too large", func(c *Config) { c.SecureServing.BindPort = 65536 }, "--secure-port"},
		{"certificate alone", func(c *Config) { c.SecureServing.ServerCert.CertKey.CertFile = "x" }, "--tls-private-key-file"},
		{"proxy's certificate alone", func(c *Config) { c.ProxyClientCertFile = "x" }, "--proxy-client-key-file"},
		{"no request timeout", func(c *Config) { c.GenericServerRunOptions.RequestTimeout = 0 }, "--request-timeout"},
		{"negative number of connections", func(c *Config) { c.MaxConnections = -1 }, "--max-connections"},
		{"negative share of connections", func(c *Config) { c.MaxConnectionsPerAddress = -1 }, "--max-connections-per-address"},
		{"negative watch timeout", func(c *Config) { c.GenericServerRunOptions.MinRequestTimeout = -1 }, "--min-request-timeout"},
		{"negative delay", func(c *Config) { c.GenericServerRunOptions.ShutdownDelayDuration = -1 }, "--shutdown-delay-duration"},
		{"etcd key alone", func(c *Config) {
			c.Etcd.StorageConfig.Transport.ServerList, c.Etcd.StorageConfig.Transport.KeyFile = []string{"x"}, "x"
		}, "--etcd-certfile"},
		{"etcd TLS without servers", func(c *Config) { c.Etcd.StorageConfig.Transport.TrustedCAFile = "x" }, "--etcd-servers"},
		{"negative compaction", func(c *Config) { c.Etcd.StorageConfig.CompactionInterval = -1 }, "--etcd-compaction-interval"},
		{"negative check interval", func(c *Config) { c.Store.CheckInterval = -1 }, "--consistency-check-interval"},
		{"negative quota", func(c *Config) { c.Store.QuotaBytes = -1 }, "--quota-backend-bytes"},
		{"quota of another's etcd", func(c *Config) { c.Etcd.StorageConfig.Transport.ServerList, c.Store.QuotaBytes = []string{"x"}, 1 }, "--quota-backend-bytes"},
		{"negative defragmentation", func(c *Config) { c.Store.DefragmentInterval = -1 }, "--defrag-interval"},
		{"reload of no file", func(c *Config) { c.Etcd.EncryptionProviderConfigAutomaticReload = true }, "--encryption-provider-config"},
		{"events for ever", func(c *Config) { c.EventTTL = 0 }, ""},
		{"unknown format of the audit log", func(c *Config) { c.Audit.LogOptions.Path, c.Audit.LogOptions.Format = "x", "xml" }, "format"},
		{"unknown mode", func(c *Config) { c.Authorization.Modes = []string{"Maybe"} }, "Maybe"},
		{"RBAC", func(c *Config) { c.Authorization.Modes = []string{auth.ModeRBAC} }, ""},
		{"verifying key alone", func(c *Config) { c.Authentication.ServiceAccounts.KeyFiles = []string{"x"} }, "--service-account-signing-key-file"},
		{"signing key alone", func(c *Config) { c.ServiceAccountSigningKeyFile = "x" }, ""},
		{"dual stack", func(c *Config) { c.ServiceClusterIPRanges = "10.0.0.0/16,fd00::/112" }, ""},
		{"one family twice", func(c *Config) { c.ServiceClusterIPRanges = "10.0.0.0/16,10.9.0.0/16" }, "different IP family"},
		{"three ranges", func(c *Config) { c.ServiceClusterIPRanges = "10.0.0.0/16,fd00::/112,10.9.0.0/16" }, "more than two entries"},
		{"nothing kept", func(c *Config) {
			c.Etcd.StorageConfig.Transport.ServerList, c.DataDir, c.Scratch = []string{"x"}, "", true
		}, ""},
		{"kube-apiserver without a store", func(c *Config) { *c = DefaultKubeAPIServer() }, "--etcd-servers"},
		{"kube-apiserver without a key", func(c *Config) {
			*c = DefaultKubeAPIServer()
			c.Etcd.StorageConfig.Transport.ServerList = []string{"x"}
		}, "are required flags"},
		{"kube-apiserver", kubeAPIServer, ""},
		{"kube-apiserver without a place for certificates", func(c *Config) { kubeAPIServer(c); c.SecureServing.ServerCert.CertDirectory = "" }, "--cert-dir"},
		{"unknown reconciler", func(c *Config) { c.EndpointReconcilerType = "some" }, "--endpoint-reconciler-type"},
		{"empty reconciler", func(c *Config) { c.EndpointReconcilerType = "" }, ""},
		{"ciphers without HTTP/2", func(c *Config) { c.SecureServing.CipherSuites = []string{"TLS_RSA_WITH_AES_128_CBC_SHA"} }, "HTTP/2-required"},
		{"no instances", func(c *Config) { c.MasterCount = 0 }, "--apiserver-count"},
		{"range too small", func(c *Config) { c.ServiceClusterIPRanges = "10.0.0.0/30" }, "at least 8"},
	} {
		t.Run(test.name, func(t *testing.T) {
			c := Default()
			test.change(&c)
			_, err := New(c)
			switch {
			case test.want == "" && err != nil:
				t.Error(err)
			case test.want != "" && (err == nil || !strings.Contains(err.Error(), test.want)):
				t.Errorf("error %v, want %q in it", err, test.want)
			}
		})
	}
}

// TestNewLeavesOptionsAsTheyAre checks that another server can be created from the same options.
func TestNewLeavesOptionsAsTheyAre(t *testing.T) {
	c := Default()
	c.ServiceClusterIPRanges, c.Etcd.StorageConfig.Prefix, c.APIEnablement.RuntimeConfig = "", "registry", map[string]string{"api/all": "true"}
	up, core, etcd, enabled := *c.ServerRunOptions, *c.Options, *c.Etcd, *c.APIEnablement
	if _, err := New(c); err != nil {
		t.Fatal(err)
	}
	for _, is := range [][2]any{{*c.ServerRunOptions, up}, {*c.Options, core}, {*c.Etcd, etcd}, {*c.APIEnablement, enabled}} {
		if !reflect.DeepEqual(is[0], is[1]) {
			t.Errorf("%T has changed", is[0])
		}
	}
}

// TestKubeAPIServersConnectionsHaveNoBound checks that DefaultKubeAPIServer sets no limit of connections.
func TestKubeAPIServersConnectionsHaveNoBound(t *testing.T) {
	if s := DefaultKubeAPIServer(); s.MaxConnections != 0 || s.MaxConnectionsPerAddress != 0 {
		t.Errorf("%d connections, %d of an address", s.MaxConnections, s.MaxConnectionsPerAddress)
	}
}

// TestVersionIsThatOfTheModule checks the reported version. Clients compare it with their own and warn about large
// differences.
func TestVersionIsThatOfTheModule(t *testing.T) {
	v := Version()
	if v.EmulationMinor != "36" || v.MinCompatibilityMinor != "35" {
		t.Errorf("compatible with %+v", v)
	}
	if v.Major != "1" || v.Minor != "36" || !strings.HasPrefix(v.GitVersion, "v1.36.") {
		t.Errorf("version %+v", v)
	}
}
