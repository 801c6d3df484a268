package faults

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// db is the name of the parent in all trials: a ConfigMap, whose data are the specification and whose annotations are
// the status.
const db = "db"

// finalizer keeps a parent or a pod until the controller has handled its deletion.
const finalizer = "example.com/finalizer"

// owned returns the metadata of a child.
func owned(name, parent string, uid types.UID) metav1.ObjectMeta {
	return metav1.ObjectMeta{Name: name, Labels: map[string]string{"of": parent, "uid": string(uid)}, Annotations: map[string]string{}}
}

func newPod(meta metav1.ObjectMeta) *corev1.Pod {
	return &corev1.Pod{ObjectMeta: meta, Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "main", Image: "main"}}}}
}

func newClaim(meta metav1.ObjectMeta) *corev1.PersistentVolumeClaim {
	return &corev1.PersistentVolumeClaim{ObjectMeta: meta, Spec: corev1.PersistentVolumeClaimSpec{
		AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
		Resources:   corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")}},
	}}
}

// this returns the options for deleting this object, and no other with its name.
func this(o metav1.Object) metav1.DeleteOptions {
	return *metav1.NewPreconditionDeleteOptions(string(o.GetUID()))
}

// create returns a step in which the user creates the parent. data has keys and values, alternating.
func create(data ...string) func(*trial) {
	return func(u *trial) {
		m := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: db}, Data: map[string]string{}}
		for i := 0; i < len(data); i += 2 {
			m.Data[data[i]] = data[i+1]
		}
		_, err := u.maps().Create(u, m, metav1.CreateOptions{})
		u.ok(err)
	}
}

// createFinalized is the step in which the user creates a parent with the finalizer, unless the last one still exists.
func createFinalized(u *trial) {
	_, err := u.maps().Create(u, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: db, Finalizers: []string{finalizer}}}, metav1.CreateOptions{})
	u.ok(unless(exists, err))
}

// change returns a step in which the user sets a key of the parent.
func change(key, value string) func(*trial) {
	return func(u *trial) {
		patch := fmt.Sprintf(`{"data": {%q: %q}}`, key, value)
		_, err := u.maps().Patch(u, db, types.MergePatchType, []byte(patch), metav1.PatchOptions{})
		u.ok(err)
	}
}

// remove is the step in which the user deletes the parent.
func remove(u *trial) { u.ok(u.maps().Delete(u, db, metav1.DeleteOptions{})) }

// parent returns the parent, nil if there is none.
func (u *trial) parent() *corev1.ConfigMap {
	u.t.Helper()
	m, err := u.maps().Get(u, db, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	u.ok(err)
	return m
}

// listClaims returns the claims by name.
func (u *trial) listClaims() map[string]corev1.PersistentVolumeClaim {
	u.t.Helper()
	list, err := u.claims().List(u, metav1.ListOptions{})
	u.ok(err)
	byName := make(map[string]corev1.PersistentVolumeClaim)
	for _, c := range list.Items {
		byName[c.Name] = c
	}
	return byName
}

// listPods returns the pods.
func (u *trial) listPods() []corev1.Pod {
	u.t.Helper()
	list, err := u.pods().List(u, metav1.ListOptions{})
	u.ok(err)
	return list.Items
}

// fill is the step in which programs of the user write data into the parent's claims.
func fill(u *trial) {
	parent := u.parent()
	if parent == nil || parent.DeletionTimestamp != nil {
		return
	}
	for name, c := range u.listClaims() {
		u.data[name] = string(c.UID)
	}
}

// reportLost complains of claims that were deleted with their data.
func reportLost(u *trial) {
	now := u.listClaims()
	for name, uid := range u.data {
		if string(now[name].UID) != uid {
			u.complain("claim %s was deleted with its data", name)
		}
	}
}
