package builtin

import (
	"cmp"
	"maps"
	"time"

	apiextensionsserver "k8s.io/apiextensions-apiserver/pkg/apiserver"
	"k8s.io/apimachinery/pkg/runtime"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	serverstorage "k8s.io/apiserver/pkg/server/storage"
	aggregator "k8s.io/kube-aggregator/pkg/apiserver"
	"k8s.io/kubernetes/pkg/controlplane"
	kubeoptions "k8s.io/kubernetes/pkg/kubeapiserver/options"
	kubeletclient "k8s.io/kubernetes/pkg/kubelet/client"
	corerest "k8s.io/kubernetes/pkg/registry/core/rest"
)

// Config is the configuration of upstream's REST storages. LoopbackClientConfig, Informers and Authorizer are
// required; other fields have kube-apiserver's defaults.
type Config struct {
	// GenericConfig configures upstream's storages of the core group. New sets its StorageFactory.
	//
	// LoopbackClientConfig connects to this server within the process, without a rate limit. Storages that use the
	// API (disruption budgets, service addresses) use it after Run has started. Informers are shared with the server:
	// New requests the informers that it needs, and the caller starts them. An EventTTL of 0 means one hour. Without a
	// ServiceAccountIssuer there is no serviceaccounts/token.
	corerest.GenericConfig

	// Prefix starts every key in the store; "" means "/registry".
	Prefix string

	// Authenticator serves token reviews. Authorizer serves access reviews, and storages that check further rights for
	// a write (escalate and bind). RuleResolver lists the rules of a user.
	Authenticator authenticator.Request
	Authorizer    authorizer.Authorizer
	RuleResolver  authorizer.RuleResolver

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

	// Services has the ranges of service addresses and node ports. The zero value means 10.0.0.0/24 and
	// ports 30000 to 32767.
	Services corerest.ServicesConfig

	// Kubelet is the configuration of connections to kubelets, for logs, exec and others. It has no defaults.
	Kubelet kubeletclient.KubeletClientConfig

	// ProxyDial connects to pods and services; nil connects directly.
	ProxyDial utilnet.DialFunc
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
}
