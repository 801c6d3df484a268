package faults

import (
	"context"
	"maps"
	"slices"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/tools/cache"

	"github.com/larder-io/larder/internal/proctest"
)

// cluster is the access of users and controllers to one namespace, without a cache.
type cluster struct {
	context.Context
	client    kubernetes.Interface
	namespace string
}

func (c cluster) maps() corev1client.ConfigMapInterface {
	return c.client.CoreV1().ConfigMaps(c.namespace)
}

func (c cluster) pods() corev1client.PodInterface { return c.client.CoreV1().Pods(c.namespace) }

func (c cluster) claims() corev1client.PersistentVolumeClaimInterface {
	return c.client.CoreV1().PersistentVolumeClaims(c.namespace)
}

// examples has an object of each resource that controllers may watch.
var examples = map[string]runtime.Object{
	"configmaps": &corev1.ConfigMap{}, "pods": &corev1.Pod{}, "persistentvolumeclaims": &corev1.PersistentVolumeClaim{},
}

// manager is one process of a controller: client-go's informers, whose events queue the names of parents, and the
// controller's state in memory. The test is its only worker. The label "of" of an object names its parent. An object
// without that label is a parent.
type manager struct {
	cluster   // as the controller
	reconcile func(parent string) error
	stores    map[string]cache.Store // by resource
	// objects are copies of the stores' maps, by resource and name, which take makes. The controller reads these, so that
	// events of its own writes do not affect it while it works.
	objects map[string]map[string]runtime.Object
	synced  []cache.DoneChecker
	stop    func() // stops the informers
	changed chan struct{}

	mu    sync.Mutex
	queue map[string]bool              // guarded by mu
	seen  map[string]map[string]string // guarded by mu: resourceVersions that handlers received, by resource and name
}

// newManager starts the informers of some resources. The caller stops the manager.
func newManager(t *testing.T, c cluster, watched []string) *manager {
	t.Helper()
	m := &manager{cluster: c, stores: make(map[string]cache.Store), changed: make(chan struct{}, 1), queue: make(map[string]bool), seen: make(map[string]map[string]string)}
	ctx, cancel := context.WithCancel(c.Context)
	var all []cache.SharedIndexInformer
	var informers sync.WaitGroup
	m.stop = func() { cancel(); informers.Wait() }
	for _, resource := range watched {
		lists := lister{cache.NewListWatchFromClient(c.client.CoreV1().RESTClient(), resource, c.namespace, fields.Everything())}
		informer := cache.NewSharedIndexInformer(lists, examples[resource], 0, cache.Indexers{})
		m.seen[resource], m.stores[resource] = make(map[string]string), informer.GetStore()
		registration, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
			AddFunc:    func(o any) { m.handle(resource, o, false) },
			UpdateFunc: func(_, o any) { m.handle(resource, o, false) },
			DeleteFunc: func(o any) { m.handle(resource, o, true) },
		})
		if err != nil {
			t.Fatal(err)
		}
		m.synced = append(m.synced, registration.HasSyncedChecker())
		all = append(all, informer)
	}
	for _, informer := range all {
		informers.Go(func() { informer.RunWithContext(ctx) })
	}
	return m
}

// lister makes informers list and then watch, as they do without the feature gate WatchListClient: only lists can be
// stale.
type lister struct{ *cache.ListWatch }

func (lister) IsWatchListSemanticsUnSupported() bool { return true }

// handle handles the creation, change or deletion of an object.
func (m *manager) handle(resource string, o any, gone bool) {
	if last, ok := o.(cache.DeletedFinalStateUnknown); ok {
		o = last.Obj
	}
	object := o.(metav1.Object)
	m.mu.Lock()
	defer m.mu.Unlock()
	if gone {
		delete(m.seen[resource], object.GetName())
	} else {
		m.seen[resource][object.GetName()] = object.GetResourceVersion()
	}
	parent := object.GetName()
	if of, ok := object.GetLabels()["of"]; ok {
		parent = of
	}
	m.queue[parent] = true
	select {
	case m.changed <- struct{}{}:
	default:
	}
}

// awaitSynced waits until handlers have received the first lists.
func (m *manager) awaitSynced(t *testing.T) {
	t.Helper()
	for _, s := range m.synced {
		select {
		case <-s.Done():
		case <-time.After(proctest.Patience):
			t.Fatalf("%s does not sync", s.Name())
		}
	}
}

// await waits until handlers have received exactly these versions of a resource's objects.
func (m *manager) await(t *testing.T, resource string, versions map[string]string) {
	t.Helper()
	timeout := time.After(proctest.Patience)
	for !m.sees(resource, versions) {
		select {
		case <-m.changed:
		case <-timeout:
			t.Fatalf("the informer of %s does not come to %v", resource, versions)
		}
	}
}

func (m *manager) sees(resource string, versions map[string]string) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return maps.Equal(m.seen[resource], versions)
}

// take empties the queue and copies the stores for the controller.
func (m *manager) take() []string {
	m.objects = make(map[string]map[string]runtime.Object)
	for resource, store := range m.stores {
		m.objects[resource] = make(map[string]runtime.Object)
		for _, o := range store.List() {
			m.objects[resource][o.(metav1.Object).GetName()] = o.(runtime.Object)
		}
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	names := slices.Sorted(maps.Keys(m.queue))
	clear(m.queue)
	return names
}

// again queues a parent whose reconciliation has failed.
func (m *manager) again(parent string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.queue[parent] = true
}

// cached returns a copy of an object in the controller's cache, nil if there is none.
func cached[T any](m *manager, name string) *T {
	if o := m.objects[resourceOf[T]()][name]; o != nil {
		return any(o.DeepCopyObject()).(*T)
	}
	return nil
}

// children returns copies of the parent's objects in the controller's cache, by name.
func children[T any](m *manager, parent string) []*T {
	var all []*T
	seen := m.objects[resourceOf[T]()]
	for _, name := range slices.Sorted(maps.Keys(seen)) {
		if seen[name].(metav1.Object).GetLabels()["of"] == parent {
			all = append(all, cached[T](m, name))
		}
	}
	return all
}

// resourceOf returns the resource of objects of type T.
func resourceOf[T any]() string {
	for resource, example := range examples {
		if _, ok := example.(any).(*T); ok {
			return resource
		}
	}
	return ""
}

// unless returns err, or nil if is reports true for err.
func unless(is func(error) bool, err error) error {
	if is(err) {
		return nil
	}
	return err
}

// Errors that mean that the object is already deleted or created.
var (
	gone   = apierrors.IsNotFound
	exists = apierrors.IsAlreadyExists
)
