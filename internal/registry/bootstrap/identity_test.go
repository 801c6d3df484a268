package bootstrap_test

import (
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"github.com/larder-io/larder/internal/proctest"
	"github.com/larder-io/larder/internal/registry/bootstrap"
	"github.com/larder-io/larder/internal/registry/registrytest"
	"github.com/larder-io/larder/kv/kvtest"
)

// TestALeaseSaysThatTheServerLives checks that one Lease, the same after restarts, is renewed while the server runs.
func TestALeaseSaysThatTheServerLives(t *testing.T) {
	store := kvtest.NewMemory()
	named := func(c *bootstrap.Config) { c.Identity = "apiserver-x" }
	var holders []string
	for range 2 {
		s := registrytest.New(t, store)
		leases := s.Client.CoordinationV1().Leases("kube-system")
		_, kill := run(t, s, named)
		proctest.Eventually(t, "the server is known to live", func() error {
			list, err := leases.List(t.Context(), metav1.ListOptions{LabelSelector: "apiserver.kubernetes.io/identity=kube-apiserver,kubernetes.io/hostname"})
			if err != nil || len(list.Items) != 1 || list.Items[0].Name != "apiserver-x" || *list.Items[0].Spec.LeaseDurationSeconds != 3600 {
				return fmt.Errorf("%v %v", list, err)
			}
			if holder := *list.Items[0].Spec.HolderIdentity; len(holders) == 0 || holders[len(holders)-1] != holder {
				holders = append(holders, holder)
				return nil
			}
			return fmt.Errorf("the holder is still the former one")
		})
		kill()
	}
	s := registrytest.New(t, store)
	b, _ := run(t, s, named)
	b.Stop()
	if _, err := s.Client.CoordinationV1().Leases("kube-system").Get(t.Context(), "apiserver-x", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("the lease of a server that has stopped: %v", err)
	}
}

// TestLeaseIsHandedOver checks that of two processes of one server only one renews the Lease: the old one until the new
// one takes over. Neither deletes the Lease then.
func TestLeaseIsHandedOver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		takesOver := make(chan struct{})
		keep := func(takesOver chan struct{}) (*bootstrap.Bootstrap, *fake.Clientset) {
			client := fake.NewClientset()
			c := &bootstrap.Config{Client: client, Identity: "apiserver-x", TakesOver: takesOver}
			return c.KeepIdentity(t.Context()), client
		}
		earlier, old := keep(nil)
		_, successor := keep(takesOver)
		time.Sleep(time.Minute)
		renewed := len(old.Actions())
		if renewed < 6 || len(successor.Actions()) > 0 {
			t.Errorf("before the handover: %d requests of the old process, %d of the new one", renewed, len(successor.Actions()))
		}
		earlier.HandOver()
		close(takesOver)
		time.Sleep(time.Minute)
		if n := len(old.Actions()); n != renewed {
			t.Errorf("the old process made %d requests after the handover", n-renewed)
		}
		taken := successor.Actions()
		if len(taken) < 6 || slices.ContainsFunc(taken, func(a clienttesting.Action) bool { return a.GetVerb() == "delete" }) {
			t.Errorf("the new process made the requests %v", taken)
		}
	})
}
