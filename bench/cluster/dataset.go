package cluster

import (
	"context"
	"fmt"
	"net/http"
	"sync"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"golang.org/x/sync/errgroup"

	"github.com/larder-io/larder/bench"
)

// dataset describes the objects in etcd. Servers of several trials use it.
type dataset struct {
	size

	mu         sync.Mutex
	slots      []pod
	generation int
	replaced   int // number of replaced pods
}

// pod is the current pod of a slot.
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
func (w *dataset) podName(slot int) string {
	return fmt.Sprintf("%s-7d4b9c6f8-%x-%d", appName(appOf(slot)), w.generation, slot)
}

// replace chooses a pod to delete and names its replacement.
func (w *dataset) replace() (slot int, old pod, name string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	const step = 7919 // a prime, so that consecutive slots are far apart
	slot = w.replaced * step % len(w.slots)
	w.replaced++
	w.generation++
	old = w.slots[slot]
	w.slots[slot] = pod{name: w.podName(slot)}
	return slot, old, w.slots[slot].name
}

// noteUID stores the UID of a slot's pod.
func (w *dataset) noteUID(slot int, name string, uid types.UID) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.slots[slot].name == name {
		w.slots[slot].uid = uid
	}
}

func (w *dataset) podIn(slot int) pod {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.slots[slot]
}

// names returns the names of the pods of a Deployment.
func (w *dataset) names(app int) []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	var names []string
	for slot := app * podsOfApp; slot < min((app+1)*podsOfApp, len(w.slots)); slot++ {
		names = append(names, w.slots[slot].name)
	}
	return names
}

// seeders is the number of concurrent requests of seed.
const seeders = 32

// seed creates all objects through a server.
func (w *dataset) seed(ctx context.Context, c *client) error {
	group, within := errgroup.WithContext(ctx)
	group.SetLimit(seeders)
	makeAll := func(requests ...bench.Request) { group.Go(func() error { return c.makeAll(within, requests) }) }
	// The namespace may exist already.
	makeAll(bench.Post("/api/v1/namespaces", &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: corev1.NamespaceNodeLease}}))
	for i := range w.spaces() {
		name := fmt.Sprintf("space-%d", i)
		meta := metav1.ObjectMeta{Name: "default", Namespace: name}
		root := metav1.ObjectMeta{Name: "kube-root-ca.crt", Namespace: name}
		makeAll(bench.Post("/api/v1/namespaces", &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}),
			bench.Post("/api/v1/namespaces/"+name+"/serviceaccounts", &corev1.ServiceAccount{ObjectMeta: meta}),
			bench.Post("/api/v1/namespaces/"+name+"/configmaps", &corev1.ConfigMap{ObjectMeta: root, Data: map[string]string{"ca.crt": text(1100)}}))
	}
	for i := range w.nodes {
		makeAll(bench.Post("/api/v1/nodes", bench.Node(nodeName(i))))
	}
	if err := group.Wait(); err != nil {
		return err
	}
	return w.seedApps(ctx, c)
}

// seedApps creates the objects in the namespaces.
func (w *dataset) seedApps(ctx context.Context, c *client) error {
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(seeders)
	for app := range w.apps() {
		group.Go(func() error { return c.makeAll(ctx, w.appObjects(app)) })
	}
	for slot := range w.slots {
		group.Go(func() error { return w.seedPod(ctx, c, slot) })
	}
	return group.Wait()
}

// appObjects returns requests that create a Deployment and the objects that belong to it.
func (w *dataset) appObjects(app int) []bench.Request {
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
	if w.serves(app) {
		names := w.names(app)
		all = append(all, bench.Post(core+"/services", serviceObject(app)), bench.Post(core+"/endpoints", w.endpointsObject(app, 0, -1, names)),
			bench.Post("/apis/discovery.k8s.io/v1/namespaces/"+space+"/endpointslices", w.sliceObject(app, 0, -1, names)))
	}
	return all
}

// seedPod creates the pod of a slot and sets its status to running.
func (w *dataset) seedPod(ctx context.Context, c *client, slot int) error {
	name := w.podIn(slot).name
	pod := podObject(slot, name)
	pod.Spec.NodeName = nodeName(w.nodeOf(slot))
	path := podPath(slot, name)
	body, err := c.do(ctx, bench.Post("/api/v1/namespaces/"+pod.Namespace+"/pods", pod))
	if err != nil {
		return err
	}
	w.noteUID(slot, name, types.UID(metaOf(object(body)).uid))
	_, err = c.do(ctx, bench.StrategicPatch(path+"/status", map[string]any{"status": bench.RunningStatus(pod)}))
	return err
}

// text returns n bytes of filler.
func text(n int) string {
	b := make([]byte, n)
	for i := range b {
		b[i] = 'a' + byte(i*7%26)
	}
	return string(b)
}

// makeAll creates objects one after the other. It ignores objects that exist.
func (c *client) makeAll(ctx context.Context, requests []bench.Request) error {
	for _, r := range requests {
		if _, err := c.do(ctx, r); err != nil && bench.StatusOf(err) != http.StatusConflict {
			return err
		}
	}
	return nil
}
