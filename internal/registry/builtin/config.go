package builtin

import (
	"crypto/tls"
	"maps"
	"net"
	"net/http"
	"time"

	apiextensionsserver "k8s.io/apiextensions-apiserver/pkg/apiserver"
	"k8s.io/apimachinery/pkg/runtime"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	serverstorage "k8s.io/apiserver/pkg/server/storage"
	"k8s.io/client-go/informers"
	restclient "k8s.io/client-go/rest"
	aggregator "k8s.io/kube-aggregator/pkg/apiserver"
	api "k8s.io/kubernetes/pkg/apis/core"
	"k8s.io/kubernetes/pkg/cluster/ports"
	"k8s.io/kubernetes/pkg/controlplane"
	kubeoptions "k8s.io/kubernetes/pkg/kubeapiserver/options"
	kubeletclient "k8s.io/kubernetes/pkg/kubelet/client"
	"k8s.io/kubernetes/pkg/serviceaccount"

	"github.com/larder-io/larder/internal/registry/backend"
)

// Config says what upstream's REST storages are made with. ClientConfig, Informers
// and Authorizer are required; other fields have kube-apiserver's defaults.
type Config struct {
	// Prefix starts every key in the store; "" means "/registry".
	Prefix string

	// ClientConfig reaches this very server, with a transport inside the process.
	// Storages that ask the API (disruption budgets, service addresses) use it,
	// after Run has started.
	ClientConfig *restclient.Config

	// Informers are those that the server shares. New asks for the ones it needs; the
	// caller starts them.
	Informers informers.SharedInformerFactory

	// Authenticator answers token reviews. Authorizer answers access reviews, and storages
	// that check a further right before a write (roles: escalate and bind); RuleResolver
	// lists what a user may do.
	Authenticator authenticator.Request
	Authorizer    authorizer.Authorizer
	RuleResolver  authorizer.RuleResolver
	APIAudiences  authenticator.Audiences

	// APIResources says which versions and resources are served; nil means those
	// that kube-apiserver serves by default.
	APIResources *serverstorage.ResourceConfig

	// EmulationForwardCompatible also serves versions that are newer than the emulated
	// Kubernetes, of resources that it serves; RuntimeConfigEmulationForwardCompatible
	// those that APIResources names.
	EmulationForwardCompatible, RuntimeConfigEmulationForwardCompatible bool

	// ServersOverrides says, as --etcd-servers-overrides does, which resources are kept
	// elsewhere.
	ServersOverrides []string

	// StorageMediaType is what objects are stored in; "" means protobuf.
	StorageMediaType string

	// EventTTL is how long events are kept; 0 means one hour.
	EventTTL time.Duration

	ServiceAccounts ServiceAccounts
	Services        Services

	// Kubelet says how to reach kubelets for logs, exec and the like; the zero
	// value means kube-apiserver's defaults.
	Kubelet kubeletclient.KubeletClientConfig

	// ProxyTransport carries requests to pods and services; nil means a transport
	// that does not verify their certificates.
	ProxyTransport http.RoundTripper
}

// ServiceAccounts says how tokens of service accounts are issued. Without an
// Issuer there is no serviceaccounts/token.
type ServiceAccounts struct {
	Issuer                serviceaccount.TokenGenerator
	MaxExpiration         time.Duration
	ExtendExpiration      bool
	MaxExtendedExpiration time.Duration
}

// Services says what addresses and ports services get. The zero value means
// 10.0.0.0/24 and ports 30000 to 32767.
type Services struct {
	ClusterIPRange          net.IPNet
	SecondaryClusterIPRange net.IPNet
	NodePortRange           utilnet.PortRange
}

// DefaultAPIResources returns what kube-apiserver serves by default, with the groups of the
// servers that it delegates to.
func DefaultAPIResources() *serverstorage.ResourceConfig {
	all := controlplane.DefaultAPIResourceConfigSource()
	for _, other := range []*serverstorage.ResourceConfig{apiextensionsserver.DefaultAPIResourceConfigSource(), aggregator.DefaultAPIResourceConfigSource()} {
		maps.Copy(all.GroupVersionConfigs, other.GroupVersionConfigs)
	}
	return all
}

// SetDefaults fills in what kube-apiserver would.
func (c *Config) SetDefaults() {
	if c.Prefix == "" {
		c.Prefix = kubeoptions.DefaultEtcdPathPrefix
	}
	if c.APIResources == nil {
		c.APIResources = DefaultAPIResources()
	}
	if c.StorageMediaType == "" {
		c.StorageMediaType = runtime.ContentTypeProtobuf
	}
	if c.EventTTL == 0 {
		c.EventTTL = time.Hour
	}
	c.ClientConfig = clientDefaults(c.ClientConfig)
	c.Services.setDefaults()
	kubeletDefaults(&c.Kubelet)
	if c.ProxyTransport == nil {
		c.ProxyTransport = newProxyTransport()
	}
	c.ProxyTransport = backend.Transport(c.ProxyTransport)
}

// clientDefaults copies config and lifts its limits: the client is this process,
// and objects pass fastest as protobuf.
func clientDefaults(config *restclient.Config) *restclient.Config {
	c := restclient.CopyConfig(config)
	if c.QPS == 0 && c.RateLimiter == nil {
		c.QPS = -1
	}
	if c.ContentType == "" {
		c.ContentType = runtime.ContentTypeProtobuf
	}
	return c
}

func (s *Services) setDefaults() {
	if s.ClusterIPRange.IP == nil {
		s.ClusterIPRange = kubeoptions.DefaultServiceIPCIDR
	}
	if s.NodePortRange.Size == 0 {
		s.NodePortRange = kubeoptions.DefaultServiceNodePortRange
	}
}

// kubeletDefaults fills in what kubernetes cmd/kube-apiserver/app/options does.
func kubeletDefaults(c *kubeletclient.KubeletClientConfig) {
	if c.Port == 0 {
		c.Port = ports.KubeletPort
	}
	if c.ReadOnlyPort == 0 {
		c.ReadOnlyPort = ports.KubeletReadOnlyPort
	}
	if c.HTTPTimeout == 0 {
		c.HTTPTimeout = 5 * time.Second
	}
	if c.PreferredAddressTypes == nil {
		c.PreferredAddressTypes = []string{
			string(api.NodeHostName),
			string(api.NodeInternalDNS), string(api.NodeInternalIP),
			string(api.NodeExternalDNS), string(api.NodeExternalIP),
		}
	}
}

// newProxyTransport reaches pods and services by address, so there is no name that
// a certificate could prove.
func newProxyTransport() http.RoundTripper {
	return utilnet.SetTransportDefaults(&http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}})
}
