package cluster

import (
	"context"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	appsv1 "k8s.io/api/apps/v1"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	eventsv1 "k8s.io/api/events/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/larder-io/larder/bench"
)

// dataset describes the objects in etcd. Servers of several trials use it.
type dataset struct {
	size

	mu       sync.Mutex
	slots    []pod
	replaced int // number of replaced pods
}

type pod struct {
	name string
	uid  types.UID
}

func newDataset(s size) *dataset {
	w := &dataset{size: s, slots: make([]pod, s.pods())}
	for i := range w.slots {
		w.slots[i].name = w.podName(i)
	}
	return w
}

// podName returns the name of a slot's next pod. It ends with the slot's number.
func (d *dataset) podName(slot int) string {
	return fmt.Sprintf("%s-7d4b9c6f8-%x-%d", appName(appOf(slot)), d.replaced, slot)
}

// replace chooses a pod to delete and names its replacement.
func (d *dataset) replace() (slot int, old pod, name string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	const step = 7919 // a prime, so that consecutive slots are far apart
	slot = d.replaced * step % len(d.slots)
	d.replaced++
	old = d.slots[slot]
	d.slots[slot] = pod{name: d.podName(slot)}
	return slot, old, d.slots[slot].name
}

func (d *dataset) noteUID(slot int, name string, uid types.UID) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.slots[slot].name == name {
		d.slots[slot].uid = uid
	}
}

func (d *dataset) podIn(slot int) pod {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.slots[slot]
}

func (d *dataset) names(app int) []string {
	d.mu.Lock()
	defer d.mu.Unlock()
	var names []string
	for slot := app * podsOfApp; slot < min((app+1)*podsOfApp, len(d.slots)); slot++ {
		names = append(names, d.slots[slot].name)
	}
	return names
}

// seeders is the number of concurrent requests of seed.
const seeders = 32

func (d *dataset) seed(ctx context.Context, c *client) error {
	group, within := errgroup.WithContext(ctx)
	group.SetLimit(seeders)
	makeAll := func(requests ...bench.Request) { group.Go(func() error { return c.makeAll(within, requests) }) }
	// The namespace may exist already.
	makeAll(bench.Post("/api/v1/namespaces", &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: corev1.NamespaceNodeLease}}))
	for i := range d.spaces() {
		name := fmt.Sprintf("space-%d", i)
		meta := metav1.ObjectMeta{Name: "default", Namespace: name}
		root := metav1.ObjectMeta{Name: "kube-root-ca.crt", Namespace: name}
		makeAll(bench.Post("/api/v1/namespaces", &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}),
			bench.Post("/api/v1/namespaces/"+name+"/serviceaccounts", &corev1.ServiceAccount{ObjectMeta: meta}),
			bench.Post("/api/v1/namespaces/"+name+"/configmaps", &corev1.ConfigMap{ObjectMeta: root, Data: map[string]string{"ca.crt": text(1100)}}))
	}
	for i := range d.nodes {
		makeAll(bench.Post("/api/v1/nodes", bench.Node(nodeName(i))))
	}
	if err := group.Wait(); err != nil {
		return err
	}
	return d.seedApps(ctx, c)
}

func (d *dataset) seedApps(ctx context.Context, c *client) error {
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(seeders)
	for app := range d.apps() {
		group.Go(func() error { return c.makeAll(ctx, d.appObjects(app)) })
	}
	for slot := range d.slots {
		group.Go(func() error { return d.seedPod(ctx, c, slot) })
	}
	return group.Wait()
}

// appObjects returns requests that create a Deployment and the objects that belong to it.
func (d *dataset) appObjects(app int) []bench.Request {
	name, space := appName(app), namespaceOf(app)
	core, apps := "/api/v1/namespaces/"+space, "/apis/apps/v1/namespaces/"+space
	config := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name + "-config", Namespace: space}, Data: map[string]string{"app.yaml": text(1500)}}
	all := []bench.Request{
		bench.Post(core+"/configmaps", config),
		bench.Post(apps+"/deployments", deploymentObject(app, 0, podsOfApp)), bench.Post(apps+"/replicasets", replicaSetObject(app, 0, podsOfApp)),
	}
	if hasSecret(app) {
		secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: name + "-secret", Namespace: space}, Data: map[string][]byte{"password": []byte(text(200))}}
		all = append(all, bench.Post(core+"/secrets", secret))
	}
	if d.serves(app) {
		names := d.names(app)
		all = append(all, bench.Post(core+"/services", serviceObject(app)), bench.Post(core+"/endpoints", d.endpointsObject(app, 0, -1, names)),
			bench.Post("/apis/discovery.k8s.io/v1/namespaces/"+space+"/endpointslices", d.sliceObject(app, 0, -1, names)))
	}
	return all
}

// seedPod creates the pod of a slot and sets its status to running.
func (d *dataset) seedPod(ctx context.Context, c *client, slot int) error {
	name := d.podIn(slot).name
	pod := podObject(slot, name)
	pod.Spec.NodeName = nodeName(d.nodeOf(slot))
	path := podPath(slot, name)
	body, err := c.do(ctx, bench.Post("/api/v1/namespaces/"+pod.Namespace+"/pods", pod))
	if err != nil {
		return err
	}
	d.noteUID(slot, name, types.UID(metaOf(object(body)).uid))
	_, err = c.do(ctx, bench.StrategicPatch(path+"/status", map[string]any{"status": bench.RunningStatus(pod)}))
	return err
}

// text returns n bytes, a multiple of 10.
func text(n int) string { return strings.Repeat("ahovcjqxel", n/10) }

// makeAll creates objects one after the other. It ignores objects that exist.
func (c *client) makeAll(ctx context.Context, requests []bench.Request) error {
	for _, r := range requests {
		if _, err := c.do(ctx, r); err != nil && bench.StatusOf(err) != http.StatusConflict {
			return err
		}
	}
	return nil
}

//lint:file-ignore SA1019 Endpoints are deprecated, but kube-apiserver and its clients still write them.

func get(path string) bench.Request { return bench.Typed(http.MethodGet, path, "", nil) }

// remove returns a deletion with a grace period in seconds; -1 uses the object's own.
func remove(path string, grace int64, uid types.UID) bench.Request {
	options := &metav1.DeleteOptions{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "DeleteOptions"}}
	if grace >= 0 {
		options.GracePeriodSeconds = &grace
	}
	if uid != "" {
		options.Preconditions = &metav1.Preconditions{UID: &uid}
	}
	return bench.Typed(http.MethodDelete, path, bench.JSON, bench.EncodeJSON(options))
}

// version returns v as a resourceVersion for the metadata of a write.
func version(v uint64) string {
	if v == 0 {
		return ""
	}
	return strconv.FormatUint(v, 10)
}

type size struct{ nodes, podsPerNode int }

// The number of pods of a Deployment and of Deployments in a namespace. One of appsOfService Deployments has a
// Service, up to mostServices, and one of appsOfSecret a mounted Secret.
const (
	podsOfApp     = 10
	appsOfSpace   = 10
	appsOfService = 5
	mostServices  = 200
	appsOfSecret  = 2
)

func (s size) pods() int     { return s.nodes * s.podsPerNode }
func (s size) apps() int     { return (s.pods() + podsOfApp - 1) / podsOfApp }
func (s size) spaces() int   { return (s.apps() + appsOfSpace - 1) / appsOfSpace }
func (s size) services() int { return min((s.apps()+appsOfService-1)/appsOfService, mostServices) }

// A slot stands for one replica of a Deployment on one node. When its pod is deleted, another pod replaces it.

func nodeName(node int) string { return fmt.Sprintf("node-%d", node) }

func appOf(slot int) int { return slot / podsOfApp }

func appName(app int) string { return fmt.Sprintf("app-%d", app) }

func namespaceOf(app int) string { return fmt.Sprintf("space-%d", app/appsOfSpace) }

func (s size) nodeOf(slot int) int { return slot % s.nodes }

// serves reports whether a Deployment has a Service.
func (s size) serves(app int) bool {
	return app%appsOfService == 0 && app/appsOfService < s.services()
}

func hasSecret(app int) bool { return app%appsOfSecret == 0 }

func podPath(slot int, name string) string {
	return "/api/v1/namespaces/" + namespaceOf(appOf(slot)) + "/pods/" + name
}

// podObject returns a pod as the ReplicaSet controller creates it.
func podObject(slot int, name string) *corev1.Pod {
	app := appOf(slot)
	pod := bench.WebPod(slot)
	pod.Name, pod.Namespace, pod.Spec.NodeName = name, namespaceOf(app), ""
	pod.Labels["app.kubernetes.io/name"] = appName(app)
	pod.Spec.AutomountServiceAccountToken = nil // so that the pod mounts kube-root-ca.crt, as most pods do
	pod.OwnerReferences[0].Name = appName(app) + "-7d4b9c6f8"
	pod.Spec.Volumes[0].ConfigMap.Name = appName(app) + "-config"
	if hasSecret(app) {
		pod.Spec.Volumes = append(pod.Spec.Volumes, corev1.Volume{Name: "secret", VolumeSource: corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{SecretName: appName(app) + "-secret"}}})
	}
	return pod
}

// startingStatus returns the status of a pod whose containers are being created.
func startingStatus(pod *corev1.Pod) corev1.PodStatus {
	status := notReadyStatus(pod)
	status.Phase, status.PodIP, status.PodIPs = corev1.PodPending, "", nil
	for i := range status.ContainerStatuses {
		c := &status.ContainerStatuses[i]
		c.Started, c.ContainerID = new(bool), ""
		c.State = corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "ContainerCreating"}}
	}
	return status
}

// notReadyStatus returns the status of a pod that runs and is not ready.
func notReadyStatus(pod *corev1.Pod) corev1.PodStatus {
	status := bench.RunningStatus(pod)
	for i := range status.Conditions {
		if t := status.Conditions[i].Type; t == corev1.PodReady || t == corev1.ContainersReady {
			status.Conditions[i].Status, status.Conditions[i].Reason = corev1.ConditionFalse, "ContainersNotReady"
		}
	}
	for i := range status.ContainerStatuses {
		status.ContainerStatuses[i].Ready = false
	}
	return status
}

// endedStatus returns the status of a pod whose containers have ended.
func endedStatus(pod *corev1.Pod) corev1.PodStatus {
	status := notReadyStatus(pod)
	status.Phase = corev1.PodSucceeded
	for i := range status.ContainerStatuses {
		c := &status.ContainerStatuses[i]
		c.State = corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{Reason: "Completed", FinishedAt: metav1.Now()}}
	}
	return status
}

func eventObject(slot int, name, component, reason string) *corev1.Event {
	return bench.PodEvent(fmt.Sprintf("%s.%x", name, time.Now().UnixNano()), namespaceOf(appOf(slot)), name, reason, component)
}

func scheduledObject(slot int, name string, node int) *eventsv1.Event {
	app := appOf(slot)
	return &eventsv1.Event{
		ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("%s.%x", name, time.Now().UnixNano()), Namespace: namespaceOf(app)},
		EventTime:  metav1.NewMicroTime(time.Now()), ReportingController: "default-scheduler", ReportingInstance: "default-scheduler-0",
		Action: "Binding", Reason: "Scheduled", Type: corev1.EventTypeNormal,
		Regarding: corev1.ObjectReference{Kind: "Pod", APIVersion: "v1", Namespace: namespaceOf(app), Name: name},
		Note:      fmt.Sprintf("Successfully assigned %s/%s to %s", namespaceOf(app), name, nodeName(node)),
	}
}

// tokenObject requests the token that a kubelet mounts into a pod.
func tokenObject(name string, uid types.UID) *authenticationv1.TokenRequest {
	const lasts = 3607 // seconds, as the ServiceAccount admission plugin sets it
	return &authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{
		ExpirationSeconds: new(int64(lasts)), // the projected volume names no audience
		BoundObjectRef:    &authenticationv1.BoundObjectReference{Kind: "Pod", APIVersion: "v1", Name: name, UID: uid},
	}}
}

func deploymentObject(app int, v uint64, ready int32) *appsv1.Deployment {
	const replicas = podsOfApp
	now := metav1.NewTime(time.Now().Truncate(time.Second))
	d := bench.Deployment(appName(app), podObject(app*podsOfApp, ""), replicas)
	d.ResourceVersion = version(v)
	d.Status = appsv1.DeploymentStatus{ObservedGeneration: 1, Replicas: replicas, UpdatedReplicas: replicas, ReadyReplicas: ready, AvailableReplicas: ready,
		Conditions: []appsv1.DeploymentCondition{{Type: appsv1.DeploymentAvailable, Status: corev1.ConditionTrue, LastUpdateTime: now, LastTransitionTime: now,
			Reason: "MinimumReplicasAvailable", Message: "Deployment has minimum availability."}}}
	return d
}

func replicaSetObject(app int, v uint64, ready int32) *appsv1.ReplicaSet {
	d := deploymentObject(app, v, ready)
	d.Name += "-7d4b9c6f8"
	return &appsv1.ReplicaSet{
		ObjectMeta: d.ObjectMeta, Spec: appsv1.ReplicaSetSpec{Replicas: d.Spec.Replicas, Selector: d.Spec.Selector, Template: d.Spec.Template},
		Status: appsv1.ReplicaSetStatus{ObservedGeneration: 1, Replicas: podsOfApp, FullyLabeledReplicas: podsOfApp, ReadyReplicas: ready, AvailableReplicas: ready},
	}
}

func serviceObject(app int) *corev1.Service {
	return &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: appName(app), Namespace: namespaceOf(app), Labels: map[string]string{"app.kubernetes.io/name": appName(app)}},
		Spec: corev1.ServiceSpec{
			Selector: map[string]string{"app.kubernetes.io/name": appName(app)},
			Ports:    []corev1.ServicePort{{Name: "http", Port: 80, TargetPort: intstr.FromInt32(8080)}, {Name: "metrics", Port: 9090, TargetPort: intstr.FromInt32(8081)}},
		},
	}
}

func podAddress(slot int) string {
	return fmt.Sprintf("10.%d.%d.%d", 64+slot>>16, slot>>8&255, slot&255)
}

// sliceObject returns an EndpointSlice of the pods of a Deployment. The pod in slot unready is not ready.
func (s size) sliceObject(app int, v uint64, unready int, names []string) *discoveryv1.EndpointSlice {
	slice := &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{Name: appName(app) + "-x7k2m", Namespace: namespaceOf(app), ResourceVersion: version(v),
			Labels:      map[string]string{discoveryv1.LabelServiceName: appName(app), discoveryv1.LabelManagedBy: "endpointslice-controller.k8s.io"},
			Annotations: map[string]string{corev1.EndpointsLastChangeTriggerTime: time.Now().UTC().Format(time.RFC3339Nano)}},
		AddressType: discoveryv1.AddressTypeIPv4,
		Ports:       []discoveryv1.EndpointPort{{Name: new("http"), Port: new(int32(8080)), Protocol: new(corev1.ProtocolTCP)}},
	}
	for i, name := range names {
		slot := app*podsOfApp + i
		ready, node := slot != unready, nodeName(s.nodeOf(slot))
		slice.Endpoints = append(slice.Endpoints, discoveryv1.Endpoint{
			Addresses: []string{podAddress(slot)}, NodeName: &node, Conditions: discoveryv1.EndpointConditions{Ready: &ready, Serving: &ready},
			TargetRef: &corev1.ObjectReference{Kind: "Pod", Namespace: namespaceOf(app), Name: name},
		})
	}
	return slice
}

func (s size) endpointsObject(app int, v uint64, unready int, names []string) *corev1.Endpoints {
	subset := corev1.EndpointSubset{Ports: []corev1.EndpointPort{{Name: "http", Port: 8080, Protocol: corev1.ProtocolTCP}}}
	for i, name := range names {
		slot := app*podsOfApp + i
		node := nodeName(s.nodeOf(slot))
		address := corev1.EndpointAddress{IP: podAddress(slot), NodeName: &node, TargetRef: &corev1.ObjectReference{Kind: "Pod", Namespace: namespaceOf(app), Name: name}}
		if slot == unready {
			subset.NotReadyAddresses = append(subset.NotReadyAddresses, address)
		} else {
			subset.Addresses = append(subset.Addresses, address)
		}
	}
	return &corev1.Endpoints{
		ObjectMeta: metav1.ObjectMeta{Name: appName(app), Namespace: namespaceOf(app), ResourceVersion: version(v),
			Annotations: map[string]string{corev1.EndpointsLastChangeTriggerTime: time.Now().UTC().Format(time.RFC3339Nano)}},
		Subsets: []corev1.EndpointSubset{subset},
	}
}
