package cluster

import (
	"context"
	"fmt"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/util/retry"
	"k8s.io/utils/ptr"
)

// volume makes a volume of a class that is on one node, or, for node "", on all. It goes
// when the test ends.
func (r *running) volume(t *testing.T, name, class, node string) {
	t.Helper()
	volume := &corev1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: corev1.PersistentVolumeSpec{
			Capacity:    corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")},
			AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}, StorageClassName: class,
			PersistentVolumeReclaimPolicy: corev1.PersistentVolumeReclaimRetain,
			PersistentVolumeSource:        corev1.PersistentVolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: "/data"}},
		},
	}
	if node != "" {
		volume.Spec.PersistentVolumeSource = corev1.PersistentVolumeSource{Local: &corev1.LocalVolumeSource{Path: "/data"}}
		volume.Spec.NodeAffinity = &corev1.VolumeNodeAffinity{Required: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{
			MatchExpressions: []corev1.NodeSelectorRequirement{{Key: corev1.LabelHostname, Operator: corev1.NodeSelectorOpIn, Values: []string{node}}},
		}}}}
	}
	volumes := r.client.CoreV1().PersistentVolumes()
	_, err := volumes.Create(t.Context(), volume, metav1.CreateOptions{})
	must(t, err)
	t.Cleanup(func() {
		must(t, volumes.Delete(context.Background(), name, metav1.DeleteOptions{}))
	})
}

// waiting creates a storage class whose volumes are bound when the first pod is scheduled.
func (r *running) waiting(t *testing.T, name string) {
	t.Helper()
	classes := r.client.StorageV1().StorageClasses()
	_, err := classes.Create(t.Context(), &storagev1.StorageClass{
		ObjectMeta: metav1.ObjectMeta{Name: name}, Provisioner: "kubernetes.io/no-provisioner",
		VolumeBindingMode: ptr.To(storagev1.VolumeBindingWaitForFirstConsumer),
	}, metav1.CreateOptions{})
	must(t, err)
	t.Cleanup(func() { must(t, classes.Delete(context.Background(), name, metav1.DeleteOptions{})) })
}

func claim(name, class string) corev1.PersistentVolumeClaim {
	return corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: corev1.PersistentVolumeClaimSpec{
			AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}, StorageClassName: &class,
			Resources: corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")}},
		},
	}
}

// testClaims binds one claim at once, and one when a pod is scheduled that uses it, which
// goes to where the volume is. A claim in use is not deleted before its pod.
func testClaims(t *testing.T, r *running, ns string) {
	claims, pods := r.client.CoreV1().PersistentVolumeClaims(ns), r.client.CoreV1().Pods(ns)
	r.waiting(t, "claims-waiting")
	r.volume(t, "claims-any", "", "")
	r.volume(t, "claims-local", "claims-waiting", "node-7")
	for name, class := range map[string]string{"any": "", "local": "claims-waiting"} {
		c := claim(name, class)
		_, err := claims.Create(t.Context(), &c, metav1.CreateOptions{})
		must(t, err)
	}
	bound := func(name string) {
		t.Helper()
		eventually(t, name+" is bound", func() error {
			c, err := claims.Get(t.Context(), name, metav1.GetOptions{})
			if err == nil && (c.Status.Phase != corev1.ClaimBound || c.Spec.VolumeName != "claims-"+name) {
				err = fmt.Errorf("to %q: %+v", c.Spec.VolumeName, c.Status)
			}
			return err
		})
	}
	bound("any")
	if c, err := claims.Get(t.Context(), "local", metav1.GetOptions{}); err != nil || c.Status.Phase != corev1.ClaimPending {
		t.Errorf("before a pod uses it: %+v %v", c.Status, err)
	}
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "user"}, Spec: template(nil).Spec}
	pod.Spec.Volumes = []corev1.Volume{{Name: "v", VolumeSource: corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "local"}}}}
	_, err := pods.Create(t.Context(), pod, metav1.CreateOptions{})
	must(t, err)
	bound("local")
	eventually(t, "the pod runs where its volume is", func() error {
		p, err := pods.Get(t.Context(), "user", metav1.GetOptions{})
		if err == nil && (p.Status.Phase != corev1.PodRunning || p.Spec.NodeName != "node-7") {
			err = fmt.Errorf("on %q: %s", p.Spec.NodeName, p.Status.Phase)
		}
		return err
	})
	must(t, claims.Delete(t.Context(), "local", metav1.DeleteOptions{}))
	if c, err := claims.Get(t.Context(), "local", metav1.GetOptions{}); err != nil || c.DeletionTimestamp == nil {
		t.Errorf("a claim in use is deleted: %v", err)
	}
	must(t, pods.Delete(t.Context(), "user", metav1.DeleteOptions{}))
	eventually(t, "the claim is gone", func() error {
		_, err := claims.Get(t.Context(), "local", metav1.GetOptions{})
		if err == nil {
			return fmt.Errorf("the claim still exists")
		}
		return ignore(err, apierrors.IsNotFound)
	})
	eventually(t, "the volume is released", func() error {
		v, err := r.client.CoreV1().PersistentVolumes().Get(t.Context(), "claims-local", metav1.GetOptions{})
		if err == nil && v.Status.Phase != corev1.VolumeReleased {
			err = fmt.Errorf("the volume is %s", v.Status.Phase)
		}
		return err
	})
}

// testStatefulSet creates pods one after the other, each with its own volume, updates them from the last to the
// first, and scales down.
func testStatefulSet(t *testing.T, r *running, ns string) {
	const replicas = 5
	r.waiting(t, "sets-waiting")
	for i := range replicas {
		r.volume(t, fmt.Sprintf("sets-%d", i), "sets-waiting", fmt.Sprintf("node-%d", i))
	}
	labels, selector := labelled("db")
	_, err := r.client.CoreV1().Services(ns).Create(t.Context(), &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: "db"},
		Spec:       corev1.ServiceSpec{ClusterIP: corev1.ClusterIPNone, Selector: labels},
	}, metav1.CreateOptions{})
	must(t, err)
	sets := r.client.AppsV1().StatefulSets(ns)
	set, err := sets.Create(t.Context(), &appsv1.StatefulSet{
		ObjectMeta: metav1.ObjectMeta{Name: "db"},
		Spec: appsv1.StatefulSetSpec{
			ServiceName: "db", Replicas: ptr.To[int32](replicas), Selector: selector, Template: template(labels),
			VolumeClaimTemplates: []corev1.PersistentVolumeClaim{claim("data", "sets-waiting")},
		},
	}, metav1.CreateOptions{})
	must(t, err)
	settled := func(want int32) {
		t.Helper()
		eventually(t, fmt.Sprintf("the set has %d pods", want), func() error {
			set, err = sets.Get(t.Context(), "db", metav1.GetOptions{})
			if err != nil {
				return err
			}
			if s := set.Status; s.ObservedGeneration != set.Generation || s.Replicas != want || s.AvailableReplicas != want || s.CurrentRevision != s.UpdateRevision {
				return fmt.Errorf("status %+v", s)
			}
			return nil
		})
	}
	change := func(change func()) {
		t.Helper()
		must(t, retry.RetryOnConflict(retry.DefaultBackoff, func() error {
			if set, err = sets.Get(t.Context(), "db", metav1.GetOptions{}); err != nil {
				return err
			}
			change()
			_, err = sets.Update(t.Context(), set, metav1.UpdateOptions{})
			return err
		}))
	}
	settled(replicas)
	r.behind(t, ns, "db", replicas)
	nodes := make(map[string]bool)
	for i := range replicas {
		pod, err := r.client.CoreV1().Pods(ns).Get(t.Context(), fmt.Sprintf("db-%d", i), metav1.GetOptions{})
		must(t, err)
		nodes[pod.Spec.NodeName] = true
	}
	if len(nodes) != replicas {
		t.Errorf("the pods are on %v", nodes)
	}
	change(func() { set.Spec.Template.Spec.Containers[0].Image = "image:2" })
	settled(replicas)
	change(func() { set.Spec.Replicas = ptr.To[int32](2) })
	settled(2)
	if claims, err := r.client.CoreV1().PersistentVolumeClaims(ns).List(t.Context(), metav1.ListOptions{}); err != nil || len(claims.Items) != replicas {
		t.Errorf("%d claims are kept: %v", len(claims.Items), err)
	}
}
