package builtin

import (
	"cmp"
	"maps"
	"net"
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
)

// Config is the configuration of upstream's REST storages. ClientConfig, Informers and Authorizer are
// required; other fields have kube-apiserver's defaults.
type Config struct {
	// Prefix starts every key in the store; "" means "/registry".
	Prefix string

	// ClientConfig connects to this server within the process, without a rate limit. Storages that use the
	// API (disruption budgets, service addresses) use it after Run has started.
	ClientConfig *restclient.Config

	// Informers are shared with the server. New requests the informers that it needs; the caller
	// starts them.
	Informers informers.SharedInformerFactory

	// Authenticator serves token reviews. Authorizer serves access reviews, and storages that check further rights for
	// a write (escalate and bind). RuleResolver lists the rules of a user.
	Authenticator authenticator.Request
	Authorizer    authorizer.Authorizer
	RuleResolver  authorizer.RuleResolver
	APIAudiences  authenticator.Audiences

	// APIResources has the served versions and resources; nil means kube-apiserver's default.
	APIResources *serverstorage.ResourceConfig

	// EmulationForwardCompatible also serves newer versions of the resources of the emulated
	// Kubernetes. RuntimeConfigEmulationForwardCompatible serves the newer versions that
	// APIResources names.
	EmulationForwardCompatible, RuntimeConfigEmulationForwardCompatible bool

	// ServersOverrides has the values of --etcd-servers-overrides: resources with their own etcd
	// servers.
	ServersOverrides []string

	// StorageMediaType is the media type of stored objects; "" means protobuf.
	StorageMediaType string

	// EventTTL is the lifetime of events; 0 means one hour.
	EventTTL time.Duration

	ServiceAccounts ServiceAccounts
	Services        Services

	// Kubelet is the configuration of connections to kubelets, for logs, exec and others; the zero
	// value means kube-apiserver's defaults.
	Kubelet kubeletclient.KubeletClientConfig

	// ProxyDial connects to pods and services; nil connects directly.
	ProxyDial utilnet.DialFunc
}

// ServiceAccounts configures the tokens of service accounts. Without an Issuer there is no
// serviceaccounts/token.
type ServiceAccounts struct {
	Issuer                serviceaccount.TokenGenerator
	MaxExpiration         time.Duration
	ExtendExpiration      bool
	MaxExtendedExpiration time.Duration
}

// Services has the ranges of service addresses and node ports. The zero value means 10.0.0.0/24 and
// ports 30000 to 32767.
type Services struct {
	ClusterIPRange          net.IPNet
	SecondaryClusterIPRange net.IPNet
	NodePortRange           utilnet.PortRange
}

// DefaultAPIResources returns the versions and resources that kube-apiserver serves by default, including CRDs and
// APIServices.
func DefaultAPIResources() *serverstorage.ResourceConfig {
	all := controlplane.DefaultAPIResourceConfigSource()
	for _, other := range []*serverstorage.ResourceConfig{apiextensionsserver.DefaultAPIResourceConfigSource(), aggregator.DefaultAPIResourceConfigSource()} {
		maps.Copy(all.GroupVersionConfigs, other.GroupVersionConfigs)
	}
	return all
}

// SetDefaults sets kube-apiserver's defaults.
func (c *Config) SetDefaults() {
	c.Prefix = cmp.Or(c.Prefix, kubeoptions.DefaultEtcdPathPrefix)
	c.StorageMediaType = cmp.Or(c.StorageMediaType, runtime.ContentTypeProtobuf)
	c.EventTTL = cmp.Or(c.EventTTL, time.Hour)
	if c.APIResources == nil {
		c.APIResources = DefaultAPIResources()
	}
	if s := &c.Services; s.ClusterIPRange.IP == nil {
		s.ClusterIPRange = kubeoptions.DefaultServiceIPCIDR
	}
	if s := &c.Services; s.NodePortRange.Size == 0 {
		s.NodePortRange = kubeoptions.DefaultServiceNodePortRange
	}
	kubeletDefaults(&c.Kubelet)
}

// kubeletDefaults sets the defaults of kubernetes cmd/kube-apiserver/app/options.
func kubeletDefaults(c *kubeletclient.KubeletClientConfig) {
	c.Port, c.ReadOnlyPort = cmp.Or(c.Port, ports.KubeletPort), cmp.Or(c.ReadOnlyPort, ports.KubeletReadOnlyPort)
	c.HTTPTimeout = cmp.Or(c.HTTPTimeout, 5*time.Second)
	if c.PreferredAddressTypes == nil {
		c.PreferredAddressTypes = []string{
			string(api.NodeHostName),
			string(api.NodeInternalDNS), string(api.NodeInternalIP),
			string(api.NodeExternalDNS), string(api.NodeExternalIP),
		}
	}
}
