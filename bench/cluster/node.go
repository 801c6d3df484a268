package cluster

import (
	"context"
	"math/rand/v2"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/larder-io/larder/bench"
)

// How often idle kubelets write (pkg/kubelet/apis/config/v1beta1/defaults.go).
const (
	leaseEvery  = 10 * time.Second // a quarter of 40 s
	statusEvery = 5 * time.Minute
)

// User agents of the components.
const (
	kubeletAgent   = "kubelet/v1.36.3 (linux/amd64) kubernetes/0000000"
	proxyAgent     = "kube-proxy/v1.36.3 (linux/amd64) kubernetes/0000000"
	managerAgent   = "kube-controller-manager/v1.36.3 (linux/amd64) kubernetes/0000000"
	schedulerAgent = "kube-scheduler/v1.36.3 (linux/amd64) kubernetes/0000000"
)

// Selectors of informers.
const (
	notHeadless     = "fieldSelector=spec.clusterIP%21%3DNone"
	notOtherProxies = "labelSelector=%21service.kubernetes.io%2Fservice-proxy-name"
	noHeadlessSlice = "labelSelector=%21service.kubernetes.io%2Fheadless%2C%21service.kubernetes.io%2Fservice-proxy-name"
)

// node is a kubelet and a kube-proxy.
type node struct {
	sim      *simulation
	name     string
	c, proxy *client

	all []*informer // informers of both, except those of mounted objects

	mu     sync.Mutex
	mounts map[string]*mount // ConfigMaps and Secrets that the node's pods mount, by path

	lease lease
}

// mount is a ConfigMap or Secret that pods of the node mount.
type mount struct {
	informer *informer
	users    int
}

func (sim *simulation) newNode(i int) (_ *node, err error) {
	n := &node{sim: sim, name: nodeName(i), mounts: make(map[string]*mount)}
	if n.c, err = sim.client(kubeletAgent, "system:node:"+n.name, "system:nodes"); err != nil {
		return nil, err
	}
	n.lease = lease{sim: sim, c: n.c, namespace: corev1.NamespaceNodeLease, name: n.name}
	n.proxy, err = sim.client(proxyAgent, "system:kube-proxy")
	return n, err
}

// start starts the node's informers (pkg/kubelet/kubelet.go, cmd/kube-proxy/app/server.go).
func (n *node) start() {
	field := func(name string) string { return "fieldSelector=" + url.QueryEscape(name+"="+n.name) }
	for _, path := range []string{
		"/api/v1/nodes?" + field("metadata.name"), "/api/v1/pods?" + field("spec.nodeName"), "/api/v1/services?" + notHeadless,
		"/apis/node.k8s.io/v1/runtimeclasses", "/apis/storage.k8s.io/v1/csidrivers",
	} {
		f := n.sim.newInformer(n.c, path)
		if strings.HasPrefix(path, "/api/v1/pods") {
			f.onChange = n.podChanged
		}
		n.all = append(n.all, f)
	}
	for _, path := range []string{
		"/api/v1/services?" + notHeadless + "&" + notOtherProxies, "/apis/discovery.k8s.io/v1/endpointslices?" + noHeadlessSlice,
		"/apis/networking.k8s.io/v1/servicecidrs", "/api/v1/nodes?" + field("metadata.name"),
	} {
		n.all = append(n.all, n.sim.newInformer(n.proxy, path))
	}
	for _, f := range n.all {
		f.start()
	}
}

// podChanged handles a pod that appears on the node or disappears from it.
func (n *node) podChanged(name string, exists bool) {
	change := -1
	if exists {
		n.sim.seen(name)
		change = 1
	}
	if slot, ok := slotOf(name); ok {
		n.mount(slot, change)
	}
}

func slotOf(name string) (int, bool) {
	slot, err := strconv.Atoi(name[strings.LastIndexByte(name, '-')+1:])
	return slot, err == nil && strings.HasPrefix(name, "app-")
}

// mount changes the number of pods that mount the objects of slot's Deployment. The first pod starts watches of
// these objects, the last one ends them (pkg/kubelet/util/manager/watch_based_manager.go).
func (n *node) mount(slot, change int) {
	n.mu.Lock()
	defer n.mu.Unlock()
	app := appOf(slot)
	path := func(resource, name string) string {
		return "/api/v1/namespaces/" + namespaceOf(app) + "/" + resource + "?fieldSelector=" + url.QueryEscape("metadata.name="+name)
	}
	paths := []string{path("configmaps", "kube-root-ca.crt"), path("configmaps", appName(app)+"-config")}
	if hasSecret(app) {
		paths = append(paths, path("secrets", appName(app)+"-secret"))
	}
	for _, path := range paths {
		m := n.mounts[path]
		if m == nil {
			m = &mount{informer: n.sim.newInformer(n.c, path)}
			n.mounts[path] = m
			m.informer.start()
		}
		if m.users += change; m.users == 0 {
			delete(n.mounts, path)
			m.informer.close()
		}
	}
}

// heartbeat starts to renew the Lease and to report the status, at random times for each node.
func (n *node) heartbeat(start time.Time) {
	n.sim.every(start.Add(rand.N(leaseEvery)), leaseEvery, n.lease.renew)
	n.sim.every(start.Add(rand.N(statusEvery)), statusEvery, n.report)
}

// every calls a function at a fixed interval, even while the last call has not returned.
func (sim *simulation) every(first time.Time, between time.Duration, act func(due time.Time)) {
	var next func(due time.Time)
	next = func(due time.Time) {
		sim.schedule(due.Add(between), next)
		act(due)
	}
	sim.schedule(first, next)
}

// lease is a Lease that a component renews.
type lease struct {
	sim             *simulation
	c               *client
	namespace, name string

	mu      sync.Mutex // held during a renewal, because the next one needs the new version
	version uint64     // guarded by mu; 0 means unknown: the next renewal reads or creates the Lease
}

// renew renews the Lease. After a failure it waits for the next interval.
func (l *lease) renew(due time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	ctx, cancel := context.WithTimeout(l.sim.over, beatTimeout)
	defer cancel()
	path := "/apis/coordination.k8s.io/v1/namespaces/" + l.namespace + "/leases"
	if l.version == 0 {
		body, err := l.c.do(ctx, get(path+"/"+l.name))
		if bench.StatusOf(err) == http.StatusNotFound {
			body, err = l.c.do(ctx, bench.Post(path, bench.Lease(l.namespace, l.name, "")))
		}
		if err != nil {
			l.sim.record(leaseRenewal, due, err)
			return
		}
		l.version = metaOf(object(body)).version
	}
	body, err := l.c.do(ctx, bench.Put(path+"/"+l.name, bench.Lease(l.namespace, l.name, version(l.version))))
	l.sim.record(leaseRenewal, due, err)
	l.version = metaOf(object(body)).version // 0 after a failure
}

func (sim *simulation) record(kind requestKind, due time.Time, err error) {
	if sim.over.Err() != nil {
		return
	}
	sim.phase.Load().record(kind, time.Since(due), bench.StatusOf(err), err)
}

func (n *node) report(due time.Time) {
	ctx, cancel := context.WithTimeout(n.sim.over, beatTimeout)
	defer cancel()
	_, err := n.c.do(ctx, bench.StrategicPatch("/api/v1/nodes/"+n.name+"/status", bench.NodeHeartbeat(time.Now())))
	n.sim.record(nodeStatus, due, err)
}
