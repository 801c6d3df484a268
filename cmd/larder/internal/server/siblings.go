package server

import (
	apiserverfeatures "k8s.io/apiserver/pkg/features"
	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/apiserver/pkg/storageversion"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	"k8s.io/kubernetes/pkg/api/legacyscheme"

	"github.com/larder-io/larder/internal/registry/bootstrap"
)

// serverID returns the name of this server in its cluster, the same after each restart.
func serverID() string { return genericapiserver.NewConfig(legacyscheme.Codecs).APIServerID }

// identityLease returns the name of the server's identity Lease; "" if it has none.
func identityLease() string {
	if !utilfeature.DefaultFeatureGate.Enabled(apiserverfeatures.APIServerIdentity) {
		return ""
	}
	return serverID()
}

// leadership returns the configuration of coordinated leader election; nil if it is disabled.
func (s *Server) leadership() *bootstrap.Leadership {
	if !utilfeature.DefaultFeatureGate.Enabled(apiserverfeatures.CoordinatedLeaderElection) {
		return nil
	}
	up := s.config.ServerRunOptions
	return &bootstrap.Leadership{
		ClientConfig: s.parts.loopback, LeaseDuration: up.CoordinatedLeadershipLeaseDuration,
		RenewDeadline: up.CoordinatedLeadershipRenewDeadline, RetryPeriod: up.CoordinatedLeadershipRetryPeriod,
	}
}

// publishVersions makes base publish the registry's storage versions, if that is enabled.
func (s *Server) publishVersions(base *bootstrap.Config) {
	p := &s.parts
	if base.Identity == "" || !utilfeature.DefaultFeatureGate.Enabled(apiserverfeatures.StorageVersionAPI) {
		return
	}
	p.versions = storageversion.NewDefaultManager()
	p.versions.AddResourceInfo(p.registry.StorageVersions()...)
	base.StorageVersions = &bootstrap.StorageVersions{Manager: p.versions, ClientConfig: p.loopback}
}
