package registry

import (
	"crypto/tls"
	"net/http"
	"time"

	"k8s.io/apimachinery/pkg/runtime"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	restclient "k8s.io/client-go/rest"
	api "k8s.io/kubernetes/pkg/apis/core"
	"k8s.io/kubernetes/pkg/cluster/ports"
	kubeoptions "k8s.io/kubernetes/pkg/kubeapiserver/options"
	kubeletclient "k8s.io/kubernetes/pkg/kubelet/client"
)

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
