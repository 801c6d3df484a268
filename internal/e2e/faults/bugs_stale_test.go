package faults

import (
	"errors"
	"fmt"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// staleBugs are controllers that act on an outdated cache.
func staleBugs() []*bug {
	return []*bug{{
		name: "A child is created twice, because the cache does not show the first", kind: "stale", like: "argoproj/argo-rollouts#243",
		watched: []string{"configmaps", "pods"}, controller: oneChild,
		steps: []func(*trial){create(), change("any", "thing")},
		report: func(u *trial) {
			if pods := u.listPods(); len(pods) != 1 {
				u.complain("there are %d pods", len(pods))
			}
		},
	}, {
		name: "Claims of an old scale-down are deleted", kind: "stale", like: "pravega/zookeeper-operator#314",
		watched: []string{"configmaps", "persistentvolumeclaims"}, controller: scaling,
		steps:  []func(*trial){create("replicas", "2"), change("replicas", "1"), change("replicas", "2"), fill},
		report: reportLost,
	}, {
		name: "The deletion of a parent hits its successor", kind: "stale", like: "pravega/zookeeper-operator#312",
		watched: []string{"configmaps", "persistentvolumeclaims"}, controller: deleting,
		steps:  []func(*trial){createFinalized, remove, createFinalized, fill},
		report: reportLost,
	}, {
		name: "A rolling restart deletes a second pod", kind: "stale", like: "opensearch-project/opensearch-k8s-operator#1471",
		watched: []string{"configmaps", "pods"}, controller: rolling,
		steps:  []func(*trial){createQuorum, change("version", "2"), change("any", "thing"), replacePods},
		report: reportQuorum,
	}}
}

// oneChild creates a pod with a generated name if there is none. The bug: it looks for one in the cache. When fixed, it
// reads from the server before it creates a pod.
func oneChild(m *manager, fixed bool) func(string) error {
	return func(name string) error {
		parent := cached[corev1.ConfigMap](m, name)
		if parent == nil || len(children[corev1.Pod](m, name)) > 0 {
			return nil
		}
		if fixed {
			if list, err := m.pods().List(m, metav1.ListOptions{LabelSelector: "of=" + name}); err != nil || len(list.Items) > 0 {
				return err
			}
		}
		pod := newPod(owned("", name, parent.UID))
		pod.GenerateName = name + "-"
		_, err := m.pods().Create(m, pod, metav1.CreateOptions{})
		return err
	}
}

// scaling creates a claim for each replica and deletes the others. The bug: the number of replicas may be outdated.
// When fixed, it reads from the server before it deletes a claim.
func scaling(m *manager, fixed bool) func(string) error {
	return func(name string) error {
		parent := cached[corev1.ConfigMap](m, name)
		if parent == nil {
			return nil
		}
		replicas := parent.Data["replicas"]
		claim := func(i int) string { return fmt.Sprintf("%s-%d", name, i) }
		wanted, err := strconv.Atoi(replicas)
		for i := 0; i < wanted && err == nil; i++ {
			if cached[corev1.PersistentVolumeClaim](m, claim(i)) == nil {
				_, err = m.claims().Create(m, newClaim(owned(claim(i), name, parent.UID)), metav1.CreateOptions{})
				err = unless(exists, err)
			}
		}
		for i := wanted; cached[corev1.PersistentVolumeClaim](m, claim(i)) != nil && err == nil; i++ {
			if fixed {
				now, err := m.maps().Get(m, name, metav1.GetOptions{})
				if err != nil {
					return err
				}
				if now.Data["replicas"] != replicas {
					return errors.New("the cache is behind")
				}
			}
			err = unless(gone, m.claims().Delete(m, claim(i), metav1.DeleteOptions{}))
		}
		return err
	}
}

// deleting deletes the claim of a deleted parent and then removes the parent's finalizer. The bug: it identifies the
// claim by its name, which the claim of the next parent also has. When fixed, it reads the claim from the server and
// compares UIDs.
func deleting(m *manager, fixed bool) func(string) error {
	return func(name string) error {
		parent := cached[corev1.ConfigMap](m, name)
		if parent == nil {
			return nil
		}
		if parent.DeletionTimestamp == nil {
			if cached[corev1.PersistentVolumeClaim](m, name) != nil {
				return nil
			}
			_, err := m.claims().Create(m, newClaim(owned(name, name, parent.UID)), metav1.CreateOptions{})
			return err
		}
		options, theirs := metav1.DeleteOptions{}, true
		if fixed {
			claim, err := m.claims().Get(m, name, metav1.GetOptions{})
			if unless(gone, err) != nil {
				return err
			}
			options, theirs = this(claim), err == nil && claim.Labels["uid"] == string(parent.UID)
		}
		if theirs {
			if err := unless(gone, m.claims().Delete(m, name, options)); err != nil {
				return err
			}
		}
		parent.Finalizers = nil
		_, err := m.maps().Update(m, parent, metav1.UpdateOptions{})
		return unless(gone, err)
	}
}

// quorum is the number of pods, of the three of createQuorum, that must exist.
const quorum = 2

// createQuorum is the step in which the user creates a parent and three pods.
func createQuorum(u *trial) {
	create("version", "1")(u)
	replacePods(u)
}

// replacePods is the step in which missing pods are created again in the parent's version.
func replacePods(u *trial) {
	reportQuorum(u)
	parent := u.parent()
	for i := range 3 {
		meta := owned(fmt.Sprintf("%s-%d", db, i), db, parent.UID)
		meta.Labels["version"] = parent.Data["version"]
		_, err := u.pods().Create(u, newPod(meta), metav1.CreateOptions{})
		u.ok(unless(exists, err))
	}
}

// reportQuorum complains if fewer pods than the quorum are left, but some.
func reportQuorum(u *trial) {
	if n := len(u.listPods()); n > 0 && n < quorum {
		u.complain("only %d pods are left", n)
	}
}

// rolling deletes pods of old versions, one after the other. The bug: the cache may still have pods that it has
// deleted. When fixed, it reads from the server before it deletes a pod.
func rolling(m *manager, fixed bool) func(string) error {
	return func(name string) error {
		parent, pods := cached[corev1.ConfigMap](m, name), children[corev1.Pod](m, name)
		if parent == nil || len(pods) <= quorum {
			return nil
		}
		if fixed {
			if list, err := m.pods().List(m, metav1.ListOptions{LabelSelector: "of=" + name}); err != nil || len(list.Items) <= quorum {
				return err
			}
		}
		for _, pod := range pods {
			if pod.Labels["version"] == parent.Data["version"] {
				continue
			}
			if err := m.pods().Delete(m, pod.Name, this(pod)); !gone(err) {
				return err
			}
		}
		return nil
	}
}
