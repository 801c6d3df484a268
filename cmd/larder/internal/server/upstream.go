package server

import (
	"crypto/tls"
	"errors"
	"fmt"
	"maps"
	"net"
	"strconv"
	"strings"
	"time"

	apiextensionsapiserver "k8s.io/apiextensions-apiserver/pkg/apiserver"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	apimachineryversion "k8s.io/apimachinery/pkg/version"
	apiserverfeatures "k8s.io/apiserver/pkg/features"
	genericapiserver "k8s.io/apiserver/pkg/server"
	genericoptions "k8s.io/apiserver/pkg/server/options"
	serverstorage "k8s.io/apiserver/pkg/server/storage"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	basecompatibility "k8s.io/component-base/compatibility"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"
	aggregator "k8s.io/kube-aggregator/pkg/apiserver"
	aggregatorscheme "k8s.io/kube-aggregator/pkg/apiserver/scheme"
	"k8s.io/kubernetes/pkg/api/legacyscheme"
	api "k8s.io/kubernetes/pkg/apis/core"
	"k8s.io/kubernetes/pkg/cluster/ports"
	"k8s.io/kubernetes/pkg/controlplane"
	"k8s.io/kubernetes/pkg/controlplane/apiserver/options"
	kubeletclient "k8s.io/kubernetes/pkg/kubelet/client"

	"github.com/larder-io/larder/cmd/larder/internal/server/servingcert"
	"github.com/larder-io/larder/httpapi/apimetrics"
)

// Upstream holds kube-apiserver's own options.
type Upstream struct {
	*options.Options

	// Kubelet configures the client of kubelets.
	Kubelet kubeletclient.KubeletClientConfig
	// NodePort is that of the kubernetes service; 0 gives it none.
	NodePort int
	// GitVersion is the version that the server reports; "" is the build's.
	GitVersion string
}

// NewUpstream returns kube-apiserver's defaults.
func NewUpstream() *Upstream {
	return &Upstream{
		Options: options.NewOptions(),
		// kubernetes cmd/kube-apiserver/app/options/options.go, NewServerRunOptions.
		Kubelet: kubeletclient.KubeletClientConfig{
			Port:         ports.KubeletPort,
			ReadOnlyPort: ports.KubeletReadOnlyPort,
			HTTPTimeout:  5 * time.Second,
			PreferredAddressTypes: []string{
				string(api.NodeHostName),
				string(api.NodeInternalDNS), string(api.NodeInternalIP),
				string(api.NodeExternalDNS), string(api.NodeExternalIP),
			},
		},
	}
}

// validate checks what can be known without I/O, in kube-apiserver's words: kubernetes
// pkg/controlplane/apiserver/options/validation.go.
func (u *Upstream) validate(c *Config) error {
	errs := append(u.GenericServerRunOptions.Validate(), u.SecureServing.Validate()...)
	errs = append(errs, u.validateFiles())
	if u.GenericServerRunOptions.RequestTimeout == 0 { // kube-apiserver starts, and is never ready
		errs = append(errs, errors.New("--request-timeout must not be 0: no request would be answered in time"))
	}
	if o := u.GenericServerRunOptions; u.Features.EnablePriorityAndFairness && o.MaxRequestsInFlight+o.MaxMutatingRequestsInFlight <= 0 {
		errs = append(errs, fmt.Errorf("invalid configuration: MaxRequestsInFlight=%d and MaxMutatingRequestsInFlight=%d; they must add up to something positive", o.MaxRequestsInFlight, o.MaxMutatingRequestsInFlight))
	}
	etcd := *u.Etcd
	if !c.external() {
		etcd.StorageConfig.Transport.ServerList = []string{"embedded"}
	}
	errs = append(errs, etcd.Validate()...)
	if u.Etcd.StorageConfig.CompactionInterval < 0 {
		errs = append(errs, fmt.Errorf("--etcd-compaction-interval must not be negative, is %v", u.Etcd.StorageConfig.CompactionInterval))
	}
	_, err := genericoptions.ParseWatchCacheSizes(u.Etcd.WatchCacheSizes)
	errs = append(errs, err)
	errs = append(errs, u.enablement().Validate(legacyscheme.Scheme, apiextensionsapiserver.Scheme, aggregatorscheme.Scheme)...)
	errs = append(errs, u.validateMetrics()...)
	errs = append(errs, u.EgressSelector.Validate()...)
	errs = append(errs, u.Traces.Validate()...)
	_, err = servingcert.Base(u.SecureServing.SecureServingOptions)
	errs = append(errs, err, u.validateFairness(u.Features.EnablePriorityAndFairness), u.validatePeers(), u.validateLeadership(), u.validateNodePort(&c.Services))
	return errors.Join(errs...)
}

// validateFiles checks that certificates and their keys are given together.
func (u *Upstream) validateFiles() error {
	serving, etcd := u.SecureServing.ServerCert.CertKey, u.Etcd.StorageConfig.Transport
	switch {
	case (serving.CertFile == "") != (serving.KeyFile == ""):
		return errors.New("--tls-cert-file and --tls-private-key-file must be given together")
	case (etcd.CertFile == "") != (etcd.KeyFile == ""):
		return errors.New("--etcd-certfile and --etcd-keyfile must be given together")
	case len(etcd.ServerList) == 0 && etcd.TrustedCAFile+etcd.CertFile != "":
		return errors.New("--etcd-cafile, --etcd-certfile and --etcd-keyfile need --etcd-servers")
	case (u.ProxyClientCertFile == "") != (u.ProxyClientKeyFile == ""):
		return errors.New("--proxy-client-cert-file and --proxy-client-key-file must be given together")
	}
	return nil
}

// checkProxyPair reads the client certificate of the aggregator, so that a bad one is an error at
// the start: later, the aggregator reloads the files when they change.
func (u *Upstream) checkProxyPair() error {
	if u.ProxyClientCertFile == "" {
		return nil
	}
	if _, err := tls.LoadX509KeyPair(u.ProxyClientCertFile, u.ProxyClientKeyFile); err != nil {
		return fmt.Errorf("server: --proxy-client-cert-file: %w", err)
	}
	return nil
}

// validateMetrics checks --show-hidden-metrics-for-version itself: upstream's options compare
// it with a version that only linker flags set.
func (u *Upstream) validateMetrics() []error {
	options := *u.Metrics
	shown := options.ShowHiddenMetricsForVersion
	options.ShowHiddenMetricsForVersion = ""
	errs := options.Validate()
	binary := u.effective().BinaryVersion()
	if previous := fmt.Sprintf("%d.%d", binary.Major(), binary.Minor()-1); shown != "" && shown != previous {
		errs = append(errs, fmt.Errorf("--show-hidden-metrics-for-version must be omitted or have the value '%v'. Only the previous minor version is allowed", previous))
	}
	return errs
}

// limits are those of what metrics may tell.
func (u *Upstream) limits() (apimetrics.Limits, error) {
	return apimetrics.NewLimits(u.Metrics)
}

func (u *Upstream) validateFairness(on bool) error {
	enabled := u.APIEnablement.RuntimeConfig.String()
	for _, apis := range []string{"flowcontrol.apiserver.k8s.io/v1", "api/ga", "api/all"} { // the first that is set counts
		switch {
		case !on || strings.Contains(enabled, apis+"=true"):
			return nil
		case strings.Contains(enabled, apis+"=false"):
			return fmt.Errorf("--runtime-config=%s=false conflicts with --enable-priority-and-fairness=true", apis)
		}
	}
	return nil
}

func (u *Upstream) validatePeers() error {
	if utilfeature.DefaultFeatureGate.Enabled(apiserverfeatures.UnknownVersionInteroperabilityProxy) {
		return nil
	}
	var errs []error
	for _, f := range []struct{ flag, value string }{
		{"peer-ca-file", u.PeerCAFile},
		{"peer-advertise-ip", u.PeerAdvertiseAddress.PeerAdvertiseIP},
		{"peer-advertise-port", u.PeerAdvertiseAddress.PeerAdvertisePort},
	} {
		if f.value != "" {
			errs = append(errs, fmt.Errorf("--%s requires UnknownVersionInteroperabilityProxy feature to be turned on", f.flag))
		}
	}
	return errors.Join(errs...)
}

func (u *Upstream) validateLeadership() error {
	switch {
	case u.CoordinatedLeadershipLeaseDuration <= u.CoordinatedLeadershipRenewDeadline:
		return errors.New("--coordinated-leadership-lease-duration must be greater than --coordinated-leadership-renew-deadline")
	case u.CoordinatedLeadershipRenewDeadline <= u.CoordinatedLeadershipRetryPeriod:
		return errors.New("--coordinated-leadership-renew-deadline must be greater than --coordinated-leadership-retry-period")
	}
	return nil
}

func (u *Upstream) validateNodePort(s *Services) error {
	var errs []error
	if u.NodePort < 0 || u.NodePort > 65535 {
		errs = append(errs, fmt.Errorf("--kubernetes-service-node-port %v must be between 0 and 65535, inclusive. If 0, the Kubernetes master service will be of type ClusterIP", u.NodePort))
	}
	if u.NodePort > 0 && !s.NodePorts.Contains(u.NodePort) {
		errs = append(errs, fmt.Errorf("kubernetes service node port range %v doesn't contain %v", s.NodePorts, u.NodePort))
	}
	return errors.Join(errs...)
}

// effective returns upstream's effective version: which version of Kubernetes is emulated.
func (u *Upstream) effective() basecompatibility.EffectiveVersion {
	o := u.GenericServerRunOptions
	return o.ComponentGlobalsRegistry.EffectiveVersionFor(o.ComponentName)
}

// version returns the body of /version.
func (u *Upstream) version() apimachineryversion.Info {
	info := Version()
	if u.GitVersion != "" {
		info.GitVersion = u.GitVersion
	}
	effective := u.effective()
	if emulated := effective.EmulationVersion(); emulated != nil {
		info.EmulationMajor, info.EmulationMinor = number(emulated.Major()), number(emulated.Minor())
	}
	if least := effective.MinCompatibilityVersion(); least != nil {
		info.MinCompatibilityMajor, info.MinCompatibilityMinor = number(least.Major()), number(least.Minor())
	}
	return info
}

func number(n uint) string { return strconv.FormatUint(uint64(n), 10) }

// enablement returns --runtime-config with the core group's present name in the place of its
// old ones: kubernetes pkg/controlplane/apiserver/options/options.go.
func (u *Upstream) enablement() *genericoptions.APIEnablementOptions {
	asked := make(map[string]string)
	for key, value := range u.APIEnablement.RuntimeConfig {
		name := strings.TrimPrefix(key, "api/")
		switch {
		case name == "v1" || strings.HasPrefix(name, "v1/"):
			asked["/v1"] = value
		case key != "api/legacy":
			asked[key] = value
		}
	}
	return &genericoptions.APIEnablementOptions{RuntimeConfig: asked}
}

// resources returns the versions and resources that are served: upstream's defaults, changed
// by --runtime-config, of kube-apiserver's three servers together.
func (u *Upstream) resources() (*serverstorage.ResourceConfig, error) {
	all := serverstorage.NewResourceConfig()
	for _, of := range []struct {
		defaults *serverstorage.ResourceConfig
		scheme   *runtime.Scheme
	}{
		{controlplane.DefaultAPIResourceConfigSource(), legacyscheme.Scheme},
		{apiextensionsapiserver.DefaultAPIResourceConfigSource(), apiextensionsapiserver.Scheme},
		{aggregator.DefaultAPIResourceConfigSource(), aggregatorscheme.Scheme},
	} {
		c := &genericapiserver.Config{
			EffectiveVersion:           u.effective(),
			EmulationForwardCompatible: u.GenericServerRunOptions.EmulationForwardCompatible,
		}
		if err := u.enablement().ApplyTo(c, of.defaults, of.scheme); err != nil {
			return nil, err
		}
		merged := c.MergedResourceConfig
		maps.Copy(all.GroupVersionConfigs, merged.GroupVersionConfigs)
		maps.Copy(all.ResourceConfigs, merged.ResourceConfigs)
		maps.Copy(all.ExplicitGroupVersionConfigs, merged.ExplicitGroupVersionConfigs)
		maps.Copy(all.ExplicitResourceConfigs, merged.ExplicitResourceConfigs)
	}
	if gv := apiregistrationv1.SchemeGroupVersion; !all.ResourceEnabled(gv.WithResource("apiservices")) { // kube-aggregator pkg/apiserver/apiserver.go
		return nil, fmt.Errorf("API group/version %s must be enabled", gv)
	}
	return all, nil
}

// listen opens the listener, with SO_REUSEPORT and SO_REUSEADDR as the options say.
func (u *Upstream) listen() (net.Listener, error) {
	secure := genericoptions.SecureServingOptions{
		BindAddress: u.SecureServing.BindAddress, BindPort: u.SecureServing.BindPort,
		PermitPortSharing: u.SecureServing.PermitPortSharing, PermitAddressSharing: u.SecureServing.PermitAddressSharing,
	}
	var info *genericapiserver.SecureServingInfo
	if err := secure.ApplyTo(&info); err != nil {
		return nil, fmt.Errorf("--bind-address=%s --secure-port=%d: %w", secure.BindAddress, u.SecureServing.BindPort, err)
	}
	return info.Listener, nil
}

// fresh returns a function that reports whether upstream would keep no cache of a resource.
// Reads of such resources are always consistent with the store.
func (u *Upstream) fresh() func(schema.GroupResource) bool {
	if !u.Etcd.EnableWatchCache {
		return func(schema.GroupResource) bool { return true }
	}
	sizes, err := genericoptions.ParseWatchCacheSizes(u.Etcd.WatchCacheSizes)
	if err != nil {
		return nil // Validate refused it
	}
	return func(gr schema.GroupResource) bool {
		size, named := sizes[gr]
		return named && size == 0
	}
}

// leaseReuse returns for how long a lease is used for further keys; less than 0 for one key
// alone.
func (u *Upstream) leaseReuse() time.Duration {
	seconds := u.Etcd.StorageConfig.LeaseManagerConfig.ReuseDurationSeconds
	if seconds <= 0 {
		return -1
	}
	return time.Duration(seconds) * time.Second
}
