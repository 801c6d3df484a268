package bench

import (
	"context"
	"fmt"
	"net/http"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// ComponentsConfig is a workload of the writes that the components of a cluster send, with their
// objects, sizes, verbs and media types. It sends one kind after the other.
type ComponentsConfig struct {
	// Namespace holds the objects. It is created if it does not exist.
	Namespace string
	Nodes     int
	// Load is the load of each kind of write. Each operation has its own pod. A plan must be open. There is no
	// warm-up.
	Load

	run      int64             // makes the names of objects unique to this run
	versions map[string]string // resourceVersions of Leases by name; updates of Leases always have one
}

// kinds lists the kinds of writes in the order in which they are sent. Later writes change objects that earlier writes
// created. readLeases sets the versions.
func (c *ComponentsConfig) kinds(readLeases func() error) []writeKind {
	return []writeKind{
		{name: "node creation", request: func(i int) Request { return Post("/api/v1/nodes", Node(c.node(i))) }},
		{name: "node status, strategic merge patch", request: c.patchNodeStatus},
		{name: "Lease creation", request: func(i int) Request { return Post(leases, Lease(corev1.NamespaceNodeLease, c.node(i), "")) }},
		{name: "Lease renewal, update", prepare: readLeases, request: func(i int) Request {
			return Put(leases+"/"+c.node(i), Lease(corev1.NamespaceNodeLease, c.node(i), c.versions[c.node(i)]))
		}},
		{name: "pod creation", request: func(i int) Request { return Post(c.path("pods"), c.pod(i)) }},
		{name: "binding", request: c.bind},
		{name: "pod status, strategic merge patch", request: func(i int) Request {
			return StrategicPatch(c.podPath(i)+"/status", map[string]any{"status": RunningStatus(c.pod(i))})
		}},
		{name: "pod update", request: c.updatePod},
		{name: "pod apply", request: c.applyPod},
		{name: "event creation", request: func(i int) Request { return Post(c.path("events"), c.event(i)) }},
		{name: "event count, strategic merge patch", request: func(i int) Request {
			e := c.event(i)
			return StrategicPatch(c.path("events")+"/"+e.Name, map[string]any{"count": 2, "lastTimestamp": e.LastTimestamp})
		}},
		{name: "deployment creation", request: func(i int) Request { return Post(c.deployments(), c.deployment(i)) }},
		{name: "deployment status, update", request: c.updateDeploymentStatus},
		{name: "pod deletion", request: func(i int) Request {
			return Typed(http.MethodDelete, c.podPath(i)+"?gracePeriodSeconds=0", "", nil)
		}},
	}
}

// ComponentWrites names the kinds of writes, in the order of the results of Components.
func ComponentWrites() []string {
	kinds := (&ComponentsConfig{}).kinds(nil)
	return sequence(len(kinds), func(i int) string { return kinds[i].name })
}

// Components sends each kind of write Operations times and returns one Result for each. It deletes the pods and leaves
// the nodes, Leases, events and Deployments.
func Components(ctx context.Context, t *Target, c ComponentsConfig) ([]*Result, error) {
	l := loop{Load: c.Load}
	if err := l.bounded(); err != nil {
		return nil, err
	}
	if c.Nodes < 1 {
		return nil, fmt.Errorf("bench: --nodes must be at least 1, is %d", c.Nodes)
	}
	c.run = time.Now().UnixNano()
	for _, ns := range []string{c.Namespace, corev1.NamespaceNodeLease} {
		if err := t.ensureNamespace(ctx, ns); err != nil {
			return nil, err
		}
	}
	return l.inTurn(ctx, t, c.kinds(func() (err error) {
		c.versions, err = t.revisions(ctx, leases)
		return err
	}))
}

const leases = "/apis/coordination.k8s.io/v1/namespaces/" + corev1.NamespaceNodeLease + "/leases"

func (c *ComponentsConfig) path(resource string) string {
	return "/api/v1/namespaces/" + c.Namespace + "/" + resource
}

func (c *ComponentsConfig) podPath(i int) string { return c.path("pods") + "/" + c.podName(i) }

func (c *ComponentsConfig) podName(i int) string {
	return fmt.Sprintf("web-%d-%06d", c.run, i)
}

// node returns the name of the i-th node. Each write has its own node, so concurrent writes conflict no more
// often than in a cluster.
func (c *ComponentsConfig) node(i int) string { return fmt.Sprintf("node-%d-%06d", c.run, i) }

// patchNodeStatus returns the patch that a kubelet sends every few minutes and when something changes. Its
// heartbeat is some minutes after the node's creation. In the same second, the patch would change nothing, and the
// server would not store the node.
func (c *ComponentsConfig) patchNodeStatus(i int) Request {
	const later = 5 * time.Minute
	return StrategicPatch("/api/v1/nodes/"+c.node(i)+"/status", NodeHeartbeat(time.Now().Add(later)))
}

func (c *ComponentsConfig) pod(i int) *corev1.Pod {
	pod := WebPod(i)
	pod.Name, pod.Namespace, pod.Spec.NodeName = c.podName(i), c.Namespace, ""
	pod.Spec.Containers[0].Env = append(pod.Spec.Containers[0].Env, corev1.EnvVar{Name: "INSTANCE", Value: pod.Name})
	return pod
}

func (c *ComponentsConfig) bind(i int) Request {
	return Post(c.podPath(i)+"/binding", Binding(c.Namespace, c.podName(i), c.node(i%c.Nodes)))
}

// updatePod returns a controller's update of the whole pod. The update has no resourceVersion, so the workload
// needs no reads between writes.
func (c *ComponentsConfig) updatePod(i int) Request {
	pod := c.pod(i)
	pod.Spec.NodeName = c.node(i % c.Nodes)
	pod.Spec.SchedulerName = corev1.DefaultSchedulerName
	pod.Annotations["example.com/revision"] = fmt.Sprint(i)
	return Put(c.podPath(i), pod)
}

func (c *ComponentsConfig) applyPod(i int) Request {
	return Request{
		Method: http.MethodPatch, Accept: JSON, ContentType: "application/apply-patch+yaml",
		Path: c.podPath(i) + "?fieldManager=operator&force=true",
		Body: fmt.Appendf(nil, `{"apiVersion":"v1","kind":"Pod","metadata":{"name":%q,"labels":{"example.com/applied":"%d","example.com/team":"shop"}},"spec":{"containers":[{"name":"web","image":"registry.example/shop/web:1.%d"}]}}`, c.podName(i), i, i),
	}
}

func (c *ComponentsConfig) event(i int) *corev1.Event {
	e := PodEvent(fmt.Sprintf("%s.17f3a5b%08x", c.podName(i), i), c.Namespace, c.podName(i), "Pulled", "kubelet")
	e.Source.Host, e.ReportingInstance = c.node(i%c.Nodes), c.node(i%c.Nodes)
	return e
}

func (c *ComponentsConfig) deployment(i int) *appsv1.Deployment {
	pod := c.pod(i)
	return Deployment(pod.Name, pod, 3)
}

func (c *ComponentsConfig) deployments() string {
	return "/apis/apps/v1/namespaces/" + c.Namespace + "/deployments"
}

func (c *ComponentsConfig) updateDeploymentStatus(i int) Request {
	d := c.deployment(i)
	now := metav1.NewTime(time.Now().Truncate(time.Second))
	d.Status = appsv1.DeploymentStatus{ObservedGeneration: 1, Replicas: 3, UpdatedReplicas: 3, ReadyReplicas: 2, AvailableReplicas: 2, UnavailableReplicas: 1,
		Conditions: []appsv1.DeploymentCondition{
			{Type: appsv1.DeploymentAvailable, Status: corev1.ConditionTrue, LastUpdateTime: now, LastTransitionTime: now, Reason: "MinimumReplicasAvailable", Message: "Deployment has minimum availability."},
			{Type: appsv1.DeploymentProgressing, Status: corev1.ConditionTrue, LastUpdateTime: now, LastTransitionTime: now, Reason: "ReplicaSetUpdated", Message: "ReplicaSet is progressing."},
		}}
	return Put(c.deployments()+"/"+d.Name+"/status", d)
}
