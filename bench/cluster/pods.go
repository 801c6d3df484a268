package cluster

import (
	"math/rand/v2"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/larder-io/larder/bench"
)

// replacePod deletes a pod and creates another in its place, as a controller does. docs/bench.md lists the requests.
// The delays between them assume that the images are already on the node.
func (sim *simulation) replacePod(due time.Time) {
	slot, old, name := sim.replace()
	sim.replacing.Add(2)
	sim.schedule(due, func(due time.Time) {
		defer sim.replacing.Done()
		sim.remove(due, slot, old)
		sim.endWait(old.name)
	})
	sim.schedule(due, func(due time.Time) {
		defer sim.replacing.Done()
		sim.create(due, slot, name)
	})
}

// create sends the requests from a pod's creation until it is ready.
func (sim *simulation) create(start time.Time, slot int, name string) {
	k, n, app := sim.control, sim.nodes[sim.nodeOf(slot)], appOf(slot)
	pod, path := podObject(slot, name), podPath(slot, name)
	events := "/namespaces/" + namespaceOf(app) + "/events"
	var uid types.UID
	event := func(c *client, component, reason string) func(time.Time) error {
		return sim.sending(eventWrite, c, func() bench.Request { return bench.Post("/api/v1"+events, eventObject(slot, name, component, reason)) })
	}
	status := func(s func(*corev1.Pod) corev1.PodStatus) func(time.Time) error {
		return func(due time.Time) error { return sim.podStatus(due, n, path, s(pod)) }
	}
	ms := time.Millisecond
	var arrived <-chan struct{}
	scheduled := sim.chain(start,
		step{0, func(due time.Time) error {
			body, err := sim.exchange(podCreation, due, k.replicaSets, func() bench.Request { return bench.Post(path[:len(path)-len(name)-1], pod) })
			uid = types.UID(metaOf(object(body)).uid)
			sim.noteUID(slot, name, uid)
			return err
		}},
		step{20 * ms, event(k.replicaSets, "replicaset-controller", "SuccessfulCreate")},
		step{40 * ms, func(due time.Time) error { return k.writeStatus(due, app, podsOfApp-1) }},
		step{60 * ms, func(due time.Time) error {
			arrived = sim.expect(name, due)
			return sim.send(binding, due, k.scheduler, func() bench.Request { return bench.Post(path+"/binding", bench.Binding(pod.Namespace, name, n.name)) })
		}},
		step{80 * ms, sim.sending(eventWrite, k.scheduler, func() bench.Request {
			return bench.Post("/apis/events.k8s.io/v1"+events, scheduledObject(slot, name, sim.nodeOf(slot)))
		})},
	)
	if !scheduled {
		return
	}
	select { // a kubelet starts a pod when its watch has received it
	case <-arrived:
	case <-sim.over.Done():
		return
	}
	sim.chain(time.Now(),
		step{100 * ms, status(startingStatus)},
		step{200 * ms, func(due time.Time) error { return sim.token(due, n, slot, name, uid) }},
		step{500 * ms, event(n.c, "kubelet", "Pulled")},
		step{600 * ms, event(n.c, "kubelet", "Created")},
		step{900 * ms, event(n.c, "kubelet", "Started")},
		step{1100 * ms, status(notReadyStatus)},
		step{2400 * ms, status(bench.RunningStatus)},
		step{2450 * ms, func(due time.Time) error { return k.writeEndpoints(due, app, -1, true) }},
		step{2500 * ms, func(due time.Time) error { return k.writeStatus(due, app, podsOfApp) }},
	)
}

func (sim *simulation) remove(start time.Time, slot int, old pod) {
	k, n, app := sim.control, sim.nodes[sim.nodeOf(slot)], appOf(slot)
	path, object := podPath(slot, old.name), podObject(slot, old.name)
	ms := time.Millisecond
	sim.chain(start,
		step{0, sim.sending(podDeletion, k.replicaSets, func() bench.Request { return remove(path, -1, "") })},
		step{50 * ms, func(due time.Time) error { return k.writeEndpoints(due, app, slot, true) }},
		step{100 * ms, sim.sending(eventWrite, n.c, func() bench.Request {
			return bench.Post("/api/v1/namespaces/"+namespaceOf(app)+"/events", eventObject(slot, old.name, "kubelet", "Killing"))
		})},
		step{200 * ms, func(due time.Time) error { return sim.podStatus(due, n, path, notReadyStatus(object)) }},
		step{1200 * ms, func(due time.Time) error { return sim.podStatus(due, n, path, endedStatus(object)) }},
		step{1300 * ms, sim.sending(podDeletion, n.c, func() bench.Request { return remove(path, 0, old.uid) })},
		step{1400 * ms, func(due time.Time) error { return k.writeEndpoints(due, app, slot, false) }},
		step{1450 * ms, func(due time.Time) error { return k.writeStatus(due, app, podsOfApp) }},
	)
}

// podStatus reads a pod and patches its status, as a kubelet's status manager does
// (pkg/kubelet/status/status_manager.go).
func (sim *simulation) podStatus(due time.Time, n *node, path string, s corev1.PodStatus) error {
	if err := sim.send(podRead, due, n.c, func() bench.Request { return get(path) }); err != nil {
		return err
	}
	return sim.send(podStatus, time.Now(), n.c, func() bench.Request { return bench.StrategicPatch(path+"/status", map[string]any{"status": s}) })
}

func (sim *simulation) token(due time.Time, n *node, slot int, name string, uid types.UID) error {
	return sim.send(tokenRequest, due, n.c, func() bench.Request {
		return bench.Post("/api/v1/namespaces/"+namespaceOf(appOf(slot))+"/serviceaccounts/default/token", tokenObject(name, uid))
	})
}

// tokenLasts is how long a kubelet uses a token: four fifths of its lifetime (pkg/kubelet/token/token_manager.go).
const tokenLasts = 3607 * time.Second * 4 / 5

// renewTokens simulates kubelets that renew the tokens of running pods.
func (sim *simulation) renewTokens(start time.Time) {
	between := tokenLasts / time.Duration(len(sim.slots))
	sim.every(start.Add(rand.N(between)), between, func(due time.Time) {
		slot := rand.N(len(sim.slots))
		if pod := sim.podIn(slot); pod.uid != "" && !sim.draining.Load() {
			_ = sim.token(due, sim.nodes[sim.nodeOf(slot)], slot, pod.name, pod.uid) // send has recorded the error
		}
	})
}
