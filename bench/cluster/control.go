package cluster

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/larder-io/larder/bench"
)

// leaderEvery is how often a leader renews its Lease (--leader-elect-retry-period).
const leaderEvery = 2 * time.Second

// control is the controller manager and the scheduler.
type control struct {
	sim *simulation
	// informers is the client of the controller manager's shared informers. Each controller writes with its own
	// service account.
	informers, scheduler                        *client
	replicaSets, deployments, slices, endpoints *client

	all  []*informer // the controller manager's, then the scheduler's
	apps []appState
}

// appState serializes the writes about one Deployment, as a controller's work queue does.
type appState struct{ report, route sync.Mutex }

func (sim *simulation) newControl() (*control, error) {
	k := &control{sim: sim, apps: make([]appState, sim.apps())}
	var err error
	if k.informers, err = sim.client(managerAgent+"/shared-informers", "system:kube-controller-manager"); err != nil {
		return nil, err
	}
	if k.scheduler, err = sim.client(schedulerAgent+"/scheduler", "system:kube-scheduler"); err != nil {
		return nil, err
	}
	for name, c := range map[string]**client{
		"replicaset-controller": &k.replicaSets, "deployment-controller": &k.deployments,
		"endpointslice-controller": &k.slices, "endpoint-controller": &k.endpoints,
	} {
		if *c, err = sim.client(managerAgent+"/"+name, "system:serviceaccount:kube-system:"+name, "system:serviceaccounts", "system:serviceaccounts:kube-system"); err != nil {
			return nil, err
		}
	}
	return k, nil
}

// Collections that the controller manager and the scheduler watch, from the audit log of a cluster of v1.36.3.
const (
	managerFollows = `/api/v1/: configmaps endpoints limitranges namespaces nodes persistentvolumeclaims persistentvolumes pods podtemplates
	replicationcontrollers resourcequotas secrets serviceaccounts services
/apis/admissionregistration.k8s.io/v1/: mutatingadmissionpolicies mutatingadmissionpolicybindings mutatingwebhookconfigurations
	validatingadmissionpolicies validatingadmissionpolicybindings validatingwebhookconfigurations
/apis/apps/v1/: controllerrevisions daemonsets deployments replicasets statefulsets
/apis/autoscaling/v2/: horizontalpodautoscalers
/apis/batch/v1/: cronjobs jobs
/apis/certificates.k8s.io/v1/: certificatesigningrequests
/apis/coordination.k8s.io/v1/: leases
/apis/discovery.k8s.io/v1/: endpointslices
/apis/flowcontrol.apiserver.k8s.io/v1/: flowschemas prioritylevelconfigurations
/apis/networking.k8s.io/v1/: ingressclasses ingresses ipaddresses networkpolicies servicecidrs
/apis/node.k8s.io/v1/: runtimeclasses
/apis/policy/v1/: poddisruptionbudgets
/apis/rbac.authorization.k8s.io/v1/: clusterrolebindings clusterroles rolebindings roles
/apis/resource.k8s.io/v1/: deviceclasses resourceclaims resourceclaimtemplates resourceslices
/apis/scheduling.k8s.io/v1/: priorityclasses
/apis/storage.k8s.io/v1/: csidrivers csinodes csistoragecapacities storageclasses volumeattachments volumeattributesclasses`

	schedulerFollows = `/api/v1/: namespaces nodes persistentvolumeclaims persistentvolumes replicationcontrollers services
	pods?fieldSelector=status.phase%21%3DSucceeded%2Cstatus.phase%21%3DFailed
/apis/apps/v1/: replicasets statefulsets
/apis/policy/v1/: poddisruptionbudgets
/apis/resource.k8s.io/v1/: deviceclasses resourceclaims resourceslices
/apis/storage.k8s.io/v1/: csidrivers csinodes csistoragecapacities storageclasses volumeattachments`
)

func paths(list string) []string {
	var all []string
	base := ""
	for word := range strings.FieldsSeq(list) {
		if b, ok := strings.CutSuffix(word, ":"); ok {
			base = b
			continue
		}
		all = append(all, base+word)
	}
	return all
}

func (k *control) start() {
	for _, path := range paths(managerFollows) {
		k.all = append(k.all, k.sim.newInformer(k.informers, path))
	}
	for _, path := range paths(schedulerFollows) {
		k.all = append(k.all, k.sim.newInformer(k.scheduler, path))
	}
	for _, f := range k.all {
		f.start()
	}
}

// renewLeases starts to renew the Leases of leader election.
func (k *control) renewLeases(start time.Time) {
	for name, c := range map[string]*client{"kube-controller-manager": k.informers, "kube-scheduler": k.scheduler} {
		l := &lease{sim: k.sim, c: c, namespace: "kube-system", name: name}
		k.sim.every(start.Add(rand.N(leaderEvery)), leaderEvery, l.renew)
	}
}

// version returns an object's version in the controller manager's informer.
func (k *control) version(path, namespace, name string) uint64 {
	f := k.all[slices.IndexFunc(k.all, func(f *informer) bool { return f.path == path })]
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.items[k.sim.key([]byte(namespace), []byte(name))]
}

// writeStatus writes the number of ready pods to the status of a ReplicaSet, and then of its Deployment.
func (k *control) writeStatus(due time.Time, app int, ready int32) error {
	space, name := namespaceOf(app), appName(app)
	base := fmt.Sprintf("/apis/apps/v1/namespaces/%s/", space)
	k.apps[app].report.Lock()
	defer k.apps[app].report.Unlock()
	set := name + "-7d4b9c6f8"
	err := k.sim.send(workloadStatus, due, k.replicaSets, func() bench.Request {
		return bench.Put(base+"replicasets/"+set+"/status", replicaSetObject(app, k.version("/apis/apps/v1/replicasets", space, set), ready))
	})
	if err != nil {
		return err
	}
	return k.sim.send(workloadStatus, time.Now(), k.deployments, func() bench.Request {
		return bench.Put(base+"deployments/"+name+"/status", deploymentObject(app, k.version("/apis/apps/v1/deployments", space, name), ready))
	})
}

// writeEndpoints writes the EndpointSlice of a Service and, with both, its Endpoints. The pod in slot unready is not
// ready.
func (k *control) writeEndpoints(due time.Time, app, unready int, both bool) error {
	if !k.sim.serves(app) {
		return nil
	}
	space, names := namespaceOf(app), k.sim.names(app)
	k.apps[app].route.Lock()
	defer k.apps[app].route.Unlock()
	slice := appName(app) + "-x7k2m"
	err := k.sim.send(endpointsWrite, due, k.slices, func() bench.Request {
		v := k.version("/apis/discovery.k8s.io/v1/endpointslices", space, slice)
		return bench.Put("/apis/discovery.k8s.io/v1/namespaces/"+space+"/endpointslices/"+slice, k.sim.sliceObject(app, v, unready, names))
	})
	if err != nil || !both {
		return err
	}
	return k.sim.send(endpointsWrite, time.Now(), k.endpoints, func() bench.Request {
		v := k.version("/api/v1/endpoints", space, appName(app))
		return bench.Put("/api/v1/namespaces/"+space+"/endpoints/"+appName(app), k.sim.endpointsObject(app, v, unready, names))
	})
}
