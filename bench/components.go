package bench

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes/scheme"
)

// ComponentsConfig is a workload of the writes that the components of a cluster send: the
// same objects, sizes, verbs and media types, one kind after the other.
type ComponentsConfig struct {
	// Namespace holds the objects. It is created when it does not exist.
	Namespace string
	// Round makes the objects' names differ between runs that must not share objects.
	Round int
	// Objects is how many pods there are, and how often each kind is written; Nodes, how many
	// nodes. Clients is how many requests are under way at a time.
	Objects, Nodes, Clients int
	// Rate is requests per second, 0 for as many as the clients get answered.
	Rate float64
	// Schedule may take the place of Objects and Rate, for each kind: its plan is open, and it
	// does not warm up.
	Schedule Schedule

	versions map[string]string // of Leases, which are never updated blindly, by name
}

// componentWrites are the kinds in the order in which they are sent: later ones write what
// earlier ones made.
var componentWrites = []struct {
	name  string
	call  func(c *ComponentsConfig, i int) call
	looks bool // before, at the versions of Leases
}{
	{"node creation", (*ComponentsConfig).createNode, false},
	{"node status, strategic merge patch", (*ComponentsConfig).patchNodeStatus, false},
	{"Lease creation", (*ComponentsConfig).createLease, false},
	{"Lease renewal, update", (*ComponentsConfig).renewLease, true},
	{"pod creation", (*ComponentsConfig).createPod, false},
	{"binding", (*ComponentsConfig).bind, false},
	{"pod status, strategic merge patch", (*ComponentsConfig).patchPodStatus, false},
	{"pod update", (*ComponentsConfig).updatePod, false},
	{"pod apply", (*ComponentsConfig).applyPod, false},
	{"event creation", (*ComponentsConfig).createEvent, false},
	{"event count, strategic merge patch", (*ComponentsConfig).countEvent, false},
	{"deployment creation", (*ComponentsConfig).createDeployment, false},
	{"deployment status, update", (*ComponentsConfig).updateDeploymentStatus, false},
	{"pod deletion", (*ComponentsConfig).deletePod, false},
}

// ComponentWrites names the kinds of writes, in the order of the results of Components.
func ComponentWrites() []string {
	names := make([]string, len(componentWrites))
	for i, w := range componentWrites {
		names[i] = w.name
	}
	return names
}

// Components sends each kind of write Objects times and returns one Result for each.
// A write of each kind goes before, unmeasured, to an object of its own. Pods are deleted; all
// else that it makes, nodes, Leases, events and deployments, is left behind.
func Components(ctx context.Context, t *Target, c ComponentsConfig) ([]*Result, error) {
	l := loop{ops: c.Objects, clients: c.Clients, rate: c.Rate, schedule: c.Schedule}
	if err := l.bounded(); err != nil {
		return nil, err
	}
	c.Objects = l.total()
	if c.Nodes < 1 {
		return nil, fmt.Errorf("bench: want at least one node, not %d", c.Nodes)
	}
	for _, ns := range []string{c.Namespace, corev1.NamespaceNodeLease} {
		if err := ensureNamespace(ctx, t, ns); err != nil {
			return nil, err
		}
	}
	for _, w := range componentWrites {
		if err := c.look(ctx, t, w.looks); err != nil {
			return nil, err
		}
		if err := t.once(ctx, w.call(&c, c.Objects)); err != nil {
			return nil, err
		}
	}
	var results []*Result
	for _, w := range componentWrites {
		if err := c.look(ctx, t, w.looks); err != nil {
			return results, err
		}
		calls := make([]call, c.Objects) // encoded before the clock runs
		for i := range calls {
			calls[i] = w.call(&c, i)
		}
		result, err := l.measure(ctx, t, w.name, "request", nil, send(func(i int) call { return calls[i] }))
		if err != nil {
			return results, err
		}
		results = append(results, result)
		if result.Interrupted {
			break
		}
	}
	return results, nil
}

// look learns the versions of the Leases if they are needed.
func (c *ComponentsConfig) look(ctx context.Context, t *Target, needed bool) error {
	if !needed {
		return nil
	}
	client, err := t.client("larder-bench")
	if err != nil {
		return err
	}
	leases, err := client.CoordinationV1().Leases(corev1.NamespaceNodeLease).List(ctx, metav1.ListOptions{})
	if err != nil {
		return fmt.Errorf("bench: %w", err)
	}
	c.versions = make(map[string]string, len(leases.Items))
	for _, lease := range leases.Items {
		c.versions[lease.Name] = lease.ResourceVersion
	}
	return nil
}

func (c *ComponentsConfig) pods() string {
	return "/api/v1/namespaces/" + c.Namespace + "/pods"
}

func (c *ComponentsConfig) podName(i int) string {
	return fmt.Sprintf("web-%d-%06d", c.Round, i)
}

// node is the name of the i-th node, which there is once for each write, so that
// concurrent writes do not conflict more than a cluster's own do.
func (c *ComponentsConfig) node(i int) string { return fmt.Sprintf("node-%d-%06d", c.Round, i) }

func (c *ComponentsConfig) createNode(i int) call {
	return post("/api/v1/nodes", nodeObject(c.node(i)))
}

// patchNodeStatus is what a kubelet sends every few minutes, and when something changes. Its time
// is that much later than the node's: one of the same second would change nothing, and would not
// be stored.
func (c *ComponentsConfig) patchNodeStatus(i int) call {
	const later = 5 * time.Minute
	now := metav1.NewTime(time.Now().Add(later).Truncate(time.Second))
	type condition struct {
		Type              corev1.NodeConditionType `json:"type"`
		LastHeartbeatTime metav1.Time              `json:"lastHeartbeatTime"`
	}
	var conditions []condition
	for _, c := range nodeConditions(now) {
		conditions = append(conditions, condition{c.Type, now})
	}
	return strategic("/api/v1/nodes/"+c.node(i)+"/status", map[string]any{
		"metadata": map[string]any{"annotations": map[string]string{"node.alpha.kubernetes.io/ttl": "0"}},
		"status":   map[string]any{"conditions": conditions},
	})
}

func (c *ComponentsConfig) leases() string {
	return "/apis/coordination.k8s.io/v1/namespaces/" + corev1.NamespaceNodeLease + "/leases"
}

func (c *ComponentsConfig) lease(i int) *coordinationv1.Lease {
	name, duration := c.node(i), int32(40)
	now := metav1.NewMicroTime(time.Now())
	return &coordinationv1.Lease{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: corev1.NamespaceNodeLease, OwnerReferences: []metav1.OwnerReference{
			{APIVersion: "v1", Kind: "Node", Name: name, UID: "3b0c3b0e-9d1e-4b43-9a6e-0f6f6c1d2a11"}}},
		Spec: coordinationv1.LeaseSpec{HolderIdentity: &name, LeaseDurationSeconds: &duration, RenewTime: &now},
	}
}

func (c *ComponentsConfig) createLease(i int) call { return post(c.leases(), c.lease(i)) }

func (c *ComponentsConfig) renewLease(i int) call {
	lease := c.lease(i)
	lease.ResourceVersion = c.versions[lease.Name]
	return put(c.leases()+"/"+lease.Name, lease)
}

func (c *ComponentsConfig) pod(i int) *corev1.Pod {
	pod := seededPod(i, SeedConfig{Namespaces: 1, Nodes: 1})
	pod.Name, pod.Namespace, pod.Spec.NodeName = c.podName(i), c.Namespace, ""
	pod.Spec.Containers[0].Env = append(pod.Spec.Containers[0].Env, corev1.EnvVar{Name: "INSTANCE", Value: pod.Name})
	return pod
}

func (c *ComponentsConfig) createPod(i int) call { return post(c.pods(), c.pod(i)) }

func (c *ComponentsConfig) bind(i int) call {
	name := c.podName(i)
	return post(c.pods()+"/"+name+"/binding", &corev1.Binding{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: c.Namespace},
		Target:     corev1.ObjectReference{Kind: "Node", Name: c.node(i % c.Nodes)},
	})
}

func (c *ComponentsConfig) patchPodStatus(i int) call {
	return strategic(c.pods()+"/"+c.podName(i)+"/status", map[string]any{"status": runningStatus(c.pod(i))})
}

// updatePod is what a controller that knows the whole pod sends. It does not name the version
// that it has seen, so that the writes need no reads in between.
func (c *ComponentsConfig) updatePod(i int) call {
	pod := c.pod(i)
	pod.Spec.NodeName = c.node(i % c.Nodes)
	pod.Spec.SchedulerName = corev1.DefaultSchedulerName
	pod.Annotations["example.com/revision"] = fmt.Sprint(i)
	return put(c.pods()+"/"+pod.Name, pod)
}

func (c *ComponentsConfig) applyPod(i int) call {
	return call{
		method: http.MethodPatch, accept: JSON, kind: "application/apply-patch+yaml",
		path: c.pods() + "/" + c.podName(i) + "?fieldManager=operator&force=true",
		body: fmt.Appendf(nil, `{"apiVersion":"v1","kind":"Pod","metadata":{"name":%q,"labels":{"example.com/applied":"%d","example.com/team":"shop"}},"spec":{"containers":[{"name":"web","image":"registry.example/shop/web:1.%d"}]}}`, c.podName(i), i, i),
	}
}

func (c *ComponentsConfig) event(i int) *corev1.Event {
	now := metav1.NewTime(time.Now().Truncate(time.Second))
	return &corev1.Event{
		ObjectMeta:     metav1.ObjectMeta{Name: fmt.Sprintf("%s.17f3a5b%08x", c.podName(i), i), Namespace: c.Namespace},
		InvolvedObject: corev1.ObjectReference{Kind: "Pod", APIVersion: "v1", Namespace: c.Namespace, Name: c.podName(i), UID: "9d1e3b0c-3b0e-4b43-9a6e-0f6f6c1d2a11", FieldPath: "spec.containers{web}"},
		Reason:         "Pulled", Type: corev1.EventTypeNormal, Count: 1, FirstTimestamp: now, LastTimestamp: now,
		Message: `Container image "registry.example/shop/web" already present on machine`,
		Source:  corev1.EventSource{Component: "kubelet", Host: c.node(i % c.Nodes)}, ReportingController: "kubelet", ReportingInstance: c.node(i % c.Nodes),
	}
}

func (c *ComponentsConfig) createEvent(i int) call {
	return post("/api/v1/namespaces/"+c.Namespace+"/events", c.event(i))
}

func (c *ComponentsConfig) countEvent(i int) call {
	e := c.event(i)
	return strategic("/api/v1/namespaces/"+c.Namespace+"/events/"+e.Name, map[string]any{"count": 2, "lastTimestamp": e.LastTimestamp})
}

func (c *ComponentsConfig) deployment(i int) *appsv1.Deployment {
	pod, replicas := c.pod(i), int32(3)
	labels := map[string]string{"app.kubernetes.io/name": pod.Name}
	for key, value := range labels {
		pod.Labels[key] = value
	}
	return &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Name: pod.Name, Namespace: c.Namespace, Labels: labels},
		Spec: appsv1.DeploymentSpec{
			Replicas: &replicas, Selector: &metav1.LabelSelector{MatchLabels: labels},
			Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: pod.Labels, Annotations: pod.Annotations}, Spec: pod.Spec},
		},
	}
}

func (c *ComponentsConfig) deployments() string {
	return "/apis/apps/v1/namespaces/" + c.Namespace + "/deployments"
}

func (c *ComponentsConfig) createDeployment(i int) call {
	return post(c.deployments(), c.deployment(i))
}

func (c *ComponentsConfig) updateDeploymentStatus(i int) call {
	d := c.deployment(i)
	now := metav1.NewTime(time.Now().Truncate(time.Second))
	d.Status = appsv1.DeploymentStatus{ObservedGeneration: 1, Replicas: 3, UpdatedReplicas: 3, ReadyReplicas: 2, AvailableReplicas: 2, UnavailableReplicas: 1,
		Conditions: []appsv1.DeploymentCondition{
			{Type: appsv1.DeploymentAvailable, Status: corev1.ConditionTrue, LastUpdateTime: now, LastTransitionTime: now, Reason: "MinimumReplicasAvailable", Message: "Deployment has minimum availability."},
			{Type: appsv1.DeploymentProgressing, Status: corev1.ConditionTrue, LastUpdateTime: now, LastTransitionTime: now, Reason: "ReplicaSetUpdated", Message: "ReplicaSet is progressing."},
		}}
	return put(c.deployments()+"/"+d.Name+"/status", d)
}

func (c *ComponentsConfig) deletePod(i int) call {
	return call{method: http.MethodDelete, path: c.pods() + "/" + c.podName(i) + "?gracePeriodSeconds=0", accept: Protobuf}
}

// post and put send obj as client-go's typed clients do.
func post(path string, obj runtime.Object) call {
	return call{method: http.MethodPost, path: path, accept: Protobuf, kind: Protobuf, body: encodeProtobuf(obj)}
}

func put(path string, obj runtime.Object) call {
	return call{method: http.MethodPut, path: path, accept: Protobuf, kind: Protobuf, body: encodeProtobuf(obj)}
}

// strategic is a strategic merge patch, whose answer is asked for as typed clients ask.
func strategic(path string, patch any) call {
	body, err := json.Marshal(patch)
	if err != nil {
		panic(err) // Kubernetes' own types can always be encoded
	}
	return call{method: http.MethodPatch, path: path, accept: Protobuf, kind: "application/strategic-merge-patch+json", body: body}
}

// encodeProtobuf encodes an object of one of Kubernetes' own types.
func encodeProtobuf(obj runtime.Object) []byte {
	kinds, _, err := scheme.Scheme.ObjectKinds(obj)
	if err != nil {
		panic(err) // obj's type is in client-go's scheme
	}
	info, _ := runtime.SerializerInfoForMediaType(scheme.Codecs.SupportedMediaTypes(), Protobuf)
	body, err := runtime.Encode(scheme.Codecs.EncoderForVersion(info.Serializer, schema.GroupVersion{Group: kinds[0].Group, Version: kinds[0].Version}), obj)
	if err != nil {
		panic(err)
	}
	return body
}

// nodeObject is a node as its kubelet and the cloud's controller leave it.
func nodeObject(name string) *corev1.Node {
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
