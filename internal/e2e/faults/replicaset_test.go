package faults

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	"k8s.io/client-go/informers"
	coreinformers "k8s.io/client-go/informers/core/v1"
	"k8s.io/client-go/kubernetes"
	featuretesting "k8s.io/component-base/featuregate/testing"
	"k8s.io/component-base/metrics/testutil"
	"k8s.io/kubernetes/pkg/controller/replicaset"
	"k8s.io/kubernetes/pkg/controller/replicaset/metrics"
	"k8s.io/kubernetes/pkg/features"

	"github.com/larder-io/larder/httpapi/faults"
	"github.com/larder-io/larder/internal/proctest"
)

// replicaSet is a ReplicaSet, and kube-controller-manager's ReplicaSet controller, whose watch of pods is held.
type replicaSet struct {
	cluster // the users' access, as the administrator
	t       *testing.T
	s       *server
	pods    coreinformers.PodInformer // the controller's
}

// hold is the rule that holds the controller's watch of pods.
const hold = "hold"

// controllers is a pattern of the controller's user agent.
const controllers = "replicaset-controller*"

// startReplicaSet creates a ReplicaSet without replicas and starts a controller, whose watch is held once the
// controller has seen the ReplicaSet.
func startReplicaSet(t *testing.T, s *server, gate bool) *replicaSet {
	t.Helper()
	featuretesting.SetFeatureGateDuringTest(t, utilfeature.DefaultFeatureGate, features.StaleControllerConsistencyReplicaSet, gate)
	admin := kubernetes.NewForConfigOrDie(s.config)
	r := &replicaSet{cluster: cluster{t.Context(), admin, namespaceFor(t, admin)}, t: t, s: s}
	_, err := admin.AppsV1().ReplicaSets(r.namespace).Create(r, &appsv1.ReplicaSet{
		ObjectMeta: metav1.ObjectMeta{Name: "web"},
		Spec: appsv1.ReplicaSetSpec{
			Replicas: new(int32), Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "web"}},
			Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"app": "web"}}, Spec: newPod(metav1.ObjectMeta{}).Spec},
		},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	r.control(kubernetes.NewForConfigOrDie(s.as("replicaset-controller", 2)))
	r.awaitStatus(0)
	s.set(t, faults.Rule{Name: hold, Match: faults.Match{UserAgent: controllers, Resource: "pods", Verbs: []string{"watch"}}, Hold: faults.HoldChanges})
	return r
}

// control runs the controller until the test ends.
func (r *replicaSet) control(client kubernetes.Interface) {
	ctx, cancel := context.WithCancel(context.Background())
	factory := informers.NewSharedInformerFactoryWithOptions(client, 0, informers.WithNamespace(r.namespace))
	r.pods = factory.Core().V1().Pods()
	controller := replicaset.NewReplicaSetController(ctx, factory.Apps().V1().ReplicaSets(), r.pods, client, replicaset.BurstReplicas)
	factory.StartWithContext(ctx)
	var running sync.WaitGroup
	running.Go(func() { controller.Run(ctx, 1) })
	r.t.Cleanup(func() { cancel(); running.Wait(); factory.Shutdown() })
}

// get returns the ReplicaSet.
func (r *replicaSet) get() *appsv1.ReplicaSet {
	r.t.Helper()
	set, err := r.client.AppsV1().ReplicaSets(r.namespace).Get(r, "web", metav1.GetOptions{})
	if err != nil {
		r.t.Fatal(err)
	}
	return set
}

// change changes the ReplicaSet.
func (r *replicaSet) change(patch string) {
	r.t.Helper()
	if _, err := r.client.AppsV1().ReplicaSets(r.namespace).Patch(r, "web", "application/merge-patch+json", []byte(patch), metav1.PatchOptions{}); err != nil {
		r.t.Fatal(err)
	}
}

// awaitStatus waits until the controller has seen the ReplicaSet and that number of its pods.
func (r *replicaSet) awaitStatus(replicas int32) {
	r.t.Helper()
	proctest.Eventually(r.t, "the status is current", func() error {
		if set := r.get(); set.Status.ObservedGeneration != set.Generation || set.Status.Replicas != replicas {
			return fmt.Errorf("%+v", set.Status)
		}
		return nil
	})
}

// count returns the number of pods.
func (r *replicaSet) count() int {
	r.t.Helper()
	list, err := r.cluster.pods().List(r, metav1.ListOptions{})
	if err != nil {
		r.t.Fatal(err)
	}
	return len(list.Items)
}

// awaitPods waits until there are want pods.
func (r *replicaSet) awaitPods(want int) {
	r.t.Helper()
	proctest.Eventually(r.t, "the pods exist", func() error {
		if n := r.count(); n != want {
			return fmt.Errorf("%d pods, want %d", n, want)
		}
		return nil
	})
}

// loseSight makes the controller create two pods while its cache shows only one. The controller expects to see two
// pods, and has seen two: another client, such as the previous leader, has created a third pod and deleted it.
func (r *replicaSet) loseSight() {
	r.t.Helper()
	set := r.get()
	other := newPod(metav1.ObjectMeta{Name: "other", Labels: map[string]string{"app": "web"}, OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(set, appsv1.SchemeGroupVersion.WithKind("ReplicaSet"))}})
	_, err := r.cluster.pods().Create(r, other, metav1.CreateOptions{})
	if err = errors.Join(err, r.cluster.pods().Delete(r, "other", metav1.DeleteOptions{})); err != nil {
		r.t.Fatal(err)
	}
	r.change(`{"spec": {"replicas": 2}}`)
	r.awaitPods(2)
	r.s.awaitHeld(r.t, "pods", 5) // the other pod is created, terminates and is deleted
	if err := r.s.faults.Step(r, hold, 4); err != nil {
		r.t.Fatal(err)
	}
	proctest.Eventually(r.t, "the cache shows one pod", func() error {
		if keys := r.pods.Informer().GetStore().ListKeys(); len(keys) != 1 || keys[0] == r.namespace+"/other" {
			return fmt.Errorf("%q", keys)
		}
		return nil
	})
}

// skips returns how often the controller skipped its work because its cache of pods was stale.
func (r *replicaSet) skips() float64 {
	r.t.Helper()
	n, err := testutil.GetCounterMetricValue(metrics.ReplicaSetRequeueSkips.WithLabelValues("", "pods"))
	if err != nil {
		r.t.Fatal(err)
	}
	return n
}

// TestReplicaSetControllerOvershoots checks that kube-controller-manager creates more pods than replicas while its
// cache is stale. StaleControllerConsistencyReplicaSet prevents that, unless the response of a create was lost: then
// the controller does not know what to wait for.
func TestReplicaSetControllerOvershoots(t *testing.T) {
	s := serve(t, "serve", "--faults", "true", "--disable-admission-plugins", "ServiceAccount")
	t.Run("gate off", func(t *testing.T) {
		r := startReplicaSet(t, s, false)
		r.loseSight()
		r.awaitPods(3)
		if err := s.faults.Clear(r, hold); err != nil {
			t.Fatal(err)
		}
		r.awaitPods(2)
	})
	t.Run("gate on", func(t *testing.T) {
		r := startReplicaSet(t, s, true)
		r.loseSight()
		before := r.skips()
		r.change(`{"metadata": {"annotations": {"any": "thing"}}}`)
		proctest.Eventually(t, "the controller skips the ReplicaSet", func() error {
			if now := r.skips(); now == before {
				return fmt.Errorf("%v skips", now)
			}
			return nil
		})
		if n := r.count(); n != 2 {
			t.Errorf("%d pods while the cache is stale, want 2", n)
		}
		if err := s.faults.Clear(r, hold); err != nil {
			t.Fatal(err)
		}
		r.awaitStatus(2)
		if n := r.count(); n != 2 {
			t.Errorf("%d pods in the end, want 2", n)
		}
	})
	t.Run("gate on, response lost", func(t *testing.T) {
		r := startReplicaSet(t, s, true)
		s.set(t, faults.Rule{Name: "lost", Match: faults.Match{UserAgent: controllers, Resource: "pods", Verbs: []string{"create"}}, Lose: faults.LoseCut, Times: 1})
		r.change(`{"spec": {"replicas": 1}}`)
		r.awaitPods(2)
	})
}
