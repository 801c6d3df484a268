package server

import (
	"context"
	"fmt"
	"net/http"
	"reflect"
	"strconv"
	"strings"
	"time"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/cache"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"
	controlplane "k8s.io/kubernetes/pkg/controlplane/apiserver"

	"github.com/larder-io/larder/cmd/larder/internal/checkpoint"
	"github.com/larder-io/larder/cmd/larder/internal/server/loopback"
	"github.com/larder-io/larder/cmd/larder/internal/testcontrollers"
	"github.com/larder-io/larder/kv"
)

// resetPatience limits how long a reset waits for informers and other parts of the server.
const resetPatience = 10 * time.Second

// addCheckpoints adds the handlers of checkpoints, if the configuration enables them.
func (s *Server) addCheckpoints(handlers map[string]http.Handler) {
	if !s.config.Checkpoints {
		return
	}
	stores := []kv.Store{s.store}
	for _, a := range s.overrides {
		stores = append(stores, a.store)
	}
	reset := resets{&s.parts, s.config.external()}
	checkpoints := checkpoint.New(checkpoint.Config{
		Stores: stores, Prefix: s.config.Etcd.StorageConfig.Prefix, Fence: s.fence, Pause: reset.pauseControllers, Await: reset.awaitInformed,
	})
	handlers[checkpoint.Path], handlers[checkpoint.Path+"/"] = checkpoints, checkpoints
}

// resets has the steps of a reset that do not concern the stores.
type resets struct {
	*parts
	external bool // other servers may use the store
}

// pauseControllers stops the controllers of this server that delete objects, and the repair of service addresses. Its
// warnings name the controllers of other processes.
func (r resets) pauseControllers(ctx context.Context) (resume func(), warnings []string, err error) {
	ctx, cancel := context.WithTimeout(ctx, resetPatience)
	defer cancel()
	if warnings, err = r.otherControllers(ctx); err != nil {
		return nil, nil, err
	}
	restart := func() {}
	if r.controllers != nil {
		if restart, err = r.controllers.Pause(ctx); err != nil {
			return nil, warnings, err
		}
	}
	repair := r.bootstrap.PauseRepair()
	return func() { repair(); restart() }, warnings, nil
}

// otherControllers returns warnings about other processes that may delete restored objects.
func (r resets) otherControllers(ctx context.Context) (warnings []string, err error) {
	var emptied []string
	namespaces, err := r.client.CoreV1().Namespaces().List(ctx, metav1.ListOptions{}) // a list, because informers may be behind
	if err != nil {
		return nil, err
	}
	for _, n := range namespaces.Items {
		if n.DeletionTimestamp != nil {
			emptied = append(emptied, n.Name)
		}
	}
	manager, err := testcontrollers.ControllerManagerHolder(ctx, r.client)
	switch {
	case err != nil:
		return nil, err
	case manager != "" && len(emptied) > 0:
		warnings = append(warnings, fmt.Sprintf("kube-controller-manager %s was not stopped: it may continue to empty the namespaces %s and to collect garbage", manager, strings.Join(emptied, ", ")))
	case manager != "":
		warnings = append(warnings, fmt.Sprintf("kube-controller-manager %s was not stopped: it may delete restored objects", manager))
	case len(emptied) > 0 && r.controllers == nil:
		warnings = append(warnings, fmt.Sprintf("the controller that empties the namespaces %s is not part of this server: it was not stopped and may continue", strings.Join(emptied, ", ")))
	}
	if !r.external {
		return warnings, nil
	}
	servers, err := r.client.CoordinationV1().Leases(metav1.NamespaceSystem).List(ctx, metav1.ListOptions{LabelSelector: controlplane.IdentityLeaseComponentLabelKey + "=" + controlplane.KubeAPIServer})
	if err != nil {
		return nil, err
	}
	for _, l := range servers.Items {
		if spec := l.Spec; l.Name != identityLease() && spec.RenewTime != nil && spec.LeaseDurationSeconds != nil &&
			time.Since(spec.RenewTime.Time) < time.Duration(*spec.LeaseDurationSeconds)*time.Second {
			warnings = append(warnings, fmt.Sprintf("the server %s also uses this store: its requests in flight, and its deletions of custom resources, were not stopped", l.Name))
		}
	}
	return warnings, nil
}

// awaitInformed waits until the server's own informers have seen writes, admission has the webhooks, and the Node
// authorizer has the pods. Policies may follow a second later, because upstream polls them. An informer whose watch has
// ended takes a second or two to list again.
func (r resets) awaitInformed(ctx context.Context, writes []checkpoint.Write) error {
	ctx, cancel := context.WithTimeout(ctx, resetPatience)
	defer cancel()
	for kind := range r.informers.WaitForCacheSync(r.informersStarted) { // all informers, whether they have synced or not
		object := reflect.New(kind.Elem()).Interface().(runtime.Object)
		kinds, _, err := scheme.Scheme.ObjectKinds(object)
		if err != nil {
			continue
		}
		informer := r.informers.InformerFor(object, nil) // exists, so no constructor is needed
		for name, w := range r.lastWrites(kinds[0].GroupKind(), writes) {
			if err := awaitWrite(ctx, w, func() bool { return seen(informer.GetStore(), name, w) && loopback.Handled(informer, name) }); err != nil {
				return err
			}
		}
	}
	for _, w := range r.lastWrites(schema.GroupKind{Kind: "Pod"}, writes) {
		if err := awaitWrite(ctx, w, func() bool { return r.auth.FollowsPods(w.Revision) }); err != nil {
			return err
		}
	}
	for name, w := range r.lastWrites(apiextensionsv1.Kind("CustomResourceDefinition"), writes) {
		if err := awaitWrite(ctx, w, func() bool { return r.extensions.Serves(name, w.Revision, w.Deleted) }); err != nil {
			return err
		}
	}
	for name, w := range r.lastWrites(schema.GroupKind{Group: apiregistrationv1.GroupName, Kind: "APIService"}, writes) {
		if err := awaitWrite(ctx, w, func() bool {
			return seen(r.aggregator.APIServices().GetStore(), name, w) && r.aggregator.Routes(name)
		}); err != nil {
			return err
		}
	}
	return nil
}

// awaitWrite blocks until done returns true, which means that the server has seen w.
func awaitWrite(ctx context.Context, w checkpoint.Write, done func() bool) error {
	err := wait.PollUntilContextCancel(ctx, time.Millisecond, true, func(context.Context) (bool, error) { return done(), nil })
	if err != nil {
		return fmt.Errorf("this server has not reached revision %d of %s: %w", w.Revision, w.Key, err)
	}
	return nil
}

// seen reports whether the store of an informer has the named object as w wrote it, or a later state. The informer's own
// LastSyncResourceVersion would not do: it is ahead of the store.
func seen(store cache.Store, name string, w checkpoint.Write) bool {
	object, exists, err := store.GetByKey(name)
	switch {
	case err != nil:
		return false
	case exists:
		revision := revisionOf(object.(metav1.Object).GetResourceVersion())
		return revision > w.Revision || !w.Deleted && revision == w.Revision
	default: // deleted by w or later, or not created yet
		revision := store.LastStoreSyncResourceVersion() // empty before the first list, and without client-go's gate AtomicFIFO
		return revision == "" && w.Deleted || revisionOf(revision) >= w.Revision
	}
}

// revisionOf returns the revision of a resourceVersion, 0 for that of an informer's store before its first list.
func revisionOf(resourceVersion string) int64 {
	revision, _ := strconv.ParseInt(resourceVersion, 10, 64)
	return revision
}

// lastWrites returns the last write to each object of a kind, by the keys of informers.
func (r resets) lastWrites(kind schema.GroupKind, writes []checkpoint.Write) map[string]checkpoint.Write {
	last := make(map[string]checkpoint.Write)
	for _, resource := range r.registry.Resources() {
		if resource.Codec().Canonical.GroupKind() != kind {
			continue
		}
		for _, w := range writes {
			if name, ok := strings.CutPrefix(w.Key, resource.Root()); ok {
				last[name] = w
			}
		}
	}
	return last
}
