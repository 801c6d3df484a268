package cluster

import (
	"math/rand/v2"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/larder-io/larder/bench"
)

// replacePod has a controller delete a pod and make another in its place. Which requests that
// takes is told in docs/bench.md; the times between them are about those of pods whose images
// are there already.
func (p *play) replacePod(due time.Time) {
	slot, old, name := p.replace()
	p.lives.Add(2)
	p.at(due, func(due time.Time) {
		defer p.lives.Done()
		p.remove(due, slot, old)
		p.forget(old.name)
	})
	p.at(due, func(due time.Time) {
		defer p.lives.Done()
		p.create(due, slot, name)
	})
}

// create is the first half of a pod's life.
func (p *play) create(start time.Time, slot int, name string) {
	k, n, app := p.control, p.nodes[p.nodeOf(slot)], appOf(slot)
	pod, path := podObject(slot, name), podPath(slot, name)
	events := "/namespaces/" + namespaceOf(app) + "/events"
	var uid types.UID
	event := func(c *client, component, reason string) func(time.Time) error {
		return func(due time.Time) error {
			_, err := p.send(eventWrite, due, c, func() *request { return post("/api/v1"+events, eventObject(slot, name, component, reason)) })
			return err
		}
	}
	status := func(s func(*corev1.Pod) corev1.PodStatus) func(time.Time) error {
		return func(due time.Time) error { return p.podStatus(due, n, path, s(pod)) }
	}
	ms := time.Millisecond
	var arrived <-chan struct{}
	scheduled := p.chain(start,
		step{0, func(due time.Time) error {
			body, err := p.send(podCreation, due, k.replicaSets, func() *request { return post(path[:len(path)-len(name)-1], pod) })
			uid = types.UID(metaOf(object(body)).uid)
			p.born(slot, name, uid)
			return err
		}},
		step{20 * ms, event(k.replicaSets, "replicaset-controller", "SuccessfulCreate")},
		step{40 * ms, func(due time.Time) error { return k.report(due, app, podsOfApp-1) }},
		step{60 * ms, func(due time.Time) error {
			arrived = p.expect(name, due)
			_, err := p.send(binding, due, k.scheduler, func() *request { return post(path+"/binding", bindingObject(slot, name, p.nodeOf(slot))) })
			return err
		}},
		step{80 * ms, func(due time.Time) error {
			_, err := p.send(eventWrite, due, k.scheduler, func() *request {
				return post("/apis/events.k8s.io/v1"+events, scheduledObject(slot, name, p.nodeOf(slot)))
			})
			return err
		}},
	)
	if !scheduled {
		return
	}
	select { // a kubelet begins when its watch has the pod
	case <-arrived:
	case <-p.over.Done():
		return
	}
	p.chain(time.Now(),
		step{100 * ms, status(startingStatus)},
		step{200 * ms, func(due time.Time) error { return p.token(due, n, slot, name, uid) }},
		step{500 * ms, event(n.c, "kubelet", "Pulled")},
		step{600 * ms, event(n.c, "kubelet", "Created")},
		step{900 * ms, event(n.c, "kubelet", "Started")},
		step{1100 * ms, status(notReadyStatus)},
		step{2400 * ms, status(bench.RunningStatus)},
		step{2450 * ms, func(due time.Time) error { return k.route(due, app, -1, true) }},
		step{2500 * ms, func(due time.Time) error { return k.report(due, app, podsOfApp) }},
	)
}

// remove is the second half.
func (p *play) remove(start time.Time, slot int, old pod) {
	k, n, app := p.control, p.nodes[p.nodeOf(slot)], appOf(slot)
	path, object := podPath(slot, old.name), podObject(slot, old.name)
	ms := time.Millisecond
	p.chain(start,
		step{0, func(due time.Time) error {
			_, err := p.send(podDeletion, due, k.replicaSets, func() *request { return remove(path, -1, "") })
			return err
		}},
		step{50 * ms, func(due time.Time) error { return k.route(due, app, slot, true) }},
		step{100 * ms, func(due time.Time) error {
			_, err := p.send(eventWrite, due, n.c, func() *request {
				return post("/api/v1/namespaces/"+namespaceOf(app)+"/events", eventObject(slot, old.name, "kubelet", "Killing"))
			})
			return err
		}},
		step{200 * ms, func(due time.Time) error { return p.podStatus(due, n, path, notReadyStatus(object)) }},
		step{1200 * ms, func(due time.Time) error { return p.podStatus(due, n, path, endedStatus(object)) }},
		step{1300 * ms, func(due time.Time) error {
			_, err := p.send(podDeletion, due, n.c, func() *request { return remove(path, 0, old.uid) })
			return err
		}},
		step{1400 * ms, func(due time.Time) error { return k.route(due, app, slot, false) }},
		step{1450 * ms, func(due time.Time) error { return k.report(due, app, podsOfApp) }},
	)
}

// podStatus is what a kubelet's status manager does: it reads the pod and patches its status
// (pkg/kubelet/status/status_manager.go).
func (p *play) podStatus(due time.Time, n *node, path string, s corev1.PodStatus) error {
	if _, err := p.send(podRead, due, n.c, func() *request { return get(path) }); err != nil {
		return err
	}
	_, err := p.send(podStatus, time.Now(), n.c, func() *request { return patch(path+"/status", map[string]any{"status": s}) })
	return err
}

// token asks for a pod's token.
func (p *play) token(due time.Time, n *node, slot int, name string, uid types.UID) error {
	_, err := p.send(tokenRequest, due, n.c, func() *request {
		return post("/api/v1/namespaces/"+namespaceOf(appOf(slot))+"/serviceaccounts/default/token", tokenObject(name, uid))
	})
	return err
}

// tokenLasts is when a kubelet asks for a new token: after four fifths of an hour
// (pkg/kubelet/token/token_manager.go).
const tokenLasts = 3607 * time.Second * 4 / 5

// renewTokens has kubelets renew the tokens of pods that stay.
func (p *play) renewTokens(start time.Time) {
	between := tokenLasts / time.Duration(len(p.slots))
	p.every(start.Add(rand.N(between)), between, func(due time.Time) {
		slot := rand.N(len(p.slots))
		if pod := p.podIn(slot); pod.uid != "" && !p.still.Load() {
			_ = p.token(due, p.nodes[p.nodeOf(slot)], slot, pod.name, pod.uid) // it is counted
		}
	})
}
