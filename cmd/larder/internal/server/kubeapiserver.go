package server

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"slices"
	"strconv"
	"strings"
	"time"

	apiextensionsapiserver "k8s.io/apiextensions-apiserver/pkg/apiserver"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"
	apimachineryversion "k8s.io/apimachinery/pkg/version"
	genericapiserver "k8s.io/apiserver/pkg/server"
	genericoptions "k8s.io/apiserver/pkg/server/options"
	serverstorage "k8s.io/apiserver/pkg/server/storage"
	basecompatibility "k8s.io/component-base/compatibility"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"
	aggregator "k8s.io/kube-aggregator/pkg/apiserver"
	aggregatorscheme "k8s.io/kube-aggregator/pkg/apiserver/scheme"
	"k8s.io/kubernetes/pkg/api/legacyscheme"
	"k8s.io/kubernetes/pkg/controlplane"
	"k8s.io/kubernetes/pkg/controlplane/reconcilers"
	"k8s.io/kubernetes/pkg/serviceaccount"

	"github.com/larder-io/larder/cmd/larder/internal/server/servingcert"
	"github.com/larder-io/larder/internal/auth"
)

// completeKubeAPIServer completes kube-apiserver's options and checks them without I/O, with its own errors. It
// runs upstream's code, and copies options first if that code would connect or change them.
func (c *Config) completeKubeAPIServer() error {
	given, generic := *c.ServerRunOptions, *c.GenericServerRunOptions
	core := *given.Options
	given.Options, core.GenericServerRunOptions = &core, &generic
	if generic.ExternalHost == "" {
		generic.ExternalHost = "localhost" // otherwise upstream looks up the host name
	}
	known := len(generic.AdvertiseAddress) > 0 && !generic.AdvertiseAddress.IsUnspecified()
	if !known {
		generic.AdvertiseAddress = net.IPv4(127, 0, 0, 1) // otherwise upstream reads the network interfaces
	}
	secure := *core.SecureServing.SecureServingOptions
	secure.ServerCert.CertKey.CertFile = "given" // otherwise upstream generates a certificate
	core.SecureServing = &genericoptions.SecureServingOptionsWithLoopback{SecureServingOptions: &secure}
	etcd, metrics := *core.Etcd, *core.Metrics
	core.Etcd, core.Metrics = &etcd, &metrics
	if !c.external() {
		etcd.StorageConfig.Transport.ServerList = []string{"embedded"}
	}
	metrics.ShowHiddenMetricsForVersion = "" // see validateMetrics
	access := c.access(c.Authentication.ClientCert.ClientCA)
	core.Authentication, core.Authorization = access.Authentication, access.Authorization
	anonymous, accounts := *core.Authentication.Anonymous, core.Authentication.ServiceAccounts
	anonymous.Allow = false // otherwise upstream warns here and again when the server starts
	extends := accounts.ExtendExpiration
	core.Authentication.Anonymous, accounts.ExtendExpiration = &anonymous, false
	core.ServiceAccountSigningKeyFile, core.ServiceAccountSigningEndpoint = "", "" // otherwise upstream reads the key
	core.APIEnablement = &genericoptions.APIEnablementOptions{RuntimeConfig: maps.Clone(core.APIEnablement.RuntimeConfig)}
	done, err := given.Complete(context.Background())
	if err != nil {
		return err
	}
	c.Extra, c.APIEnablement = done.Extra, done.APIEnablement
	accounts.ExtendExpiration = extends
	if !known {
		generic.AdvertiseAddress = done.APIServerServiceIP // an address of the right IP family
	}
	signing, issuers := access.Signing, accounts.Issuers
	if done.ServiceAccountSigningKeyFile, done.ServiceAccountSigningEndpoint = signing.KeyFile, signing.Endpoint; len(issuers) > 0 && issuers[0] != "" && signing != (auth.Signing{}) {
		done.ServiceAccountIssuer = struct{ serviceaccount.TokenGenerator }{}
	}
	if signing.Endpoint != "" {
		accounts.ExternalPublicKeysGetter = struct {
			serviceaccount.PublicKeysGetter
		}{}
	}
	return errors.Join(done.Validate()...)
}

// validateKubeAPIServer checks options that kube-apiserver checks only when it uses them, or not at all.
func (c *Config) validateKubeAPIServer() error {
	errs := []error{c.validateMetrics(), c.validateFiles()}
	if c.GenericServerRunOptions.RequestTimeout == 0 { // kube-apiserver starts, and is never ready
		errs = append(errs, errors.New("--request-timeout must not be 0: no request would complete in time"))
	}
	if o := c.GenericServerRunOptions; c.Features.EnablePriorityAndFairness && o.MaxRequestsInFlight+o.MaxMutatingRequestsInFlight <= 0 {
		errs = append(errs, fmt.Errorf("--max-requests-inflight and --max-mutating-requests-inflight must add up to more than 0, are %d and %d", o.MaxRequestsInFlight, o.MaxMutatingRequestsInFlight))
	}
	if c.Etcd.StorageConfig.CompactionInterval < 0 {
		errs = append(errs, fmt.Errorf("--etcd-compaction-interval must not be negative, is %v", c.Etcd.StorageConfig.CompactionInterval))
	}
	if reconciler := reconcilers.Type(c.EndpointReconcilerType); reconciler != "" && !slices.Contains(reconcilers.AllTypes, reconciler) {
		errs = append(errs, fmt.Errorf("--endpoint-reconciler-type must be one of %s, not %q", strings.Join(reconcilers.AllTypes.Names(), ", "), reconciler))
	}
	errs = append(errs, c.EgressSelector.Validate()...)
	errs = append(errs, c.Traces.Validate()...)
	_, err := servingcert.Base(c.SecureServing.SecureServingOptions)
	return errors.Join(append(errs, err)...)
}

// validateFiles checks that certificates and their keys are set together.
func (c *Config) validateFiles() error {
	serving, etcd := c.SecureServing.ServerCert.CertKey, c.Etcd.StorageConfig.Transport
	switch {
	case (serving.CertFile == "") != (serving.KeyFile == ""):
		return errors.New("--tls-cert-file and --tls-private-key-file must be given together")
	case (etcd.CertFile == "") != (etcd.KeyFile == ""):
		return errors.New("--etcd-certfile and --etcd-keyfile must be given together")
	case len(etcd.ServerList) == 0 && etcd.TrustedCAFile+etcd.CertFile != "":
		return errors.New("--etcd-cafile, --etcd-certfile and --etcd-keyfile need --etcd-servers")
	case (c.ProxyClientCertFile == "") != (c.ProxyClientKeyFile == ""):
		return errors.New("--proxy-client-cert-file and --proxy-client-key-file must be given together")
	}
	return nil
}

// validateMetrics checks --show-hidden-metrics-for-version, which upstream's options compare with
// a version that only linker flags set.
func (c *Config) validateMetrics() error {
	binary := c.effectiveVersion().BinaryVersion()
	previous := fmt.Sprintf("%d.%d", binary.Major(), binary.Minor()-1)
	if shown := c.Metrics.ShowHiddenMetricsForVersion; shown != "" && shown != previous {
		return field.Invalid(field.NewPath("metrics", "showHiddenMetricsForVersion"), shown,
			fmt.Sprintf("must be omitted or have the value '%s'; only the previous minor version is allowed", previous))
	}
	return nil
}

// effectiveVersion returns upstream's effective version, which is the emulated version of Kubernetes.
func (c *Config) effectiveVersion() basecompatibility.EffectiveVersion {
	o := c.GenericServerRunOptions
	return o.ComponentGlobalsRegistry.EffectiveVersionFor(o.ComponentName)
}

// version returns the body of /version.
func (c *Config) version() apimachineryversion.Info {
	info := Version()
	if c.GitVersion != "" {
		info.GitVersion = c.GitVersion
	}
	effective := c.effectiveVersion()
	if emulated := effective.EmulationVersion(); emulated != nil {
		info.EmulationMajor, info.EmulationMinor = number(emulated.Major()), number(emulated.Minor())
	}
	if least := effective.MinCompatibilityVersion(); least != nil {
		info.MinCompatibilityMajor, info.MinCompatibilityMinor = number(least.Major()), number(least.Minor())
	}
	return info
}

func number(n uint) string { return strconv.FormatUint(uint64(n), 10) }

// resources returns the served versions and resources: upstream's defaults for kube-apiserver's three
// servers, changed by --runtime-config.
func (c *Config) resources() (*serverstorage.ResourceConfig, error) {
	all := serverstorage.NewResourceConfig()
	for _, of := range []struct {
		defaults *serverstorage.ResourceConfig
		scheme   *runtime.Scheme
	}{
		{controlplane.DefaultAPIResourceConfigSource(), legacyscheme.Scheme},
		{apiextensionsapiserver.DefaultAPIResourceConfigSource(), apiextensionsapiserver.Scheme},
		{aggregator.DefaultAPIResourceConfigSource(), aggregatorscheme.Scheme},
	} {
		target := &genericapiserver.Config{
			EffectiveVersion:           c.effectiveVersion(),
			EmulationForwardCompatible: c.GenericServerRunOptions.EmulationForwardCompatible,
		}
		if err := c.APIEnablement.ApplyTo(target, of.defaults, of.scheme); err != nil {
			return nil, err
		}
		merged := target.MergedResourceConfig
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

// listen returns the inherited listener, or opens one, with SO_REUSEPORT and SO_REUSEADDR if the options ask for them.
func (c *Config) listen() (net.Listener, error) {
	if f := c.Inherited.Listener; f != nil {
		defer f.Close()
		return net.FileListener(f)
	}
	secure := genericoptions.SecureServingOptions{
		BindAddress: c.SecureServing.BindAddress, BindPort: c.SecureServing.BindPort,
		PermitPortSharing: c.SecureServing.PermitPortSharing, PermitAddressSharing: c.SecureServing.PermitAddressSharing,
	}
	var info *genericapiserver.SecureServingInfo
	if err := secure.ApplyTo(&info); err != nil {
		return nil, fmt.Errorf("--bind-address=%s --secure-port=%d: %w", secure.BindAddress, c.SecureServing.BindPort, err)
	}
	return info.Listener, nil
}

// uncached returns a function that reports whether kube-apiserver would have no cache for a resource.
// Reads of such resources are always consistent with the store.
func (c *Config) uncached() func(schema.GroupResource) bool {
	if !c.Etcd.EnableWatchCache {
		return func(schema.GroupResource) bool { return true }
	}
	sizes, err := genericoptions.ParseWatchCacheSizes(c.Etcd.WatchCacheSizes)
	if err != nil {
		return nil // Validate has rejected the sizes
	}
	return func(gr schema.GroupResource) bool {
		size, named := sizes[gr]
		return named && size == 0
	}
}

// leaseReuse returns how long a lease is reused for further keys; a negative value means never.
func (c *Config) leaseReuse() time.Duration {
	seconds := c.Etcd.StorageConfig.LeaseManagerConfig.ReuseDurationSeconds
	if seconds <= 0 {
		return -1
	}
	return time.Duration(seconds) * time.Second
}
