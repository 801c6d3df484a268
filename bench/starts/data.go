package starts

import (
	"fmt"
	"strconv"

	appsv1 "k8s.io/api/apps/v1"
	autoscalingv1 "k8s.io/api/autoscaling/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"

	"github.com/larder-io/larder/bench"
)

type data struct {
	id, name string
	// path is the path of the list request, prefix the prefix of the keys in etcd.
	path, prefix string
	// item makes the i-th object of n; nil means no objects. stored is a custom resource as a server has
	// stored it.
	item func(i, n int, stored *unstructured.Unstructured) object
	// custom means that a CRD must be created first.
	custom bool
}

// object is an object of any type.
type object interface {
	metav1.Object
	runtime.Object
}

// encode returns what servers store.
func encode(o object) ([]byte, error) {
	if custom, ok := o.(*unstructured.Unstructured); ok {
		return custom.MarshalJSON()
	}
	return bench.EncodeProtobuf(o), nil
}

// kinds returns all kinds of data, in the order of their rows.
func kinds() []*data {
	const pods, sets, scalers, events = "/api/v1/pods", "/apis/apps/v1/replicasets", "/apis/autoscaling/v2/horizontalpodautoscalers", "/api/v1/events"
	return []*data{
		{id: "P0", name: "empty", path: pods, prefix: "/registry/pods/"},
		{id: "P1", name: "own", path: pods, prefix: "/registry/pods/", item: podWith(addOwn)},
		{id: "P2", name: "old", path: pods, prefix: "/registry/pods/", item: podWith(addWithoutDefaults)},
		{id: "P3", name: "replicasets", path: sets, prefix: "/registry/replicasets/", item: replicaSet},
		{id: "P4", name: "autoscalers", path: scalers, prefix: "/registry/horizontalpodautoscalers/", item: autoscaler},
		{id: "P5", name: "events", path: events, prefix: "/registry/events/", item: event},
		{id: "P6", name: "shared", path: pods, prefix: "/registry/pods/", item: podWith(nil)},
		{id: "P7", name: "custom", path: bench.CustomPath("workers"), prefix: workers, item: workerWith(nil), custom: true},
		{id: "P8", name: "custom-old", path: bench.CustomPath("workers"), prefix: workers, item: workerWith(lackCustomDefaults), custom: true},
	}
}

// Names returns the names of all kinds of data, in the order of their rows.
func Names() []string {
	var names []string
	for _, d := range kinds() {
		names = append(names, d.name)
	}
	return names
}

// began is the creation time of the first object. Each later object is a second younger.
const began = 1790000000

// metadata returns the metadata of the i-th object of a kind, without labels.
func metadata(name string, i, n int) metav1.ObjectMeta {
	return metav1.ObjectMeta{
		Name: name, Namespace: namespace(i, n), UID: types.UID(fmt.Sprintf("0d6f3a52-6a3e-4f5b-9a53-%012x", i)),
		CreationTimestamp: metav1.Unix(began+int64(i), 0),
	}
}

// namespace returns the namespace of the i-th of n objects. A namespace has 200 objects.
func namespace(i, n int) string { return fmt.Sprintf("bench-%d", i%max(1, n/200)) }

func managed(manager, apiVersion string, at metav1.Time, fields string) metav1.ManagedFieldsEntry {
	return metav1.ManagedFieldsEntry{Manager: manager, Operation: metav1.ManagedFieldsOperationUpdate, APIVersion: apiVersion, Time: &at, FieldsType: "FieldsV1", FieldsV1: metav1.NewFieldsV1(fields)}
}

const podFields = `{"f:metadata":{"f:annotations":{".":{},"f:checksum/config":{},"f:prometheus.io/path":{},"f:prometheus.io/port":{},"f:prometheus.io/scrape":{}},"f:labels":{".":{},"f:app.kubernetes.io/instance":{},"f:app.kubernetes.io/name":{}},"f:ownerReferences":{".":{},"k:{\"uid\":\"0d6f3a52-6a3e-4f5b-9a53-0c9b7a3f1e11\"}":{}}},"f:spec":{"f:automountServiceAccountToken":{},"f:containers":{"k:{\"name\":\"web\"}":{".":{},"f:args":{},"f:env":{".":{},"k:{\"name\":\"CACHE_HOST\"}":{".":{},"f:name":{},"f:value":{}},"k:{\"name\":\"DATABASE_HOST\"}":{".":{},"f:name":{},"f:value":{}}},"f:image":{},"f:imagePullPolicy":{},"f:name":{},"f:resources":{".":{},"f:limits":{".":{},"f:memory":{}},"f:requests":{".":{},"f:cpu":{},"f:memory":{}}}}},"f:dnsPolicy":{},"f:enableServiceLinks":{}}}`

// pod returns the i-th of n running pods, with all defaults.
func pod(i, n int) *corev1.Pod {
	p := bench.WebPod(i)
	labels, annotations, owners := p.Labels, p.Annotations, p.OwnerReferences
	p.ObjectMeta = metadata(p.Name, i, n)
	p.Labels, p.Annotations, p.OwnerReferences, p.Generation = labels, annotations, owners, 1
	p.Spec.NodeName = fmt.Sprintf("node-%d", i%max(1, n/20))
	p.Status = bench.RunningStatus(p)
	p.Status.PodIP = fmt.Sprintf("10.%d.%d.%d", i>>16, i>>8&255, i&255)
	p.Status.PodIPs = []corev1.PodIP{{IP: p.Status.PodIP}}
	setPodDefaults(&p.Spec)
	kubelet := managed("kubelet", "v1", p.CreationTimestamp, podFields)
	kubelet.Subresource = "status"
	p.ManagedFields = []metav1.ManagedFieldsEntry{managed("kube-controller-manager", "v1", p.CreationTimestamp, podFields), kubelet}
	return p
}

// setPodDefaults sets the defaults that a server would set.
func setPodDefaults(s *corev1.PodSpec) {
	grace, priority, preempt, links, mode := int64(30), int32(0), corev1.PreemptLowerPriority, true, int32(420)
	s.RestartPolicy, s.DNSPolicy, s.SchedulerName = corev1.RestartPolicyAlways, corev1.DNSClusterFirst, corev1.DefaultSchedulerName
	s.DeprecatedServiceAccount = s.ServiceAccountName
	s.TerminationGracePeriodSeconds, s.Priority, s.PreemptionPolicy, s.EnableServiceLinks = &grace, &priority, &preempt, &links
	for i := range s.Volumes {
		if source := s.Volumes[i].ConfigMap; source != nil {
			source.DefaultMode = &mode
		}
	}
	for i := range s.Containers {
		c := &s.Containers[i]
		c.TerminationMessagePath, c.TerminationMessagePolicy = corev1.TerminationMessagePathDefault, corev1.TerminationMessageReadFile
		c.ImagePullPolicy = corev1.PullIfNotPresent
		for _, probe := range []*corev1.Probe{c.LivenessProbe, c.ReadinessProbe} {
			if probe != nil && probe.HTTPGet != nil {
				probe.HTTPGet.Scheme = corev1.URISchemeHTTP
			}
		}
	}
}

// addOwn adds an environment variable that no other object has.
func addOwn(s *corev1.PodSpec, i int) {
	s.Containers[0].Env = append(s.Containers[0].Env, corev1.EnvVar{Name: "INSTANCE", Value: fmt.Sprintf("instance-%d", i)})
}

// addWithoutDefaults calls addOwn, and removes fields that have got defaults in later versions.
func addWithoutDefaults(s *corev1.PodSpec, i int) {
	addOwn(s, i)
	s.Containers[0].TerminationMessagePolicy, s.EnableServiceLinks = "", nil
}

// podWith returns a function that makes running pods. change, unless nil, modifies each.
func podWith(change func(s *corev1.PodSpec, i int)) func(i, n int, _ *unstructured.Unstructured) object {
	return func(i, n int, _ *unstructured.Unstructured) object {
		p := pod(i, n)
		if change != nil {
			change(&p.Spec, i)
		}
		return p
	}
}

func replicaSet(i, n int, _ *unstructured.Unstructured) object {
	p, replicas := pod(i, n), int32(1)
	addOwn(&p.Spec, i)
	p.Spec.NodeName, p.Spec.Tolerations = "", nil
	set := &appsv1.ReplicaSet{ObjectMeta: p.ObjectMeta, Spec: appsv1.ReplicaSetSpec{
		Replicas: &replicas, Selector: &metav1.LabelSelector{MatchLabels: p.Labels},
		Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: p.Labels}, Spec: p.Spec},
	}}
	set.Annotations = nil
	return set
}

// autoscaler is stored as autoscaling/v1, which holds conditions and other metrics in annotations.
func autoscaler(i, n int, _ *unstructured.Unstructured) object {
	name, percent, least := fmt.Sprintf("hpa-%d", i), int32(50+i%40), int32(1)
	a := &autoscalingv1.HorizontalPodAutoscaler{ObjectMeta: metadata(name, i, n), Spec: autoscalingv1.HorizontalPodAutoscalerSpec{
		ScaleTargetRef: autoscalingv1.CrossVersionObjectReference{Kind: "Deployment", Name: name, APIVersion: "apps/v1"},
		MinReplicas:    &least, MaxReplicas: 10, TargetCPUUtilizationPercentage: &percent,
	}}
	a.Labels = map[string]string{"app": name}
	a.Annotations = map[string]string{
		"autoscaling.alpha.kubernetes.io/conditions": `[{"type":"AbleToScale","status":"True","lastTransitionTime":"2025-01-01T00:00:00Z","reason":"ReadyForNewScale","message":"recommended size matches current size"}]`,
		"autoscaling.alpha.kubernetes.io/metrics":    `[{"type":"Resource","resource":{"name":"memory","targetAverageUtilization":80}}]`,
	}
	a.ManagedFields = []metav1.ManagedFieldsEntry{managed("kubectl", "autoscaling/v1", a.CreationTimestamp, podFields)}
	return a
}

func event(i, n int, _ *unstructured.Unstructured) object {
	const fields = `{"f:count":{},"f:firstTimestamp":{},"f:involvedObject":{},"f:lastTimestamp":{},"f:message":{},"f:reason":{},"f:source":{"f:component":{}},"f:type":{}}`
	subject := fmt.Sprintf("pod-%d", i)
	e := &corev1.Event{
		ObjectMeta: metadata(fmt.Sprintf("%s.17a%09x", subject, i), i, n),
		InvolvedObject: corev1.ObjectReference{
			Kind: "Pod", Namespace: namespace(i, n), Name: subject, UID: types.UID(fmt.Sprintf("1d6f3a52-6a3e-4f5b-9a53-%012x", i)),
			APIVersion: "v1", ResourceVersion: strconv.Itoa(i + 10),
		},
		Reason: "Scheduled", Message: fmt.Sprintf("Successfully assigned %s/%s to node-%d", namespace(i, n), subject, i%100),
		Source: corev1.EventSource{Component: "default-scheduler"}, Count: 1, Type: corev1.EventTypeNormal, ReportingController: "default-scheduler",
	}
	e.FirstTimestamp, e.LastTimestamp = e.CreationTimestamp, e.CreationTimestamp
	e.ManagedFields = []metav1.ManagedFieldsEntry{managed("kube-scheduler", "v1", e.CreationTimestamp, fields)}
	return e
}

// workers is the prefix of the custom resources that bench.DefineWorkers defines.
const workers = "/registry/bench.example.com/workers/"

func lackCustomDefaults(spec, container map[string]any) {
	delete(spec, "replicas")
	delete(container, "imagePullPolicy")
}

// workerWith returns a function that copies a custom resource, with a new name and value. change, unless nil, modifies
// each copy. The resource must have a container, as the one of bench.DefineWorkers.
func workerWith(change func(spec, container map[string]any)) func(i, n int, stored *unstructured.Unstructured) object {
	return func(i, n int, stored *unstructured.Unstructured) object {
		o, meta := stored.DeepCopy(), metadata(fmt.Sprintf("worker-%d", i), i, n)
		o.SetName(meta.Name)
		o.SetNamespace(meta.Namespace)
		o.SetUID(meta.UID)
		o.SetCreationTimestamp(meta.CreationTimestamp)
		spec := o.Object["spec"].(map[string]any)
		container := spec["containers"].([]any)[0].(map[string]any)
		env, _ := container["env"].([]any)
		container["env"] = append(env, map[string]any{"name": "INSTANCE", "value": fmt.Sprintf("instance-%d", i)})
		if change != nil {
			change(spec, container)
		}
		return o
	}
}
