package faults

import (
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// intermediateBugs are controllers that do not finish their work after a crash between two writes.
func intermediateBugs() []*bug {
	return []*bug{{
		name: "A resize stops half way", kind: "intermediate", like: "rabbitmq/cluster-operator#782",
		watched: []string{"configmaps", "persistentvolumeclaims"}, controller: resizing,
		steps: []func(*trial){create("size", "10"), change("size", "15")},
		report: func(u *trial) {
			if size := u.listClaims()[db].Annotations["size"]; size != "15" {
				u.complain("the claim has size %q", size)
			}
		},
	}, {
		name: "The second of two claims is never created", kind: "intermediate", like: "Percona K8SPXC-896",
		watched: []string{"configmaps", "persistentvolumeclaims"}, controller: twoClaims,
		steps: []func(*trial){create(), change("any", "thing")},
		report: func(u *trial) {
			if claims := u.listClaims(); len(claims) != 2 {
				u.complain("there are %d claims", len(claims))
			}
		},
	}, {
		name: "A child is created twice, because its generated name was not recorded", kind: "intermediate", like: "crossplane/crossplane#1910",
		watched: []string{"configmaps", "pods"}, controller: generatedName,
		steps: []func(*trial){create()},
		report: func(u *trial) {
			if pods := u.listPods(); len(pods) != 1 {
				u.complain("there are %d pods", len(pods))
			}
		},
	}, {
		name: "A finalizer is removed before its clean-up", kind: "intermediate", like: "multigres/multigres-operator#301",
		watched: []string{"configmaps", "persistentvolumeclaims"}, controller: finalizing,
		steps: []func(*trial){createFinalized, remove},
		report: func(u *trial) {
			if claims := u.listClaims(); len(claims) != 0 || u.parent() != nil {
				u.complain("left behind: %d claims", len(claims))
			}
		},
	}}
}

// resizing keeps a claim's size, and the size in a template for claims, equal to the parent's. The bug: it compares
// only the template, which it updates first.
func resizing(m *manager, fixed bool) func(string) error {
	return func(name string) error {
		parent, claim, template := cached[corev1.ConfigMap](m, name), cached[corev1.PersistentVolumeClaim](m, name), cached[corev1.ConfigMap](m, name+"-template")
		if parent == nil {
			return nil
		}
		size := parent.Data["size"]
		if claim == nil {
			claim = newClaim(owned(name, name, parent.UID))
			claim.Annotations["size"] = size
			_, err := m.claims().Create(m, claim, metav1.CreateOptions{})
			return err
		}
		if template == nil {
			template = &corev1.ConfigMap{ObjectMeta: owned(name+"-template", name, parent.UID), Data: map[string]string{"size": size}}
			_, err := m.maps().Create(m, template, metav1.CreateOptions{})
			return err
		}
		if template.Data["size"] == size && (!fixed || claim.Annotations["size"] == size) {
			return nil
		}
		template.Data["size"], claim.Annotations["size"] = size, size
		if _, err := m.maps().Update(m, template, metav1.UpdateOptions{}); err != nil {
			return err
		}
		_, err := m.claims().Update(m, claim, metav1.UpdateOptions{})
		return err
	}
}

// twoClaims creates two claims. The bug: if the first exists, it does not look for the second.
func twoClaims(m *manager, fixed bool) func(string) error {
	return func(name string) error {
		parent := cached[corev1.ConfigMap](m, name)
		if parent == nil || !fixed && cached[corev1.PersistentVolumeClaim](m, name+"-data") != nil {
			return nil
		}
		for _, claim := range []string{name + "-data", name + "-log"} {
			if cached[corev1.PersistentVolumeClaim](m, claim) != nil {
				continue
			}
			if _, err := m.claims().Create(m, newClaim(owned(claim, name, parent.UID)), metav1.CreateOptions{}); err != nil {
				return err
			}
		}
		return nil
	}
}

// generatedName creates a pod with a generated name and records the name in the parent. The bug: after a crash in
// between, it does not know that the pod exists. When fixed, it derives the name from the parent's UID.
func generatedName(m *manager, fixed bool) func(string) error {
	return func(name string) error {
		parent := cached[corev1.ConfigMap](m, name)
		if parent == nil || parent.Annotations["child"] != "" {
			return nil
		}
		pod := newPod(owned("", name, parent.UID))
		if pod.GenerateName = name + "-"; fixed {
			pod.Name = name + "-" + string(parent.UID)
		}
		created, err := m.pods().Create(m, pod, metav1.CreateOptions{})
		if fixed && exists(err) {
			created, err = pod, nil
		}
		if err != nil {
			return err
		}
		parent.Annotations = map[string]string{"child": created.Name}
		_, err = m.maps().Update(m, parent, metav1.UpdateOptions{})
		return err
	}
}

// finalizing deletes the claim of a deleted parent and removes the parent's finalizer. The bug is the order.
func finalizing(m *manager, fixed bool) func(string) error {
	return func(name string) error {
		parent, claim := cached[corev1.ConfigMap](m, name), cached[corev1.PersistentVolumeClaim](m, name)
		switch {
		case parent == nil:
			return nil
		case parent.DeletionTimestamp == nil && claim == nil:
			_, err := m.claims().Create(m, newClaim(owned(name, name, parent.UID)), metav1.CreateOptions{})
			return err
		case parent.DeletionTimestamp == nil:
			return nil
		}
		cleanUp := func() error { return unless(gone, m.claims().Delete(m, name, metav1.DeleteOptions{})) }
		removeFinalizer := func() error {
			parent.Finalizers = nil
			_, err := m.maps().Update(m, parent, metav1.UpdateOptions{})
			return err
		}
		order := []func() error{removeFinalizer, cleanUp}
		if fixed {
			order = []func() error{cleanUp, removeFinalizer}
		}
		for _, do := range order {
			if err := do(); err != nil {
				return err
			}
		}
		return nil
	}
}
