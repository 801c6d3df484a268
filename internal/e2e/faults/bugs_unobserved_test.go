package faults

import (
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// unobservedBugs are controllers that rely on seeing a state that may be over before they see it.
func unobservedBugs() []*bug {
	return []*bug{{
		name: "A parent that was deleted and created again is not noticed", kind: "unobserved", like: "kubevirt/ssp-operator#145",
		watched: []string{"configmaps", "persistentvolumeclaims"}, controller: remembering,
		steps: []func(*trial){create(), remove, create()},
		report: func(u *trial) {
			if claim := u.listClaims()[db]; claim.Labels["uid"] != string(u.parent().UID) {
				u.complain("the claim belongs to the old parent")
			}
		},
	}, {
		name: "The claim of a pod is kept, because its termination was not seen", kind: "unobserved", like: "instaclustr/cassandra-operator#398",
		watched: []string{"pods", "persistentvolumeclaims"}, controller: releasing,
		steps: []func(*trial){createPods, terminatePod, endPod},
		report: func(u *trial) {
			if claims := u.listClaims(); len(claims) != 1 {
				u.complain("there are %d claims", len(claims))
			}
		},
	}, {
		name: "A failed pod is not counted, because it was deleted first", kind: "unobserved", like: "kubernetes/kubernetes#28486",
		watched: []string{"configmaps", "pods"}, controller: counting,
		steps: []func(*trial){create(), failPods, deleteFailed},
		report: func(u *trial) {
			if counted := len(strings.Fields(u.parent().Annotations["failed"])); counted != u.failed {
				u.complain("%d of %d failed pods are counted", counted, u.failed)
			}
		},
	}, {
		name: "A change during a restart is not noticed", kind: "unobserved", like: "stakater/Reloader#814",
		watched: []string{"configmaps", "pods"}, controller: reloading,
		steps: []func(*trial){createReloaded, change("config", "2"), change("any", "thing")},
		report: func(u *trial) {
			if pods := u.listPods(); pods[0].Annotations["config"] != "2" {
				u.complain("the pod was not reloaded")
			}
		},
	}}
}

// remembering creates a claim for a parent and deletes it with the parent. The bug: it remembers the names of parents
// whose claims it has created. When fixed, it compares the UID in the claim with the parent's.
func remembering(m *manager, fixed bool) func(string) error {
	done := make(map[string]bool)
	return func(name string) error {
		parent, claim := cached[corev1.ConfigMap](m, name), cached[corev1.PersistentVolumeClaim](m, name)
		if claim != nil && (parent == nil || fixed && claim.Labels["uid"] != string(parent.UID)) {
			delete(done, name)
			return unless(gone, m.claims().Delete(m, name, this(claim)))
		}
		if parent == nil || claim != nil && fixed || done[name] && !fixed {
			return nil
		}
		_, err := m.claims().Create(m, newClaim(owned(name, name, parent.UID)), metav1.CreateOptions{})
		done[name] = err == nil
		return err
	}
}

// releasing creates a claim for each pod and deletes it with the pod. The bug: it does so when it sees a terminating
// pod. When fixed, it deletes claims without a pod.
func releasing(m *manager, fixed bool) func(string) error {
	return func(name string) error {
		living := make(map[string]bool)
		for _, pod := range children[corev1.Pod](m, name) {
			claim := cached[corev1.PersistentVolumeClaim](m, pod.Name)
			living[pod.Name] = pod.DeletionTimestamp == nil
			var err error
			switch {
			case claim == nil && living[pod.Name]:
				_, err = m.claims().Create(m, newClaim(owned(pod.Name, name, pod.UID)), metav1.CreateOptions{})
				err = unless(exists, err)
			case claim != nil && !living[pod.Name]:
				err = unless(gone, m.claims().Delete(m, pod.Name, this(claim)))
			}
			if err != nil {
				return err
			}
		}
		for _, claim := range children[corev1.PersistentVolumeClaim](m, name) {
			if fixed && !living[claim.Name] {
				if err := unless(gone, m.claims().Delete(m, claim.Name, this(claim))); err != nil {
					return err
				}
			}
		}
		return nil
	}
}

// createPods is the step in which two pods are created that have a node.
func createPods(u *trial) {
	for i := range 2 {
		pod := newPod(owned(fmt.Sprintf("%s-%d", db, i), db, ""))
		pod.Spec.NodeName = "node"
		_, err := u.pods().Create(u, pod, metav1.CreateOptions{})
		u.ok(err)
	}
}

// terminatePod is the step in which the second pod is deleted, and still terminates on its node.
func terminatePod(u *trial) { u.ok(u.pods().Delete(u, db+"-1", metav1.DeleteOptions{})) }

// endPod is the step in which the node has terminated the pod.
func endPod(u *trial) {
	u.ok(u.pods().Delete(u, db+"-1", *metav1.NewDeleteOptions(0)))
}

// counting runs a pod until it has succeeded, and counts failed pods. The bug: it relies on failed pods to exist until
// it has counted them. When fixed, it gives pods a finalizer.
func counting(m *manager, fixed bool) func(string) error {
	return func(name string) error {
		parent := cached[corev1.ConfigMap](m, name)
		if parent == nil {
			return nil
		}
		counted, active := strings.Fields(parent.Annotations["failed"]), false
		before := len(counted)
		for _, pod := range children[corev1.Pod](m, name) {
			if pod.Status.Phase != corev1.PodFailed {
				active = true
			} else if !slices.Contains(counted, string(pod.UID)) {
				counted = append(counted, string(pod.UID))
			}
		}
		if len(counted) > before {
			parent.Annotations = map[string]string{"failed": strings.Join(counted, " ")}
			if _, err := m.maps().Update(m, parent, metav1.UpdateOptions{}); err != nil {
				return err
			}
		}
		for _, pod := range children[corev1.Pod](m, name) {
			if pod.Status.Phase == corev1.PodFailed && pod.Finalizers != nil {
				pod.Finalizers = nil
				if _, err := m.pods().Update(m, pod, metav1.UpdateOptions{}); err != nil {
					return unless(gone, err)
				}
			}
		}
		if active {
			return nil
		}
		pod := newPod(owned(fmt.Sprintf("%s-%d", name, len(counted)), name, parent.UID))
		if fixed {
			pod.Finalizers = []string{finalizer}
		}
		_, err := m.pods().Create(m, pod, metav1.CreateOptions{})
		return unless(exists, err)
	}
}

// failPods is the step in which the pods fail.
func failPods(u *trial) {
	for _, pod := range u.listPods() {
		pod.Status.Phase = corev1.PodFailed
		_, err := u.pods().UpdateStatus(u, &pod, metav1.UpdateOptions{})
		u.ok(err)
		u.failed++
	}
}

// deleteFailed is the step in which failed pods are deleted, as the pod garbage collector does if there are too many.
func deleteFailed(u *trial) {
	for _, pod := range u.listPods() {
		if pod.Status.Phase == corev1.PodFailed {
			u.ok(u.pods().Delete(u, pod.Name, metav1.DeleteOptions{}))
		}
	}
}

// createReloaded is the step in which the user creates a parent and a pod with its configuration.
func createReloaded(u *trial) {
	create("config", "1")(u)
	pod := newPod(owned(db, db, ""))
	pod.Annotations["config"] = "1"
	_, err := u.pods().Create(u, pod, metav1.CreateOptions{})
	u.ok(err)
}

// reloading updates a pod after a change of its parent's configuration. The bug: it compares the configuration with the
// last one that it remembers. When fixed, it compares it with the pod's.
func reloading(m *manager, fixed bool) func(string) error {
	last := make(map[string]string)
	return func(name string) error {
		parent, pod := cached[corev1.ConfigMap](m, name), cached[corev1.Pod](m, name)
		if parent == nil || pod == nil {
			return nil
		}
		config := parent.Data["config"]
		before, known := last[name]
		if fixed {
			before, known = pod.Annotations["config"], true
		}
		if known && before != config {
			pod.Annotations["config"] = config
			if _, err := m.pods().Update(m, pod, metav1.UpdateOptions{}); err != nil {
				return err
			}
		}
		last[name] = config
		return nil
	}
}
