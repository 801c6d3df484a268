package cluster

import (
	"context"
	"fmt"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/client-go/util/retry"
	"k8s.io/utils/ptr"
)

func labelled(name string) (map[string]string, *metav1.LabelSelector) {
	labels := map[string]string{"app": name}
	return labels, &metav1.LabelSelector{MatchLabels: labels}
}

// template returns a template of pods with small requests.
func template(labels map[string]string) corev1.PodTemplateSpec {
	return corev1.PodTemplateSpec{
		ObjectMeta: metav1.ObjectMeta{Labels: labels},
		Spec: corev1.PodSpec{Containers: []corev1.Container{{
			Name: "c", Image: "image:1",
			Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("100m")}},
		}}},
	}
}

func (r *running) deploy(t *testing.T, ns, name string, replicas int32) *appsv1.Deployment {
	t.Helper()
	labels, selector := labelled(name)
	made, err := r.client.AppsV1().Deployments(ns).Create(t.Context(), &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec:       appsv1.DeploymentSpec{Replicas: &replicas, Selector: selector, Template: template(labels)},
	}, metav1.CreateOptions{})
	must(t, err)
	return made
}

// change changes a Deployment.
func (r *running) change(t *testing.T, ns, name string, change func(*appsv1.Deployment)) {
	t.Helper()
	deployments := r.client.AppsV1().Deployments(ns)
	must(t, retry.RetryOnConflict(retry.DefaultBackoff, func() error {
		d, err := deployments.Get(t.Context(), name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		change(d)
		_, err = deployments.Update(t.Context(), d, metav1.UpdateOptions{})
		return err
	}))
}

// rolledOut waits until all pods of a Deployment are there, of its newest template.
func (r *running) rolledOut(t *testing.T, ns, name string, replicas int32) {
	t.Helper()
	eventually(t, fmt.Sprintf("%s has %d pods", name, replicas), func() error {
		d, err := r.client.AppsV1().Deployments(ns).Get(t.Context(), name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		if s := d.Status; s.ObservedGeneration < d.Generation || s.Replicas != replicas || s.UpdatedReplicas != replicas || s.AvailableReplicas != replicas {
			return fmt.Errorf("status %+v", s)
		}
		return nil
	})
}

// testDeployment rolls 300 pods out to all nodes, updates them, scales them; a service has
// all of them, and only them, behind it.
func testDeployment(t *testing.T, r *running, ns string) {
	const many = 300
	r.deploy(t, ns, "web", many)
	labels, _ := labelled("web")
	_, err := r.client.CoreV1().Services(ns).Create(t.Context(), &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: "web"},
		Spec:       corev1.ServiceSpec{Selector: labels, Ports: []corev1.ServicePort{{Port: 80}}},
	}, metav1.CreateOptions{})
	must(t, err)
	r.rolledOut(t, ns, "web", many)
	pods, err := r.client.CoreV1().Pods(ns).List(t.Context(), metav1.ListOptions{})
	must(t, err)
	nodes, addresses := make(map[string]int), make(map[string]bool)
	for _, p := range pods.Items {
		nodes[p.Spec.NodeName]++
		addresses[p.Status.PodIP] = true
	}
	if len(pods.Items) != many || len(nodes) != nodesOfTest || len(addresses) != many {
		t.Errorf("%d pods with %d addresses on %d nodes: %v", len(pods.Items), len(addresses), len(nodes), nodes)
	}
	r.behind(t, ns, "web", many)

	r.change(t, ns, "web", func(d *appsv1.Deployment) { d.Spec.Template.Spec.Containers[0].Image = "image:2" })
	r.rolledOut(t, ns, "web", many)
	pods, err = r.client.CoreV1().Pods(ns).List(t.Context(), metav1.ListOptions{FieldSelector: "status.phase=Running"})
	must(t, err)
	for _, p := range pods.Items {
		if image := p.Spec.Containers[0].Image; p.DeletionTimestamp == nil && image != "image:2" {
			t.Errorf("pod %s still has %s", p.Name, image)
		}
	}
	sets, err := r.client.AppsV1().ReplicaSets(ns).List(t.Context(), metav1.ListOptions{})
	must(t, err)
	if len(sets.Items) != 2 {
		t.Errorf("%d replica sets", len(sets.Items))
	}
	for _, size := range []int32{100, 200} {
		// A patch, as kubectl sends. An update would conflict with the writes of the status.
		_, err := r.client.AppsV1().Deployments(ns).Patch(t.Context(), "web", "application/merge-patch+json",
			fmt.Appendf(nil, `{"spec":{"replicas":%d}}`, size), metav1.PatchOptions{}, "scale")
		must(t, err)
		r.rolledOut(t, ns, "web", size)
		r.behind(t, ns, "web", int(size))
	}
}

// behind waits until a service has so many addresses behind it.
func (r *running) behind(t *testing.T, ns, service string, want int) {
	t.Helper()
	eventually(t, fmt.Sprintf("%d addresses are behind %s", want, service), func() error {
		slices, err := r.client.DiscoveryV1().EndpointSlices(ns).List(t.Context(), metav1.ListOptions{LabelSelector: discoveryv1.LabelServiceName + "=" + service})
		if err != nil {
			return err
		}
		ready := make(map[string]bool)
		for _, s := range slices.Items {
			for _, e := range s.Endpoints {
				if ptr.Deref(e.Conditions.Ready, false) {
					ready[e.Addresses[0]] = true
				}
			}
		}
		if len(ready) != want {
			return fmt.Errorf("%d in %d slices", len(ready), len(slices.Items))
		}
		return nil
	})
}

// testDisruption evicts pods as far as a budget allows it, and from a node that is drained.
func testDisruption(t *testing.T, r *running, ns string) {
	const many = 30
	r.deploy(t, ns, "web", many)
	r.rolledOut(t, ns, "web", many)
	_, selector := labelled("web")
	budgets := r.client.PolicyV1().PodDisruptionBudgets(ns)
	budget, err := budgets.Create(t.Context(), &policyv1.PodDisruptionBudget{
		ObjectMeta: metav1.ObjectMeta{Name: "web"},
		Spec:       policyv1.PodDisruptionBudgetSpec{Selector: selector, MinAvailable: ptr.To(intstr.FromInt32(many))},
	}, metav1.CreateOptions{})
	must(t, err)
	allowed := func(want int32) {
		t.Helper()
		eventually(t, fmt.Sprintf("%d disruptions are allowed", want), func() error {
			budget, err = budgets.Get(t.Context(), "web", metav1.GetOptions{})
			if err == nil && (budget.Status.DisruptionsAllowed != want || budget.Status.CurrentHealthy != many || budget.Status.ObservedGeneration != budget.Generation) {
				err = fmt.Errorf("status %+v", budget.Status)
			}
			return err
		})
	}
	evict := func(pod string) error {
		return r.client.PolicyV1().Evictions(ns).Evict(context.Background(), &policyv1.Eviction{ObjectMeta: metav1.ObjectMeta{Name: pod, Namespace: ns}})
	}
	allowed(0)
	pods, err := r.client.CoreV1().Pods(ns).List(t.Context(), metav1.ListOptions{})
	must(t, err)
	victim := pods.Items[0]
	if err := evict(victim.Name); !apierrors.IsTooManyRequests(err) {
		t.Errorf("an eviction that no budget has room for: %v", err)
	}
	budget.Spec.MinAvailable = ptr.To(intstr.FromInt32(many - 5))
	_, err = budgets.Update(t.Context(), budget, metav1.UpdateOptions{})
	must(t, err)
	allowed(5)

	// As kubectl drain does, cordon the node and evict its pods.
	nodes := r.client.CoreV1().Nodes()
	cordon := func(unschedulable bool) {
		t.Helper()
		_, err := nodes.Patch(t.Context(), victim.Spec.NodeName, "application/strategic-merge-patch+json",
			fmt.Appendf(nil, `{"spec":{"unschedulable":%v}}`, unschedulable), metav1.PatchOptions{})
		must(t, err)
	}
	cordon(true)
	for _, p := range pods.Items {
		if p.Spec.NodeName == victim.Spec.NodeName {
			eventually(t, p.Name+" is evicted", func() error {
				return ignore(evict(p.Name), apierrors.IsNotFound)
			})
		}
	}
	eventually(t, "the node is empty", func() error {
		left, err := r.client.CoreV1().Pods(ns).List(t.Context(), metav1.ListOptions{FieldSelector: "spec.nodeName=" + victim.Spec.NodeName})
		if err == nil && len(left.Items) > 0 {
			err = fmt.Errorf("%d pods are left", len(left.Items))
		}
		return err
	})
	r.rolledOut(t, ns, "web", many)
	allowed(5)
	cordon(false)
}

// testDaemonSet has a pod on every node, then on some.
func testDaemonSet(t *testing.T, r *running, ns string) {
	labels, selector := labelled("agent")
	sets := r.client.AppsV1().DaemonSets(ns)
	set, err := sets.Create(t.Context(), &appsv1.DaemonSet{
		ObjectMeta: metav1.ObjectMeta{Name: "agent"},
		Spec: appsv1.DaemonSetSpec{Selector: selector, Template: template(labels), UpdateStrategy: appsv1.DaemonSetUpdateStrategy{
			RollingUpdate: &appsv1.RollingUpdateDaemonSet{MaxUnavailable: ptr.To(intstr.FromString("50%"))},
		}},
	}, metav1.CreateOptions{})
	must(t, err)
	on := func(want int32) {
		t.Helper()
		eventually(t, fmt.Sprintf("the agent is on %d nodes", want), func() error {
			set, err = sets.Get(t.Context(), "agent", metav1.GetOptions{})
			if err != nil {
				return err
			}
			if s := set.Status; s.ObservedGeneration != set.Generation || s.DesiredNumberScheduled != want || s.UpdatedNumberScheduled != want || s.NumberAvailable != want || s.NumberMisscheduled != 0 {
				return fmt.Errorf("status %+v", s)
			}
			return nil
		})
	}
	change := func(change func()) {
		t.Helper()
		must(t, retry.RetryOnConflict(retry.DefaultBackoff, func() error {
			if set, err = sets.Get(t.Context(), "agent", metav1.GetOptions{}); err != nil {
				return err
			}
			change()
			_, err = sets.Update(t.Context(), set, metav1.UpdateOptions{})
			return err
		}))
	}
	on(nodesOfTest)
	change(func() { set.Spec.Template.Spec.Containers[0].Image = "image:2" })
	on(nodesOfTest)
	change(func() { set.Spec.Template.Spec.NodeSelector = map[string]string{corev1.LabelTopologyZone: "zone-0"} })
	on((nodesOfTest + zones - 1) / zones)
}
