package e2e_test

import (
	"fmt"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	coordinationv1beta1 "k8s.io/api/coordination/v1beta1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/larder-io/larder/internal/proctest"
)

// TestCoordinatedLeadership checks that a candidate is elected as leader by a server that was elected for this itself,
// with the durations that flags set.
func TestCoordinatedLeadership(t *testing.T) {
	t.Parallel()
	p := serve(t, "--unsafe-no-fsync", "--feature-gates=CoordinatedLeaderElection=true", "--runtime-config=coordination.k8s.io/v1beta1=true",
		"--coordinated-leadership-lease-duration=7s", "--coordinated-leadership-renew-deadline=4s", "--coordinated-leadership-retry-period=1s")
	client, now := p.client(), metav1.NowMicro()
	candidate := &coordinationv1beta1.LeaseCandidate{
		ObjectMeta: metav1.ObjectMeta{Name: "me", Namespace: "kube-system"},
		Spec: coordinationv1beta1.LeaseCandidateSpec{
			LeaseName: "office", BinaryVersion: "1.36.0", EmulationVersion: "1.36.0", RenewTime: &now,
			Strategy: coordinationv1.OldestEmulationVersion,
		},
	}
	if _, err := client.CoordinationV1beta1().LeaseCandidates("kube-system").Create(t.Context(), candidate, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	leases := client.CoordinationV1().Leases("kube-system")
	proctest.Eventually(t, "the candidate is elected", func() error {
		office, err := leases.Get(t.Context(), "office", metav1.GetOptions{})
		if err != nil || office.Spec.HolderIdentity == nil || *office.Spec.HolderIdentity != "me" {
			return fmt.Errorf("lease %v, error %v", office, err)
		}
		return nil
	})
	elects, err := leases.Get(t.Context(), "leader-election-controller", metav1.GetOptions{})
	if err != nil || time.Duration(*elects.Spec.LeaseDurationSeconds)*time.Second != 7*time.Second {
		t.Errorf("the lease of the electing server: %v, error %v", elects, err)
	}
	p.want(200, "/readyz/poststarthook/start-kube-apiserver-coordinated-leader-election-controller")
}
