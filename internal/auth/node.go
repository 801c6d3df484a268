package auth

import (
	"context"
	"fmt"
	"hash/maphash"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"
	certificatesv1beta1 "k8s.io/api/certificates/v1beta1"
	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/authentication/user"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	certificatesinformers "k8s.io/client-go/informers/certificates/v1beta1"
	coreinformers "k8s.io/client-go/informers/core/v1"
	resourceinformers "k8s.io/client-go/informers/resource/v1"
	storageinformers "k8s.io/client-go/informers/storage/v1"
	"k8s.io/client-go/kubernetes"
	clientcache "k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"
	"k8s.io/kubernetes/pkg/features"
	"k8s.io/kubernetes/plugin/pkg/auth/authorizer/node"
	"k8s.io/utils/ptr"

	"github.com/larder-io/larder/cache"
	"github.com/larder-io/larder/internal/registry"
	"github.com/larder-io/larder/watch"
)

// graph updates the Node authorizer's graph: the objects that a node refers to through its pods.
// Upstream's informers would hold every pod decoded. Here pods come from the registry's cache, and only
// the fields that the graph reads are decoded. The graph keeps a digest of them. The informers of other
// kinds keep a few names of each object.
//
// Only the goroutine that calls follow uses the fields, except graph, which has a lock, and reached.
type graph struct {
	graph  *node.Graph
	losses losses
	synced chan struct{} // closed once everything was read

	waited      chan struct{} // closed once the authorizer must decide with the objects read so far
	stopWaiting func()        // closes waited; may be called again

	pod, whole *mask
	seed       maphash.Seed
	known      map[string]podOnNode // pods on nodes, by key
	scratch    []byte

	reached atomic.Int64 // the graph has all changes of pods up to this revision
}

// podOnNode is the state of a pod in the graph.
type podOnNode struct {
	digest uint64 // of the fields that the graph reads
	node   string
}

func newGraph() *graph {
	node.RegisterMetrics()
	g := &graph{graph: node.NewGraph(), synced: make(chan struct{}), waited: make(chan struct{}), seed: maphash.MakeSeed()}
	g.pod, g.whole = newPodMask()
	g.losses.seed = g.seed
	g.stopWaiting = sync.OnceFunc(func() { close(g.waited) })
	return g
}

// WaitNodes blocks until Follow has put everything into the Node authorizer's graph, if there is one. It fails
// with ErrNotSynced if ctx ends first.
func (a *Auth) WaitNodes(ctx context.Context) error {
	if a.graph == nil {
		return nil
	}
	select {
	case <-a.graph.synced:
		return nil
	case <-ctx.Done():
		return ErrNotSynced
	}
}

// FollowsPods reports whether the Node authorizer, if there is one, decides by the pods as they were written at revision.
func (a *Auth) FollowsPods(revision int64) bool {
	return a.graph == nil || a.graph.reached.Load() >= revision
}

// SkipNodeSync ends the Node authorizer's wait for its first sync, because the informer of a resource that is not
// served never syncs.
func (a *Auth) SkipNodeSync() {
	if a.graph != nil {
		a.graph.stopWaiting()
	}
}

// Follow keeps the graph of the Node authorizer current, if there is one, until ctx ends.
// pods must be running. It is called once.
func (a *Auth) Follow(ctx context.Context, client kubernetes.Interface, pods *registry.Resource) error {
	if a.graph == nil {
		<-ctx.Done()
		return nil
	}
	return a.graph.follow(ctx, client, pods)
}

func (g *graph) follow(ctx context.Context, client kubernetes.Interface, pods *registry.Resource) error {
	group, ctx := errgroup.WithContext(ctx)
	first := make(chan struct{})
	group.Go(func() error { return g.followPods(ctx, pods, sync.OnceFunc(func() { close(first) })) })
	loads := []<-chan struct{}{first}
	for _, other := range g.informers(client) {
		group.Go(func() error { other.informer.RunWithContext(ctx); return nil })
		loads = append(loads, other.synced)
	}
	group.Go(func() error {
		for _, load := range loads {
			select {
			case <-load:
			case <-ctx.Done():
				return nil
			}
		}
		close(g.synced)
		g.stopWaiting()
		return nil
	})
	return group.Wait()
}

// retryPods is the pause before pods are read again.
const retryPods = time.Second

// followPods reads the pods, calls synced, and then follows their changes.
func (g *graph) followPods(ctx context.Context, pods *registry.Resource, synced func()) error {
	for {
		if err := pods.WaitReady(ctx); err != nil {
			if ctx.Err() != nil {
				return nil
			}
			return fmt.Errorf("auth: pods: %w", err)
		}
		err := g.followOnce(ctx, pods, synced)
		if ctx.Err() != nil {
			return nil
		}
		klog.InfoS("The node authorizer reads all pods again", "reason", err)
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(retryPods):
		}
	}
}

// followOnce reads a snapshot of the pods and follows them from there until that ends.
func (g *graph) followOnce(ctx context.Context, pods *registry.Resource, synced func()) error {
	now := pods.Cache.Snapshot()
	watcher, err := pods.Hub.Watch(watch.Options{After: now.Revision()})
	if err != nil {
		return err
	}
	defer watcher.Close()
	g.replace(now)
	g.reached.Store(now.Revision())
	defer g.reached.Store(0) // the next snapshot may be of a replaced store, whose revisions are lower
	synced()
	deliveries := make([]watch.Delivery, 0, 64)
	for {
		deliveries, err = watcher.Next(ctx, deliveries[:0])
		if err != nil {
			return err
		}
		for _, d := range deliveries {
			if d.Type == watch.Deleted {
				g.drop(d.Object.Key())
			} else {
				g.update(d.Object)
			}
			g.reached.Store(d.Revision)
		}
	}
}

// replace replaces the pods of the graph by the pods of a snapshot.
func (g *graph) replace(now cache.Snapshot) {
	if g.known == nil {
		g.known = make(map[string]podOnNode, now.Len())
	}
	for key := range g.known {
		if now.Get(key) == nil {
			g.drop(key)
		}
	}
	for o := range now.All() {
		g.update(o)
	}
}

// update puts a pod into the graph, unless none of its fields that the graph reads have changed. A pod that cannot be
// decoded keeps its old state.
func (g *graph) update(o *cache.Object) {
	if o.Err() != nil {
		return
	}
	var err error
	if g.scratch, err = appendMasked(g.scratch[:0], o.Body(), g.pod, g.whole); err != nil {
		klog.ErrorS(err, "Pod is unknown to the node authorizer", "key", o.Key())
		return
	}
	digest := maphash.Bytes(g.seed, g.scratch)
	known, ok := g.known[o.Key()]
	if ok && known.digest == digest {
		return
	}
	var pod corev1.Pod
	if err := pod.Unmarshal(g.scratch); err != nil {
		klog.ErrorS(err, "Pod is unknown to the node authorizer", "key", o.Key())
		return
	}
	if pod.Spec.NodeName == "" {
		g.drop(o.Key())
		return
	}
	g.graph.AddPod(&pod)
	key := o.Key()
	if ok {
		g.losses.count(known.node)
	} else {
		key = strings.Clone(key)
	}
	g.known[key] = podOnNode{digest, pod.Spec.NodeName}
}

// drop removes a pod from the graph.
func (g *graph) drop(key string) {
	known, ok := g.known[key]
	if !ok {
		return
	}
	delete(g.known, key)
	namespace, name, _ := strings.Cut(key, "/")
	g.graph.DeletePod(name, namespace)
	g.losses.count(known.node)
}

// informers returns the informers of the other kinds. Their handlers do what kubernetes
// plugin/pkg/auth/authorizer/node/graph_populator.go does.
func (g *graph) informers(client kubernetes.Interface) []informed {
	all := []informed{
		inform(g, coreinformers.NewPersistentVolumeInformer(client, 0, nil), func(pv *corev1.PersistentVolume) *corev1.PersistentVolume {
			return &corev1.PersistentVolume{ObjectMeta: identity(pv), Spec: corev1.PersistentVolumeSpec{
				ClaimRef: pv.Spec.ClaimRef, PersistentVolumeSource: pv.Spec.PersistentVolumeSource,
			}}
		}, g.graph.AddPV, true, func(pv *corev1.PersistentVolume) { g.graph.DeletePV(pv.Name) }, func(*corev1.PersistentVolume) string { return "" }),
		inform(g, storageinformers.NewVolumeAttachmentInformer(client, 0, nil), func(a *storagev1.VolumeAttachment) *storagev1.VolumeAttachment {
			return &storagev1.VolumeAttachment{ObjectMeta: identity(a), Spec: storagev1.VolumeAttachmentSpec{NodeName: a.Spec.NodeName}}
		}, func(a *storagev1.VolumeAttachment) { g.graph.AddVolumeAttachment(a.Name, a.Spec.NodeName) }, true,
			func(a *storagev1.VolumeAttachment) { g.graph.DeleteVolumeAttachment(a.Name) },
			func(a *storagev1.VolumeAttachment) string { return a.Spec.NodeName }),
	}
	if utilfeature.DefaultFeatureGate.Enabled(features.DynamicResourceAllocation) {
		all = append(all, inform(g, resourceinformers.NewResourceSliceInformer(client, 0, nil), func(s *resourcev1.ResourceSlice) *resourcev1.ResourceSlice {
			return &resourcev1.ResourceSlice{ObjectMeta: identity(s), Spec: resourcev1.ResourceSliceSpec{NodeName: s.Spec.NodeName}}
		}, func(s *resourcev1.ResourceSlice) { g.graph.AddResourceSlice(s.Name, ptr.Deref(s.Spec.NodeName, "")) }, false,
			func(s *resourcev1.ResourceSlice) { g.graph.DeleteResourceSlice(s.Name) },
			func(s *resourcev1.ResourceSlice) string { return ptr.Deref(s.Spec.NodeName, "") }))
	}
	if utilfeature.DefaultFeatureGate.Enabled(features.PodCertificateRequest) {
		all = append(all, inform(g, certificatesinformers.NewPodCertificateRequestInformer(client, metav1.NamespaceAll, 0, nil),
			func(r *certificatesv1beta1.PodCertificateRequest) *certificatesv1beta1.PodCertificateRequest {
				return &certificatesv1beta1.PodCertificateRequest{ObjectMeta: identity(r), Spec: certificatesv1beta1.PodCertificateRequestSpec{NodeName: r.Spec.NodeName}}
			}, g.graph.AddPodCertificateRequest, false, g.graph.DeletePodCertificateRequest,
			func(r *certificatesv1beta1.PodCertificateRequest) string { return string(r.Spec.NodeName) }))
	}
	return all
}

// identity returns the metadata that an informer and the graph need.
func identity(o metav1.Object) metav1.ObjectMeta {
	return metav1.ObjectMeta{Namespace: o.GetNamespace(), Name: o.GetName(), UID: o.GetUID(), ResourceVersion: o.GetResourceVersion()}
}

// informed is an informer. synced is closed once its handler has seen all objects.
type informed struct {
	informer clientcache.SharedIndexInformer
	synced   <-chan struct{}
}

// inform adds the objects of informer to the graph and removes them. With updates, it adds changed objects again. trim
// drops fields that the informer need not keep. on returns the only node that may lose access when an object changes,
// or "" if it may be any node.
func inform[T any](g *graph, informer clientcache.SharedIndexInformer, trim func(T) T, add func(T), updates bool, remove func(T), on func(T) string) informed {
	handler := clientcache.ResourceEventHandlerFuncs{
		AddFunc: func(o any) { add(o.(T)) },
		DeleteFunc: func(o any) {
			if lost, ok := o.(clientcache.DeletedFinalStateUnknown); ok {
				o = lost.Obj
			}
			if known, ok := o.(T); ok {
				remove(known)
				g.losses.count(on(known))
			}
		},
	}
	if updates {
		handler.UpdateFunc = func(old, o any) {
			add(o.(T))
			g.losses.count(on(old.(T)))
		}
	}
	// These two cannot fail before the informer runs.
	_ = informer.SetTransform(func(o any) (any, error) {
		if known, ok := o.(T); ok {
			return trim(known), nil
		}
		return o, nil
	})
	registered, _ := informer.AddEventHandler(handler)
	return informed{informer, registered.HasSyncedChecker().Done()}
}

// losses counts changes after which nodes may lose access. When a pod is deleted, only its node may lose access. Large
// clusters delete pods every second, and each node watches many objects that its pods need. Authorizing the watches of
// all nodes each time was a quarter of a server's work.
//
// Nodes whose names have the same hash share a count, so that reading it needs neither a lock nor the
// names of nodes. Such nodes are authorized again more often than necessary.
type losses struct {
	any   atomic.Uint64 // losses that may concern any node
	nodes [1 << 10]atomic.Uint64
	seed  maphash.Seed // of the hashes of nodes' names
}

// count counts a change that concerns one node, or any node if name is "". The caller has changed the
// graph.
func (l *losses) count(name string) {
	if name == "" {
		l.any.Add(1)
	} else {
		l.of(name).Add(1)
	}
}

func (l *losses) of(name string) *atomic.Uint64 {
	return &l.nodes[maphash.String(l.seed, name)%uint64(len(l.nodes))]
}

// node returns the number of changes that may concern u, if u is a node.
func (l *losses) node(u user.Info) uint64 {
	const prefix = "system:node:" // kubernetes pkg/auth/nodeidentifier/default.go
	return l.any.Load() + l.of(strings.TrimPrefix(u.GetName(), prefix)).Load()
}
