package server

import (
	apiserverfeatures "k8s.io/apiserver/pkg/features"
	genericapiserver "k8s.io/apiserver/pkg/server"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	"k8s.io/kubernetes/pkg/api/legacyscheme"

	"github.com/larder-io/larder/internal/registry/bootstrap"
)

// serverID names this server among those of the cluster, in every life the same.
func serverID() string { return genericapiserver.NewConfig(legacyscheme.Codecs).APIServerID }

// identityLease is the name of the Lease that tells that this server lives; "" if none does.
func (s *Server) identityLease() string {
	if !utilfeature.DefaultFeatureGate.Enabled(apiserverfeatures.APIServerIdentity) {
		return ""
	}
	return serverID()
}

// leadership says how leaders are elected among components that ask for it; nil if none are.
func (s *Server) leadership() *bootstrap.Leadership {
	if !utilfeature.DefaultFeatureGate.Enabled(apiserverfeatures.CoordinatedLeaderElection) {
		return nil
	}
	up := s.config.Upstream
	return &bootstrap.Leadership{
		ClientConfig: s.parts.loopback, LeaseDuration: up.CoordinatedLeadershipLeaseDuration,
		RenewDeadline: up.CoordinatedLeadershipRenewDeadline, RetryPeriod: up.CoordinatedLeadershipRetryPeriod,
	}
}
