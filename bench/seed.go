package bench

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
)

// SeedConfig says how many pods to create and how they are spread.
type SeedConfig struct {
	Pods, Namespaces, Nodes int
	// Clients is how many requests are under way at a time.
	Clients int
}

// Namespace and node names of the pods that Seed creates.
const (
	namespaceFormat = "bench-%d"
	nodeFormat      = "node-%d"
)

// Managers of the fields of the pods that Seed creates.
const (
	controllerManager = "kube-controller-manager"
	kubeletManager    = "kubelet"
)

// Seed creates namespaces and pods as a cluster's own writers would: a
// controller creates the pod, a kubelet writes its status, so that each carries
// two managed-fields entries and weighs about 5 KB in protobuf. Pods that exist
// are left as they are. It ends at the first pod that cannot be made; it waits where
// the server asks it to.
func Seed(ctx context.Context, t *Target, c SeedConfig) (*Result, error) {
	l := loop{ops: c.Pods, clients: c.Clients, strict: true}
	if err := l.check(); err != nil {
		return nil, err
	}
	if c.Namespaces < 1 || c.Nodes < 1 {
		return nil, fmt.Errorf("bench: want at least one namespace and one node, got %d and %d", c.Namespaces, c.Nodes)
	}
	client, err := t.client(controllerManager)
	if err != nil {
		return nil, err
	}
	for i := range c.Namespaces {
		if err := seedNamespace(ctx, client, fmt.Sprintf(namespaceFormat, i)); err != nil {
			return nil, err
		}
	}
	l.through = t.retrying()
	return l.measure(ctx, t, "seed pods", "pod", nil, func(ctx context.Context, own *lane, i int, _ time.Time) (outcome, error) {
		return seedPod(ctx, own, seededPod(i, c), c.PodPath(i))
	})
}

// retrying returns a Clone that waits where the server asks it to.
func (t *Target) retrying() *Target {
	other := t.Clone()
	other.RetryAfter = true
	return other
}

// PodPaths are the paths of the first n pods that Seed creates.
func (c SeedConfig) PodPaths(n int) []string {
	paths := make([]string, n)
	for i := range paths {
		paths[i] = c.PodPath(i)
	}
	return paths
}

// PodPath is the path of the i-th pod.
func (c SeedConfig) PodPath(i int) string {
	return fmt.Sprintf("/api/v1/namespaces/%s/pods/%s", fmt.Sprintf(namespaceFormat, i%c.Namespaces), podName(i))
}

// NodeSelection is the path of all pods of the i-th node.
func (c SeedConfig) NodeSelection(i int) string {
	return "/api/v1/pods?fieldSelector=spec.nodeName%3D" + fmt.Sprintf(nodeFormat, i)
}

// Deliveries is how many events watchers see when each selects one node, the first
// again after the last, and changes are made to the first objects in turn.
func (c SeedConfig) Deliveries(watchers, objects, changes int) int {
	n := 0
	for i := range changes {
		node := i % objects % c.Nodes
		n += (watchers - node + c.Nodes - 1) / c.Nodes
	}
	return n
}

// NodeSelections are the paths of all pods of each of the first n nodes.
func (c SeedConfig) NodeSelections(n int) []string {
	paths := make([]string, n)
	for i := range paths {
		paths[i] = c.NodeSelection(i)
	}
	return paths
}

// client returns a typed client whose writes name manager as field manager.
func (t *Target) client(manager string) (kubernetes.Interface, error) {
	config := t.settings(manager)
	config.ContentType = runtime.ContentTypeProtobuf
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("bench: %w", err)
	}
	return client, nil
}

// settings returns a configuration of client-go for requests that are not measured.
func (t *Target) settings(manager string) *rest.Config {
	config := rest.CopyConfig(t.config)
	config.UserAgent, config.Timeout = manager, t.Timeout
	config.WarningHandler = rest.NoWarnings{}
	return config
}

// HTTPClient returns a client with the credentials of t, for requests that no workload makes. It
// keeps a connection for each request under way.
func (t *Target) HTTPClient(manager string) (*http.Client, error) {
	config := t.settings(manager)
	config.DisableCompression = true
	client, err := rest.HTTPClientFor(config)
	if err != nil {
		return nil, fmt.Errorf("bench: %w", err)
	}
	return client, nil
}

// seedNamespace creates a namespace and the service account that its pods run as,
// which a controller would make.
func seedNamespace(ctx context.Context, client kubernetes.Interface, name string) error {
	ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}
	if _, err := client.CoreV1().Namespaces().Create(ctx, ns, metav1.CreateOptions{}); err != nil && !apierrors.IsAlreadyExists(err) {
		return fmt.Errorf("bench: %w", err)
	}
	account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: name, Name: "default"}}
	if _, err := client.CoreV1().ServiceAccounts(name).Create(ctx, account, metav1.CreateOptions{}); err != nil && !apierrors.IsAlreadyExists(err) {
		return fmt.Errorf("bench: %w", err)
	}
	return nil
}

// seedPod creates a pod and then writes its status.
func seedPod(ctx context.Context, own *lane, pod *corev1.Pod, path string) (outcome, error) {
	status := runningStatus(pod)
	collection := path[:strings.LastIndexByte(path, '/')]
	o, err := own.do(ctx, call{
		method: http.MethodPost, path: collection + "?fieldManager=" + controllerManager, accept: Protobuf, kind: Protobuf, body: encodeProtobuf(pod),
	})
	if o.status == http.StatusConflict {
		return o, nil
	}
	if err != nil {
		return o, err
	}
	pod.Status = status
	return own.do(ctx, call{
		method: http.MethodPut, path: path + "/status?fieldManager=" + kubeletManager, accept: Protobuf, kind: Protobuf, body: encodeProtobuf(pod),
	})
}

func appName(i int) string { return fmt.Sprintf("app-%d", i%100) }

func podName(i int) string { return fmt.Sprintf("%s-7d4b9c6f8-%06d", appName(i), i) }

// seededPod is the i-th pod: a web server, as a Deployment makes them.
func seededPod(i int, c SeedConfig) *corev1.Pod {
	app := appName(i)
	yes, no, root := true, false, int64(65532)
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
				UID: "0d6f3a52-6a3e-4f5b-9a53-0c9b7a3f1e11", Controller: &yes, BlockOwnerDeletion: &yes,
			}},
		},
		Spec: corev1.PodSpec{
			NodeName:                     fmt.Sprintf(nodeFormat, i%c.Nodes),
			ServiceAccountName:           "default",
			AutomountServiceAccountToken: &no,
			SecurityContext:              &corev1.PodSecurityContext{RunAsUser: &root, RunAsNonRoot: &yes, FSGroup: &root},
			Containers:                   []corev1.Container{webContainer("web", 8080)},
			Volumes: []corev1.Volume{
				{Name: "config", VolumeSource: corev1.VolumeSource{ConfigMap: &corev1.ConfigMapVolumeSource{LocalObjectReference: corev1.LocalObjectReference{Name: app + "-config"}}}},
				{Name: "tmp", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}},
			},
			Tolerations: []corev1.Toleration{
				{Key: corev1.TaintNodeNotReady, Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoExecute, TolerationSeconds: seconds(300)},
				{Key: corev1.TaintNodeUnreachable, Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoExecute, TolerationSeconds: seconds(300)},
			},
		},
	}
}

func seconds(n int64) *int64 { return &n }

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

// runningStatus is what a kubelet reports of pod once it runs.
func runningStatus(pod *corev1.Pod) corev1.PodStatus {
	now := metav1.NewTime(time.Now().Truncate(time.Second))
	started := true
	status := corev1.PodStatus{
		Phase: corev1.PodRunning, StartTime: &now, QOSClass: corev1.PodQOSBurstable,
		HostIP: "10.1.2.3", HostIPs: []corev1.HostIP{{IP: "10.1.2.3"}}, PodIP: "10.244.7.19", PodIPs: []corev1.PodIP{{IP: "10.244.7.19"}},
	}
	for _, kind := range []corev1.PodConditionType{corev1.PodReadyToStartContainers, corev1.PodInitialized, corev1.PodReady, corev1.ContainersReady, corev1.PodScheduled} {
		status.Conditions = append(status.Conditions, corev1.PodCondition{Type: kind, Status: corev1.ConditionTrue, LastTransitionTime: now})
	}
	for _, c := range pod.Spec.Containers {
		status.ContainerStatuses = append(status.ContainerStatuses, corev1.ContainerStatus{
			Name: c.Name, Image: c.Image, ImageID: c.Image, Ready: true, Started: &started,
			ContainerID: "containerd://4c1f6f5f1f0e6a0f2b7a8d1c2c8b1a2f9f86d081884c7d659a2feaa0c55ad015",
			State:       corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: now}},
		})
	}
	return status
}
