package rollout

import (
	"fmt"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// namespace holds the Deployments.
const namespace = "rollout"

// each is the number of pods of a Deployment.
const each = 100

// nodeObject is the i-th node.
func nodeObject(i int) *corev1.Node {
	name := fmt.Sprintf("node-%d", i)
	size := corev1.ResourceList{
		corev1.ResourceCPU: resource.MustParse("32"), corev1.ResourceMemory: resource.MustParse("256Gi"), corev1.ResourcePods: resource.MustParse("110"),
	}
	return &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{
			corev1.LabelHostname: name, corev1.LabelOSStable: "linux", corev1.LabelArchStable: "amd64", corev1.LabelTopologyZone: fmt.Sprintf("zone-%d", i%3),
		}},
		Status: corev1.NodeStatus{Capacity: size, Allocatable: size},
	}
}

// deployment is the i-th Deployment, with the pod template of a typical service.
func deployment(i, pods int) *appsv1.Deployment {
	name, replicas := fmt.Sprintf("web-%d", i), int32(pods)
	labels := map[string]string{"app.kubernetes.io/name": name, "app.kubernetes.io/part-of": "shop"}
	request := corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("100m"), corev1.ResourceMemory: resource.MustParse("128Mi")}
	return &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: namespace, Labels: labels},
		Spec: appsv1.DeploymentSpec{
			Replicas: &replicas, Selector: &metav1.LabelSelector{MatchLabels: labels},
			Template: corev1.PodTemplateSpec{
				ObjectMeta: metav1.ObjectMeta{Labels: labels, Annotations: map[string]string{"prometheus.io/scrape": "true", "prometheus.io/port": "8080"}},
				Spec: corev1.PodSpec{Containers: []corev1.Container{{
					Name: "web", Image: image(1), Resources: corev1.ResourceRequirements{Requests: request, Limits: request},
					Ports: []corev1.ContainerPort{{Name: "http", ContainerPort: 8080}},
					Env:   []corev1.EnvVar{{Name: "LOG_FORMAT", Value: "json"}, {Name: "POD", ValueFrom: &corev1.EnvVarSource{FieldRef: &corev1.ObjectFieldSelector{FieldPath: "metadata.name"}}}},
				}}},
			},
		},
	}
}

func image(version int) string { return fmt.Sprintf("registry.example/shop/web:1.%d", version) }

// rolledOut reports whether all pods of a Deployment are available and have its current template.
func rolledOut(d *appsv1.Deployment) bool {
	s, wanted := d.Status, *d.Spec.Replicas
	return s.ObservedGeneration >= d.Generation && s.Replicas == wanted && s.UpdatedReplicas == wanted && s.AvailableReplicas == wanted
}

// clusterAdmin returns a binding of cluster-admin to a user. kwok's own roles grant it nearly as much.
func clusterAdmin(name string) *rbacv1.ClusterRoleBinding {
	return &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "cluster-admin"},
		Subjects:   []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind, Name: name}},
	}
}
