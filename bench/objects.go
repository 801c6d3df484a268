package bench

import (
	"fmt"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/client-go/kubernetes/scheme"
)

// WebPod returns the i-th of many different pods of web servers, as Deployments create them.
func WebPod(i int) *corev1.Pod { return seededPod(i, SeedConfig{Namespaces: 1, Nodes: 1}) }

// Lease returns the Lease of a node, or of a component with leader election.
func Lease(namespace, name, version string) *coordinationv1.Lease {
	duration, now := int32(40), metav1.NewMicroTime(time.Now())
	lease := &coordinationv1.Lease{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: namespace, ResourceVersion: version},
		Spec:       coordinationv1.LeaseSpec{HolderIdentity: &name, LeaseDurationSeconds: &duration, RenewTime: &now},
	}
	if namespace == corev1.NamespaceNodeLease {
		lease.OwnerReferences = []metav1.OwnerReference{{APIVersion: "v1", Kind: "Node", Name: name, UID: "3b0c3b0e-9d1e-4b43-9a6e-0f6f6c1d2a11"}}
	}
	return lease
}

// PodEvent returns an Event that a component reports about a pod.
func PodEvent(name, namespace, pod, reason, component string) *corev1.Event {
	now := metav1.NewTime(time.Now().Truncate(time.Second))
	return &corev1.Event{
		ObjectMeta:     metav1.ObjectMeta{Name: name, Namespace: namespace},
		InvolvedObject: corev1.ObjectReference{Kind: "Pod", APIVersion: "v1", Namespace: namespace, Name: pod, UID: "9d1e3b0c-3b0e-4b43-9a6e-0f6f6c1d2a11", FieldPath: "spec.containers{web}"},
		Reason:         reason, Type: corev1.EventTypeNormal, Count: 1, FirstTimestamp: now, LastTimestamp: now,
		Message: `Container image "registry.example/shop/web" already present on machine`,
		Source:  corev1.EventSource{Component: component}, ReportingController: component,
	}
}

// Binding returns a scheduler's binding of a pod to a node.
func Binding(namespace, pod, node string) *corev1.Binding {
	return &corev1.Binding{
		ObjectMeta: metav1.ObjectMeta{Name: pod, Namespace: namespace},
		Target:     corev1.ObjectReference{Kind: "Node", Name: node},
	}
}

// Deployment returns a Deployment with pod as its template. It changes pod's labels.
func Deployment(name string, pod *corev1.Pod, replicas int32) *appsv1.Deployment {
	labels := map[string]string{"app.kubernetes.io/name": name}
	pod.Labels["app.kubernetes.io/name"] = name
	return &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: pod.Namespace, Labels: labels},
		Spec: appsv1.DeploymentSpec{
			Replicas: &replicas, Selector: &metav1.LabelSelector{MatchLabels: labels},
			Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: pod.Labels, Annotations: pod.Annotations}, Spec: pod.Spec},
		},
	}
}

// NodeHeartbeat returns the patch that a kubelet sends when a node's status has not changed for some time.
func NodeHeartbeat(at time.Time) map[string]any {
	type condition struct {
		Type              corev1.NodeConditionType `json:"type"`
		LastHeartbeatTime metav1.Time              `json:"lastHeartbeatTime"`
	}
	now := metav1.NewTime(at.Truncate(time.Second))
	var conditions []condition
	for _, c := range nodeConditions(now) {
		conditions = append(conditions, condition{c.Type, now})
	}
	return map[string]any{
		"metadata": map[string]any{"annotations": map[string]string{"node.alpha.kubernetes.io/ttl": "0"}},
		"status":   map[string]any{"conditions": conditions},
	}
}

// EncodeProtobuf encodes an object of a built-in type as clients send it.
func EncodeProtobuf(obj runtime.Object) []byte {
	kinds, _, err := scheme.Scheme.ObjectKinds(obj)
	if err != nil {
		panic(err) // cannot happen for types in client-go's scheme
	}
	info, _ := runtime.SerializerInfoForMediaType(scheme.Codecs.SupportedMediaTypes(), Protobuf)
	body, err := runtime.Encode(scheme.Codecs.EncoderForVersion(info.Serializer, schema.GroupVersion{Group: kinds[0].Group, Version: kinds[0].Version}), obj)
	if err != nil {
		panic(err)
	}
	return body
}

// Node returns a node whose kubelet and cloud controller have set all fields.
func Node(name string) *corev1.Node {
	now := metav1.NewTime(time.Now().Truncate(time.Second))
	resources := corev1.ResourceList{
		corev1.ResourceCPU: resource.MustParse("16"), corev1.ResourceMemory: resource.MustParse("64Gi"), corev1.ResourcePods: resource.MustParse("110"),
		corev1.ResourceEphemeralStorage: resource.MustParse("200Gi"), "hugepages-1Gi": resource.MustParse("0"), "hugepages-2Mi": resource.MustParse("0"),
	}
	node := &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: name,
			Labels: map[string]string{
				"kubernetes.io/hostname": name, "kubernetes.io/os": "linux", "kubernetes.io/arch": "amd64", "node.kubernetes.io/instance-type": "c5.4xlarge",
				"topology.kubernetes.io/region": "eu-west-1", "topology.kubernetes.io/zone": "eu-west-1a",
			},
			Annotations: map[string]string{"node.alpha.kubernetes.io/ttl": "0", "volumes.kubernetes.io/controller-managed-attach-detach": "true"},
		},
		Spec: corev1.NodeSpec{PodCIDR: "10.244.7.0/24", PodCIDRs: []string{"10.244.7.0/24"}, ProviderID: "example:///" + name},
		Status: corev1.NodeStatus{
			Capacity: resources, Allocatable: resources, Conditions: nodeConditions(now),
			Addresses:       []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: "10.1.2.3"}, {Type: corev1.NodeHostName, Address: name}},
			DaemonEndpoints: corev1.NodeDaemonEndpoints{KubeletEndpoint: corev1.DaemonEndpoint{Port: 10250}},
			NodeInfo: corev1.NodeSystemInfo{MachineID: "ec2b7f1e6c1d2a11", SystemUUID: "ec2b7f1e-6c1d", BootID: "3b0c3b0e", KernelVersion: "6.1.0", OSImage: "Debian GNU/Linux 12",
				ContainerRuntimeVersion: "containerd://2.1.0", KubeletVersion: "v1.36.3", OperatingSystem: "linux", Architecture: "amd64"},
		},
	}
	for i := range 30 {
		image := fmt.Sprintf("registry.example/shop/service-%d", i)
		node.Status.Images = append(node.Status.Images, corev1.ContainerImage{SizeBytes: int64(100 << 20),
			Names: []string{image + "@sha256:9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08", image + ":1.2.3"}})
	}
	return node
}

func nodeConditions(now metav1.Time) []corev1.NodeCondition {
	var conditions []corev1.NodeCondition
	for _, c := range []struct {
		kind   corev1.NodeConditionType
		status corev1.ConditionStatus
		reason string
	}{
		{corev1.NodeMemoryPressure, corev1.ConditionFalse, "KubeletHasSufficientMemory"}, {corev1.NodeDiskPressure, corev1.ConditionFalse, "KubeletHasNoDiskPressure"},
		{corev1.NodePIDPressure, corev1.ConditionFalse, "KubeletHasSufficientPID"}, {corev1.NodeReady, corev1.ConditionTrue, "KubeletReady"},
	} {
		conditions = append(conditions, corev1.NodeCondition{Type: c.kind, Status: c.status, Reason: c.reason, Message: "kubelet reports " + c.reason, LastHeartbeatTime: now, LastTransitionTime: now})
	}
	return conditions
}

func seededPod(i int, c SeedConfig) *corev1.Pod {
	app := appName(i)
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Name:      podName(i),
			Namespace: fmt.Sprintf(namespaceFormat, i%c.Namespaces),
			Labels: map[string]string{
				"app.kubernetes.io/name": app, "app.kubernetes.io/instance": app + "-prod", "app.kubernetes.io/component": "web",
				"app.kubernetes.io/managed-by": "Helm", "pod-template-hash": "7d4b9c6f8", "topology.kubernetes.io/zone": fmt.Sprintf("zone-%d", i%3),
			},
			Annotations: map[string]string{
				"prometheus.io/scrape": "true", "prometheus.io/port": "9090", "prometheus.io/path": "/metrics",
				"checksum/config": "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08",
			},
			OwnerReferences: []metav1.OwnerReference{{
				APIVersion: "apps/v1", Kind: "ReplicaSet", Name: app + "-7d4b9c6f8",
				UID: "0d6f3a52-6a3e-4f5b-9a53-0c9b7a3f1e11", Controller: new(true), BlockOwnerDeletion: new(true),
			}},
		},
		Spec: corev1.PodSpec{
			NodeName:                     c.nodeName(i),
			ServiceAccountName:           "default",
			AutomountServiceAccountToken: new(false),
			SecurityContext:              &corev1.PodSecurityContext{RunAsUser: new(int64(65532)), RunAsNonRoot: new(true), FSGroup: new(int64(65532))},
			Containers:                   []corev1.Container{webContainer("web", 8080)},
			Volumes: []corev1.Volume{
				{Name: "config", VolumeSource: corev1.VolumeSource{ConfigMap: &corev1.ConfigMapVolumeSource{LocalObjectReference: corev1.LocalObjectReference{Name: app + "-config"}}}},
				{Name: "tmp", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}},
			},
			Tolerations: []corev1.Toleration{
				{Key: corev1.TaintNodeNotReady, Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoExecute, TolerationSeconds: new(int64(300))},
				{Key: corev1.TaintNodeUnreachable, Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoExecute, TolerationSeconds: new(int64(300))},
			},
		},
	}
}

func webContainer(name string, port int32) corev1.Container {
	probe := func(path string) *corev1.Probe {
		return &corev1.Probe{
			ProbeHandler:   corev1.ProbeHandler{HTTPGet: &corev1.HTTPGetAction{Path: path, Port: intstr.FromString(name)}},
			TimeoutSeconds: 1, PeriodSeconds: 10, FailureThreshold: 3, SuccessThreshold: 1,
		}
	}
	field := func(name, path string) corev1.EnvVar {
		return corev1.EnvVar{Name: name, ValueFrom: &corev1.EnvVarSource{FieldRef: &corev1.ObjectFieldSelector{APIVersion: "v1", FieldPath: path}}}
	}
	return corev1.Container{
		Name:  name,
		Image: "registry.example/shop/" + name + "@sha256:9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08",
		Args:  []string{"--listen=:8080", "--log-format=json", "--shutdown-grace=20s"},
		Ports: []corev1.ContainerPort{{Name: name, ContainerPort: port, Protocol: corev1.ProtocolTCP}, {Name: name + "-metrics", ContainerPort: port + 1, Protocol: corev1.ProtocolTCP}},
		Env: []corev1.EnvVar{
			field("POD_NAME", "metadata.name"), field("POD_NAMESPACE", "metadata.namespace"), field("NODE_NAME", "spec.nodeName"),
			{Name: "DATABASE_HOST", Value: "postgres.data.svc.cluster.local"}, {Name: "CACHE_HOST", Value: "redis.data.svc.cluster.local"},
		},
		Resources: corev1.ResourceRequirements{
			Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("100m"), corev1.ResourceMemory: resource.MustParse("128Mi")},
			Limits:   corev1.ResourceList{corev1.ResourceMemory: resource.MustParse("256Mi")},
		},
		LivenessProbe:  probe("/healthz"),
		ReadinessProbe: probe("/readyz"),
		VolumeMounts:   []corev1.VolumeMount{{Name: "config", MountPath: "/etc/app", ReadOnly: true}, {Name: "tmp", MountPath: "/tmp"}},
	}
}

// RunningStatus returns the status that a kubelet reports for a running pod.
func RunningStatus(pod *corev1.Pod) corev1.PodStatus {
	now := metav1.NewTime(time.Now().Truncate(time.Second))
	status := corev1.PodStatus{
		Phase: corev1.PodRunning, StartTime: &now, QOSClass: corev1.PodQOSBurstable,
		HostIP: "10.1.2.3", HostIPs: []corev1.HostIP{{IP: "10.1.2.3"}}, PodIP: "10.244.7.19", PodIPs: []corev1.PodIP{{IP: "10.244.7.19"}},
	}
	for _, kind := range []corev1.PodConditionType{corev1.PodReadyToStartContainers, corev1.PodInitialized, corev1.PodReady, corev1.ContainersReady, corev1.PodScheduled} {
		status.Conditions = append(status.Conditions, corev1.PodCondition{Type: kind, Status: corev1.ConditionTrue, LastTransitionTime: now})
	}
	for _, c := range pod.Spec.Containers {
		status.ContainerStatuses = append(status.ContainerStatuses, corev1.ContainerStatus{
			Name: c.Name, Image: c.Image, ImageID: c.Image, Ready: true, Started: new(true),
			ContainerID: "containerd://4c1f6f5f1f0e6a0f2b7a8d1c2c8b1a2f9f86d081884c7d659a2feaa0c55ad015",
			State:       corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: now}},
		})
	}
	return status
}
